"""Programs lowered to oneDNN beside eager and torch.fx's fuse; lowering time; dividing long programs (section 6.4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse

import fx
from fx.lowering.partition import find_regions
from fx.passes import FuseConvBN
from model_zoo import get_model

from .paired import Contender, Table, each, measure, parse


def alternating(operations: int) -> tuple[fx.Graph, set[fx.Node]]:
    """A chain with a skip connection around each step, of which every second operation is supported."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    supported: set[fx.Node] = set()
    for index in range(operations // 2):
        step = graph.call_function(torch.neg if index % 2 else torch.relu, (value,))
        value = graph.call_function(torch.add, (step, value))
        supported.update([step, value] if index % 3 else [value])
    graph.output(value)
    return graph, supported


def run_models(names: tuple[str, ...], batches: tuple[int, ...], rounds: int) -> None:
    table = Table(("eager", "torch.fx fuse", "fuse-conv-bn", "onednn"))
    for name in names:
        model = get_model(name)
        module = model.build().eval()
        for batch in batches:
            inputs = model.example_inputs(batch=batch)
            programs: dict[str, nn.Module] = {
                "eager": module,
                "torch.fx fuse": fuse(module),
                "fuse-conv-bn": FuseConvBN()(fx.symbolic_trace(module)),
                "onednn": fx.lower(fx.symbolic_trace(module), "onednn", inputs),
            }
            goal = "1 / 1.40 = 0.714" if name == "resnet50" else ""
            with torch.no_grad():
                contenders = each(lambda program, inputs=inputs: program(*inputs), programs)
                row = f"{name}, batch {batch}"
                table.add(measure(row, contenders, baseline="eager", rounds=rounds, goal=goal))


def run_lowering(names: tuple[str, ...], rounds: int) -> None:
    table = Table(("torch.fx fuse", "lower", "with shapes"))
    for name in names:
        model = get_model(name)
        module, inputs = model.build().eval(), model.example_inputs(batch=1)
        contenders = {
            "torch.fx fuse": Contender(lambda _, module=module: fuse(module)),
            "lower": Contender(lambda _, module=module: fx.lower(fx.symbolic_trace(module))),
            "with shapes": Contender(lambda _, m=module, i=inputs: fx.lower(fx.symbolic_trace(m), "onednn", i)),
        }
        table.add(
            measure(
                f"capture and lower to oneDNN, {name}",
                contenders,
                baseline="torch.fx fuse",
                rounds=rounds,
                goal="under 1 s" if name == "resnet50" else "",
            )
        )


def run_partition(sizes: tuple[int, ...], rounds: int) -> None:
    table = Table(("find_regions",))
    for size in sizes:
        graph, supported = alternating(size)
        work: dict[str, Any] = {
            "find_regions": Contender(lambda _, graph=graph, supported=supported: find_regions(graph, supported))
        }
        name = f"dividing {size:,} operations, by operation"
        goal = "the same at every length"
        table.add(measure(name, work, baseline="find_regions", rounds=rounds, operations=size, goal=goal))


def main() -> None:
    """Print the tables."""
    options = parse(__doc__, rounds=15)
    large = ("resnet50", "learning_to_paint_actor")
    run_models(("resnet50",) if options.quick else large, (1,) if options.quick else (1, 8), options.rounds)
    run_lowering(("resnet50",), min(options.rounds, 7))
    run_partition((1000, 10_000) if options.quick else (1000, 10_000, 100_000), 5)


if __name__ == "__main__":
    main()
