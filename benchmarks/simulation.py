"""Simulation compared with torch.fx's ``FakeTensorProp``: ResNet50, and chains of 1,000 to 100,000 operations.

It times the list of kernels, a whole simulation on a known device, and one on this machine after calibration. The
errors of the estimates are in the evaluation's table ``simulation``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fx
from fx.analysis.kernel_calls import record_calls
from fx.analysis.memory import activation_memory
from fx.simulation.calibration import calibrate
from fx.simulation.devices import Device
from fx.simulation.run_times import estimate_run, simulate

from .analysis import measure_model_and_chains, ways_of
from .paired import Contender, Table, parse

NAMES = ("torch.fx", "calls", "simulate", "here")


def contenders(module: Any, inputs: tuple[torch.Tensor, ...], here: Device) -> dict[str, Contender]:
    ours = fx.symbolic_trace(module)
    calls, memory = record_calls(ours, *inputs), activation_memory(ours, *inputs)
    ways: dict[str, Callable[[], Any]] = {
        "calls": lambda: record_calls(ours, *inputs),
        "simulate": lambda: simulate(ours, "A100", *inputs),
        "here": lambda: estimate_run(calls, memory, here),
    }
    return ways_of(module, inputs, ways)


def main() -> None:
    """Print the table."""
    options = parse(__doc__, rounds=11)
    with tempfile.TemporaryDirectory() as folder:
        here = calibrate(Path(folder, "machine.json"))
    measure_model_and_chains(
        Table(*NAMES), options, "3", lambda module, inputs, is_model: contenders(module, inputs, here)
    )


if __name__ == "__main__":
    main()
