"""Analyses compared with torch.fx's ``FakeTensorProp``: ResNet50, and chains of 1,000 to 100,000 operations.

All analyses run in one thread, and only its time is measured, so that other processes do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import fx
from fx.analysis.cost import estimate_cost
from fx.analysis.memory import activation_memory
from fx.analysis.symbolic_shapes import symbolic_shapes
from fx.passes.shape_prop import ShapeProp
from model_zoo import get_model

from .paired import Contender, Table, parse, sizes
from .programs import chain

NAMES = ("torch.fx", "fake", "cost", "memory", "symbolic")


def ways_of(module: Any, inputs: tuple[torch.Tensor, ...], ours: dict[str, Callable[[], Any]]) -> dict[str, Contender]:
    """Return ``ours``, and torch.fx's fake tensors on the same module, as contenders."""
    theirs = torch.fx.symbolic_trace(module)
    ways: dict[str, Callable[[], Any]] = {
        "torch.fx": lambda: FakeTensorProp(theirs, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*inputs),
        **ours,
    }
    return {name: Contender(lambda _, way=way: way()) for name, way in ways.items()}


def measure_model_and_chains(
    table: Table,
    options: Any,
    goal: str,
    made_for: Callable[[Any, tuple[torch.Tensor, ...], bool], dict[str, Contender]],
) -> None:
    """Measure ResNet50, and one operation of chains of increasing length.

    ``made_for`` makes the contenders for a module and its inputs; its last argument is True for ResNet50.
    """
    model = get_model("resnet_tiny" if options.quick else "resnet50")
    runs = made_for(model.build(), model.example_inputs(batch=1), True)
    with torch.no_grad():
        table.measure(model.name, runs, rounds=options.rounds, goal=goal, clock=time.thread_time)
        for size in sizes(options):
            runs = made_for(chain(size), (torch.ones(1),), False)
            table.measure_operations(
                "a chain", size, runs, rounds=options.rounds, goal=f"{goal}, flat", clock=time.thread_time
            )


def contenders(module: Any, inputs: tuple[torch.Tensor, ...], is_model: bool) -> dict[str, Contender]:
    ours = fx.symbolic_trace(module)
    shape: tuple[Any, ...] = ("batch", 3, "h", "w") if is_model else ("n",)
    ways: dict[str, Callable[[], Any]] = {
        "fake": lambda: ShapeProp(ours, fake=True).propagate(*inputs),
        "cost": lambda: estimate_cost(ours, *inputs),
        "memory": lambda: activation_memory(ours, *inputs),
        "symbolic": lambda: symbolic_shapes(ours, shape),
    }
    return ways_of(module, inputs, ways)


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=21)
    measure_model_and_chains(Table(*NAMES), options, "1.5", contenders)


if __name__ == "__main__":
    main()
