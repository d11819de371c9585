"""``lowering``: the speed-up of lowering models to a backend (paper, section 6.4, appendix D)."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fx.errors import LoweringWarning
from fx.lowering import TensorRT, get_backend, lower
from model_zoo import ZooModel, get_model, models_with_tag
from pytest_fx.harness import evaluation
from pytest_fx.harness.capture import capture
from pytest_fx.tables import pairs
from pytest_fx.tables.peers import OTHERS, compiled_by_others
from pytest_fx.tables.table import Chart, Claim, Column, NotRun, Row, Scale, Series, Table, register_table
from pytest_fx.timing.clock import unprofiled

_MODELS: Mapping[str, tuple[Sequence[int], int]] = {
    "resnet50": ((1, 8, 32), 256),
    "learning_to_paint_actor": ((1, 8, 32, 96), 96),
    **{name: ((1, 8), 8) for name in models_with_tag("transformer") if "small" not in get_model(name).tags},
}
"""Models, with batch sizes on a CPU and the batch size on a GPU."""
_TARGET = "8.6"
"""The compute capability for which engines are built without a GPU."""


def _rows(scale: Scale) -> Sequence[Row]:
    rows: list[Row] = []
    for model, (batches, batch_on_gpu) in _MODELS.items():
        for backend in ("onednn", "openvino", "tensorrt"):
            on_gpu = backend == "tensorrt"
            full = [_row(scale, model, backend, batch) for batch in ((batch_on_gpu,) if on_gpu else batches)]
            if scale.size == "full":
                rows += full
                continue
            small = [
                _row(scale, get_model(model).small or model, backend, batch) for batch in ((4,) if on_gpu else (1, 2))
            ]
            rows += [replace(row, stands_for=other.name) for row, other in zip(small, full, strict=False)]
    return rows


def _row(scale: Scale, model: str, backend: str, batch: int) -> Row:
    threads = 1 if backend == "tensorrt" else os.cpu_count() or 1
    rounds = min(scale.rounds, max(5, scale.rounds * 4 // max(batch, 4)))
    settings = {"model": model, "backend": backend, "threads": threads, "batch": batch, "dtype": "float32"}
    settings |= {"rounds": rounds, "seed": scale.seed}
    name = f"{model}, {backend}, batch {batch}"
    return Row(name, partial(_measure, settings), settings, timed=True, on_gpu=backend == "tensorrt")


def _measure(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    backend, zoo_model = get_backend(settings["backend"]), get_model(settings["model"])
    eager = zoo_model.build()
    inputs = tuple(zoo_model.example_inputs(settings["batch"], seed=settings["seed"]))
    if settings["backend"] == "tensorrt" and not torch.cuda.is_available():
        raise NotRun(f"not run: no GPU{_build_ahead(eager, inputs)}{_emulate(zoo_model, settings['seed'])}")
    if (why := backend.why_unavailable()) is not None:
        raise NotRun(f"not run: {why}")
    device = "cuda" if settings["backend"] == "tensorrt" else "cpu"
    eager, inputs = eager.to(device), tuple(tensor.to(device) for tensor in inputs)
    with evaluation.threads(settings["threads"]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LoweringWarning)  # of small models, which are timed unlowered
            with unprofiled():
                start = time.perf_counter()
                lowered = lower(capture(eager), backend, inputs)
                seconds = time.perf_counter() - start
            lower(capture(eager), backend, inputs)  # again, so that its files are noted
        with torch.no_grad():
            wanted, actual = pairs.joined(eager(*inputs)), pairs.joined(lowered(*inputs))
        others = compiled_by_others(eager, inputs)
    timings = pairs.time_beside(
        partial(eager, *inputs),
        {"lowered": partial(lowered, *inputs), **others},
        rounds=settings["rounds"],
        threads=settings["threads"],
        device=device,
    )
    values: dict[str, Any] = {}
    for name, timing in timings.items():
        values |= pairs.record_pairs(timing, "eager", name)
    return {
        **values,
        "lowering": seconds,
        "outputs": wanted.numel(),
        "outside": pairs.outside(actual, wanted),
        "error": float((actual.double() - wanted.double()).abs().max() / wanted.double().abs().max()),
    }


def _build_ahead(eager: torch.nn.Module, inputs: tuple[Any, ...]) -> str:
    """Build the engines without a GPU, and return their number, share and build time in words, or why that fails."""
    backend = TensorRT(targets=(_TARGET,))
    if (why := backend.why_unavailable()) is not None:
        return f"; {why}"
    start = time.perf_counter()
    coverage = lower(capture(eager), backend, inputs).meta["lowering"]
    seconds = time.perf_counter() - start
    built = f"{len(coverage.parts)} engine{'s' if len(coverage.parts) != 1 else ''}"
    return (
        f"; {built} with {coverage.flop_share:.0%} of the floating-point operations, "
        f"built for compute capability {_TARGET} in {seconds:.1f} s"
    )


def _emulate(model: ZooModel, seed: int) -> str:
    """Compute the networks by PyTorch for a batch of 1, and return the error in float32, and in float64 the outputs
    outside of the paper's bound, in words."""
    backend = TensorRT(emulate=True)
    if backend.why_unavailable() is not None:
        return ""
    results: list[tuple[torch.Tensor, torch.Tensor]] = []
    for dtype in (torch.float32, torch.float64):
        eager = model.build().to(dtype)
        values = model.example_inputs(1, seed=seed)
        inputs = tuple(value.to(dtype) if value.is_floating_point() else value for value in values)
        with torch.no_grad():
            lowered = lower(capture(eager), backend, inputs)
            results.append((pairs.joined(lowered(*inputs)), pairs.joined(eager(*inputs))))
    (actual, wanted), (actual_wide, wanted_wide) = results
    error = float((actual.double() - wanted.double()).abs().max() / wanted.double().abs().max())
    outside = pairs.outside(actual_wide, wanted_wide)
    return (
        f"; emulated, batch 1: error {error:.1e} in float32, in float64 {outside:,} of {wanted_wide.numel():,} outputs "
        "outside of the bound"
    )


