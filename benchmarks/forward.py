"""What the generated forward costs beside eager: many tiny functions, many tiny modules, and a real model."""

from __future__ import annotations

from typing import Any

import torch

from model_zoo import get_model

from .libraries import LIBRARIES
from .paired import Table, each, measure, parse
from .programs import small_blocks, small_functions, small_modules


def compare_with_eager(table: Table, name: str, module: Any, inputs: tuple[Any, ...], rounds: int, goal: str) -> None:
    """Call the module, and what each library made of it, on the same inputs."""
    runs = {"eager": module} | {label: library.symbolic_trace(module) for label, library in LIBRARIES.items()}
    table.add(measure(name, each(lambda run: run(*inputs), runs), baseline="eager", rounds=rounds, goal=goal))


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=41)
    table = Table(("eager", *LIBRARIES))
    one = torch.ones(1)
    with torch.no_grad():
        compare_with_eager(table, "200 functions", small_functions(200), (one,), options.rounds, "at most 0.93")
        compare_with_eager(table, "200 modules in blocks", small_blocks(200), (one,), options.rounds, "at most 1.0")
        compare_with_eager(table, "200 nested modules", small_modules(200), (one,), options.rounds, "at most 1.0")
        model = get_model("resnet50")
        inputs = tuple(model.example_inputs(1))
        rounds = 5 if options.quick else options.rounds // 2
        compare_with_eager(table, "resnet50, batch 1", model.build().eval(), inputs, rounds, "at most 1.0")


if __name__ == "__main__":
    main()
