"""Simulation beside torch.fx's ``FakeTensorProp``: ResNet50, and chains of 1,000 to 100,000 operations.

Measured are the list of kernels, a whole simulation on a device that is known, and one on this machine as it was
measured. How far estimates are off is the table ``simulation`` of the evaluation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import fx
from fx.analysis.calibration import calibrate
from fx.analysis.devices import Device
from fx.analysis.kernel_calls import record_calls
from fx.analysis.memory import activation_memory
from fx.analysis.simulation import estimate_run, simulate
from model_zoo import get_model

from .paired import Contender, Table, measure, parse, rounds_for
from .programs import chain

NAMES = ("torch.fx", "calls", "simulate", "here")


def contenders(module: Any, inputs: tuple[torch.Tensor, ...], here: Device) -> dict[str, Contender]:
    theirs, ours = torch.fx.symbolic_trace(module), fx.symbolic_trace(module)
    calls, memory = record_calls(ours, *inputs), activation_memory(ours, *inputs)
    ways: dict[str, Callable[[], Any]] = {
        "torch.fx": lambda: FakeTensorProp(theirs, FakeTensorMode(allow_non_fake_inputs=True)).propagate(*inputs),
        "calls": lambda: record_calls(ours, *inputs),
        "simulate": lambda: simulate(ours, "A100", *inputs),
        "here": lambda: estimate_run(calls, memory, here),
    }
    return {name: Contender(lambda _, way=way: way()) for name, way in ways.items()}


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=11)
    with tempfile.TemporaryDirectory() as folder:
        here = calibrate(Path(folder, "machine.json"))
    table = Table(NAMES)
    model = get_model("resnet_tiny" if options.quick else "resnet50")
    made = contenders(model.build(), model.example_inputs(batch=1), here)
    with torch.no_grad():
        table.add(measure(model.name, made, baseline="torch.fx", rounds=options.rounds, goal="3"))
        for size in [1_000] if options.quick else [1_000, 10_000, 100_000]:
            made = contenders(chain(size), (torch.ones(1),), here)
            table.add(
                measure(
                    f"one operation of {size:,}",
                    made,
                    baseline="torch.fx",
                    rounds=rounds_for(size, options.rounds),
                    operations=size,
                    goal="3, flat",
                )
            )


if __name__ == "__main__":
    main()
