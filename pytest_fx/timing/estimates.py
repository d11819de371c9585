"""Estimates of the time of a program's call on this machine: ``--fx-estimate``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from fx import GraphModule
from fx.analysis.kernel_calls import record_calls
from fx.interpreter import positional
from fx.simulation.calibration import calibrated_here, file_of_machine
from fx.simulation.measured_times import MeasuredTimes
from fx.simulation.run_times import estimate_calls
from pytest_fx.harness.evaluation import Arguments


def estimated_seconds(programs: Iterable[Any], arguments: Arguments, folder: Path) -> Iterator[float | None]:
    """Yield the seconds of a call of each program, from kernels that are measured one by one and kept in ``folder``.

    Yield None for a program that is not captured, has parts with kernels of a backend, or cannot be followed without
    the elements of its tensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "times.lock"):  # otherwise tests side by side would each measure the machine
        device = calibrated_here(folder)
        times = MeasuredTimes(device, file_of_machine(folder, "times"))
        for program in programs:
            is_captured = isinstance(program, GraphModule) and not getattr(program.meta.get("lowering"), "parts", ())
            yield _estimated(program, arguments, times) if is_captured else None
        times.save()


def _estimated(program: GraphModule, arguments: Arguments, times: MeasuredTimes) -> float | None:
    try:
        calls = record_calls(program, *positional(program, arguments.args, arguments.kwargs))
    except Exception:  # operations, such as a backend's engine, may raise anything on tensors without elements
        return None
    return estimate_calls(calls, times.device, times).seconds
