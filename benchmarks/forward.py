"""The cost of the generated forward and an Interpreter relative to eager, and of guards relative to no guards.

The programs are many tiny functions, many tiny modules, and real models. Programs with guards were captured with
example inputs.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

import fx
from model_zoo import get_model

from .paired import LIBRARIES, Table, each, parse
from .programs import chain, small_blocks, small_functions, small_modules


def compare_with_eager(table: Table, name: str, module: Any, inputs: tuple[Any, ...], rounds: int, goal: str) -> None:
    """Call the module, and the program that each library captured, on the same inputs."""
    runs = {"eager": module} | {label: library.symbolic_trace(module) for label, library in LIBRARIES.items()}
    table.measure(name, each(lambda run: run(*inputs), runs), rounds=rounds, goal=goal)


class Halved(nn.Module):
    """A layer that branches on the rank, dtype and sizes of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Subtract the mean if the input has several rows in float32, then apply the layer."""
        if x.dim() == 2 and x.shape[1] == 64 and x.dtype == torch.float32:
            x = x - x.mean(0) if x.shape[0] > 1 else x
        return torch.relu(self.layer(x))


def compare_guards(table: Table, name: str, module: Any, inputs: tuple[Any, ...], rounds: int, goal: str) -> None:
    """Call a program that was captured with example inputs, with its guards and without."""
    guarded = fx.symbolic_trace(module, example_inputs=inputs)
    runs = {"no guards": fx.passes.RemoveChecks(guards=True)(copy.deepcopy(guarded)), "guards": guarded}
    name = f"{name}, {len(guarded.guards)} guards"
    table.measure(name, each(lambda run: run(*inputs), runs), rounds=rounds, goal=goal)


def compare_interpreters(table: Table, size: int, rounds: int) -> None:
    """Run a chain node by node in each library's Interpreter."""
    eager, x = chain(size), torch.ones(1)
    runs = {label: library.Interpreter(library.symbolic_trace(eager)).run for label, library in LIBRARIES.items()}
    contenders = each(lambda run: run(x), {"eager": eager, **runs})
    table.measure_operations("Interpreter", size, contenders, rounds=rounds, goal="2 (under 5 µs)")


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=41)
    table = Table("eager", *LIBRARIES)
    x = torch.ones(1)
    with torch.no_grad():
        compare_with_eager(table, "200 functions", small_functions(200), (x,), options.rounds, "at most 0.93")
        compare_with_eager(table, "200 modules in blocks", small_blocks(200), (x,), options.rounds, "at most 1.0")
        compare_with_eager(table, "200 nested modules", small_modules(200), (x,), options.rounds, "at most 1.0")
        model = get_model("resnet50")
        inputs = tuple(model.example_inputs(1))
        rounds = 5 if options.quick else options.rounds // 2
        compare_with_eager(table, "resnet50, batch 1", model.build().eval(), inputs, rounds, "at most 1.0")
        for size in [1_000] if options.quick else [1_000, 10_000]:
            compare_interpreters(table, size, options.rounds // 2)
        guards = Table("no guards", "guards")
        layers = nn.Sequential(*(Halved() for _ in range(20))).eval()
        for batch, goal in ((1, "at most 1.1"), (256, "at most 1.01")):
            compare_guards(guards, f"20 layers, batch {batch}", layers, (torch.ones(batch, 64),), options.rounds, goal)


if __name__ == "__main__":
    main()