def _numbers(values: Mapping[str, Any]) -> Mapping[str, float]:
    names = ("lowering", "outputs", "outside", "error", "threads")
    others = pairs.tell_others(values, "eager", OTHERS)
    return {**others, **pairs.tell_pairs(values, "eager", "lowered"), **{name: values[name] for name in names}}


_OUTSIDE = "outside of the bound: {outside:,} of {outputs:,}, the largest error {error:.1e} of the largest output"
_FOUND = pairs.speedup_of("lowered", 2, " times as fast ")

register_table(
    Table(
        name="lowering",
        title="Programs lowered to a backend",
        section="section 6.4, appendix D, figure 8",
        protocol=(
            "Eager and lowered calls, and those of other compilers, alternate in rounds after warm-up. All are in "
            "float32 and evaluation mode, on all cores or on a GPU. For large batches there are fewer rounds. The "
            "columns are:\n\n"
            "- *speed-up*: the median of the time ratios of the pairs, with its bootstrap 95 % interval. Seconds are "
            "mean ± standard deviation.\n"
            "- *torch.compile*: the speed-up over eager by Inductor with `freezing`, in the same rounds.\n"
            "- *ONNX Runtime*: likewise, by our backend `onnxruntime`. A dash means that the row is older than the "
            "column, or that the compiler failed.\n"
            "- *lowering*: the time from the captured program to the lowered one, with the compilation of the engine.\n"
            "- *error*: the largest difference of an output, divided by the largest output.\n"
            "- *outside*: the outputs that differ by more than the paper's bound (rtol=1e-5, atol=1e-8). In float32, "
            "rounding errors alone exceed this bound.\n\n"
            "The paper lowers to TensorRT on a V100, and gives no batch sizes: 256 and 96 are guesses. "
            "TensorRT-RTX builds engines without a GPU, but does not run on GPUs of data centres. So a machine "
            "without another GPU can measure only the backends for CPUs. **No engine of TensorRT has run yet.** Its "
            "rows say how many engines are built, and *emulated* errors: PyTorch computes the same networks on the "
            "CPU, layer by layer."
        ),
        claims=(
            Claim(
                "Figure 8 shows that TensorRT provides a predictable 3.7x runtime speed-up across 30 trials "
                "compared to baseline PyTorch for ResNet50 …",
                "3.69 times as fast, on a V100",
                {
                    "resnet50, tensorrt, batch 256": f"TensorRT: {_FOUND}",
                    "resnet50, openvino, batch 1": f"OpenVINO, CPU, batch 1: {_FOUND}",
                    "resnet50, onednn, batch 1": f"oneDNN, CPU, batch 1: {_FOUND}",
                },
            ),
            Claim(
                "… and a 1.54x speed-up for LearningToPaint.",
                "1.55 times as fast, on a V100",
                {
                    "learning_to_paint_actor, tensorrt, batch 96": f"TensorRT: {_FOUND}",
                    "learning_to_paint_actor, openvino, batch 1": f"OpenVINO, CPU, batch 1: {_FOUND}",
                    "learning_to_paint_actor, onednn, batch 1": f"oneDNN, CPU, batch 1: {_FOUND}",
                },
            ),
            Claim(
                "Numerical correctness is confirmed via an epsilon equivalence comparison (rtol=1e-05, atol=1e-08) of "
                "the outputs of the TensorRT and non-TensorRT implementations.",
                "equal within the bound",
                {
                    "resnet50, tensorrt, batch 256": f"TensorRT: {_OUTSIDE}",
                    "resnet50, openvino, batch 1": f"ResNet50, OpenVINO: {_OUTSIDE}",
                    "resnet50, onednn, batch 1": f"oneDNN: {_OUTSIDE}",
                },
            ),
        ),
        rows=_rows,
        columns=(
            Column("pairs", "{trials}"),
            Column("eager, s", pairs.seconds_of("eager")),
            Column("lowered, s", pairs.seconds_of("lowered")),
            Column("speed-up", pairs.speedup_of("lowered")),
            *(Column(heading, pairs.speedup_of(name)) for name, heading in OTHERS.items()),
            Column("lowering, s", "{lowering:.2f}"),
            Column("error", "{error:.1e}"),
            Column("outside", "{outside:,} of {outputs:,}"),
            Column("paper: eager, s", pairs.seconds_of("paper_eager")),
            Column("paper: lowered, s", pairs.seconds_of("paper_lowered")),
            Column("paper: speed-up", "{paper_lowered_speedup:.3f}"),
        ),
        chart=Chart(
            title="Programs lowered to a backend",
            axis="run time over that of eager PyTorch (lower is better; 95 % intervals)",
            series=(
                pairs.with_interval("fx", "lowered_relative", "ours"),
                pairs.with_interval("torch.compile", "inductor_relative", "peer"),
                Series("the paper: V100", "paper_lowered_relative", "paper"),
            ),
            template="{:.3f}",
            reference=(1.0, "eager"),
        ),
        numbers=_numbers,
        paper={
            "resnet50, tensorrt, batch 256": pairs.paper(eager=(0.2443, 0.00119), lowered=(0.0662, 0.00022)),
            "learning_to_paint_actor, tensorrt, batch 96": pairs.paper(
                eager=(0.0068, 0.0003), lowered=(0.0044, 0.0001)
            ),
        },
    )
)
