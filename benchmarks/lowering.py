"""Lowered programs compared with eager, torch.fx and other runtimes; lowering time; partitioning (section 6.4).

Parts: ``python -m benchmarks.lowering --part resnet50 --peers --threads 1``, then ``learning_to_paint_actor`` and the
rest; each takes a few minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse

import fx
import fx.lowering
from fx.passes import FuseConvBN
from fx.passes.machinery.partition import find_regions
from model_zoo import get_model

from .paired import Contender, Table, each, parse


def alternating(operations: int) -> tuple[fx.Graph, set[fx.Node]]:
    """Return a chain with a skip connection around each step, and the set of its supported operations."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    supported: set[fx.Node] = set()
    for index in range(operations // 2):
        step = graph.call_function(torch.neg if index % 2 else torch.relu, (value,))
        value = graph.call_function(torch.add, (step, value))
        supported.update([step, value] if index % 3 else [value])
    graph.output(value)
    return graph, supported


GOALS = {"resnet50": "1 / 1.40 = 0.714 (onednn), 1 / 1.47 = 0.680 (openvino)"}


def compiled(module: nn.Module, inputs: tuple[Any, ...], *, frozen: bool) -> Callable[..., Any]:
    """Return a module compiled by torch.compile; ``frozen`` treats its weights as constants."""
    import torch._inductor.config as inductor

    torch.compiler.reset()
    with inductor.patch(freezing=frozen), torch.no_grad():
        fast = torch.compile(module)
        fast(*inputs)
    return fast


def used_directly(module: nn.Module, inputs: tuple[Any, ...], threads: int) -> Callable[..., Any]:
    """Return a call of OpenVINO used as documented: convert, compile with float32 forced, share inputs."""
    import openvino

    model = openvino.convert_model(module, example_input=inputs, input=[tuple(tensor.shape) for tensor in inputs])
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.compile_model(model, "CPU", settings).create_infer_request()
    return lambda *given: request.infer([tensor.numpy() for tensor in given], share_inputs=True, share_outputs=True)


def in_onnx_runtime(module: nn.Module, inputs: tuple[Any, ...], threads: int) -> Callable[..., Any]:
    """Return a call of ONNX Runtime on the export of torch.onnx."""
    import io

    import onnxruntime

    file = io.BytesIO()
    torch.onnx.export(module, inputs, file, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return lambda *given: session.run(None, dict(zip(names, (tensor.numpy() for tensor in given), strict=True)))


def programs(module: nn.Module, inputs: tuple[Any, ...], peers: bool) -> dict[str, Any]:
    """Return all programs and runtimes for a model that are installed here, by name."""
    threads = torch.get_num_threads()
    by_name: dict[str, Any] = {"eager": module, "torch.fx fuse": fuse(module)}
    by_name["fuse-conv-bn"] = FuseConvBN()(fx.symbolic_trace(module))
    for backend in ("onednn", "openvino"):
        if fx.lowering.get_backend(backend).why_unavailable() is None:
            by_name[backend] = fx.lower(fx.symbolic_trace(module), backend, inputs)
    others: dict[str, Callable[[], Any]] = {
        "compile": lambda: compiled(module, inputs, frozen=False),
        "compile frozen": lambda: compiled(module, inputs, frozen=True),
        "OpenVINO": lambda: used_directly(module, inputs, threads),
        "ONNX Runtime": lambda: in_onnx_runtime(module, inputs, threads),
    }
    for name, make in others.items() if peers else ():
        try:
            by_name[name] = make()
        except ImportError as error:
            print(f"{name} is not measured: {error}", flush=True)
    return by_name


def run_models(names: tuple[str, ...], batches: tuple[int, ...], rounds: int, peers: bool) -> None:
    columns = ("eager", "torch.fx fuse", "fuse-conv-bn", "onednn", "openvino")
    table = Table(*columns, *(("compile", "compile frozen", "OpenVINO", "ONNX Runtime") if peers else ()))
    for name in names:
        model = get_model(name)
        module = model.build().eval()
        for batch in batches:
            inputs = model.example_inputs(batch=batch)
            with torch.no_grad():
                contenders = each(
                    lambda program, inputs=inputs: program(*inputs), programs(module, tuple(inputs), peers)
                )
                row = f"{name}, batch {batch}, {torch.get_num_threads()} threads"
                table.measure(row, contenders, rounds=rounds, goal=GOALS.get(name, ""))


def run_calls(rounds: int) -> None:
    """Time a call of a lowered program relative to a call of its engine."""
    if fx.lowering.OpenVINO().why_unavailable() is not None:
        return
    x = torch.randn(8, 64)
    program = fx.symbolic_trace(nn.ReLU())
    lowered = fx.lower(program, "openvino", (x,), min_size=1)
    (engine,) = lowered.openvino_0._engines.values()
    request = engine._compiled.create_infer_request()
    request.infer([x.numpy()])
    table = Table("engine", "its Python API", "lowered")
    contenders = {
        "engine": Contender(lambda _: request.infer(share_inputs=True, share_outputs=True)),
        "its Python API": Contender(lambda _: request.infer([x.numpy()], share_inputs=True, share_outputs=True)),
        "lowered": Contender(lambda _: lowered(x)),
    }
    goal = "20 µs more than the engine"
    with torch.no_grad():
        table.measure("a call, one operation", contenders, rounds=rounds, goal=goal)


def run_lowering(names: tuple[str, ...], rounds: int) -> None:
    backends = [name for name in ("onednn", "openvino") if fx.lowering.get_backend(name).why_unavailable() is None]
    table = Table("torch.fx fuse", *backends)
    for name in names:
        model = get_model(name)
        module, inputs = model.build().eval(), model.example_inputs(batch=1)
        contenders = {"torch.fx fuse": Contender(lambda _, module=module: fuse(module))}
        for backend in backends:
            contenders[backend] = Contender(
                lambda _, m=module, i=inputs, b=backend: fx.lower(fx.symbolic_trace(m), b, i)
            )
        goal = "under 1 s (onednn)" if name == "resnet50" else ""
        row = f"capture and lower, {name}"
        table.measure(row, contenders, rounds=rounds, goal=goal)


def run_partition(sizes: tuple[int, ...], rounds: int) -> None:
    table = Table("find_regions")
    for size in sizes:
        graph, supported = alternating(size)
        work: dict[str, Any] = {
            "find_regions": Contender(lambda _, graph=graph, supported=supported: find_regions(graph, supported))
        }
        table.measure_operations("dividing", size, work, rounds=rounds, goal="the same at every length")


PARTS = ("resnet50", "learning_to_paint_actor", "lowering", "calls", "partition")


def main() -> None:
    """Print the tables."""
    part = {"action": "append", "choices": PARTS, "help": "only this (repeatable); by default all"}
    peers = {"action": "store_true", "help": "torch.compile, OpenVINO and ONNX Runtime beside ours"}
    batch = {"type": int, "action": "append", "help": "batch sizes of models (repeatable; default 1 and 8)"}
    options = parse(__doc__, rounds=15, part=part, peers=peers, batch=batch)
    parts = options.part or (("resnet50", "lowering", "partition") if options.quick else PARTS)
    batches = tuple(options.batch or ((1,) if options.quick else (1, 8)))
    if names := tuple(part for part in parts if part in PARTS[:2]):
        run_models(names, batches, options.rounds, options.peers)
    if "lowering" in parts:
        run_lowering(("resnet50",), min(options.rounds, 7))
    if "calls" in parts:
        run_calls(options.rounds)
    if "partition" in parts:
        run_partition((1000, 10_000) if options.quick else (1000, 10_000, 100_000), 5)


if __name__ == "__main__":
    main()
