"""Times of kernels that were measured on this machine: once per operator and sizes, remembered, also on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fx.analysis.kernel_calls import KernelCall
from fx.errors import AnalysisError
from fx.simulation.devices import Device, Machine, refuse_other_machine, this_machine, write_json
from fx.simulation.kernel_times import LAUNCH, KernelTime, Roofline
from fx.simulation.replay import Replay, distances_of

MEASURED = "measured kernels"
"""The assumption that a kernel takes in a program what it takes alone."""
_SPREAD = 0.05


class MeasuredTimes:
    """Runs each kernel of a program once for each set of sizes, and remembers what it took.

    >>> from fx.simulation.calibration import calibrate
    >>> from fx.simulation.run_times import simulate
    >>> device = calibrate()                                              # doctest: +SKIP
    >>> times = MeasuredTimes(device, "times.json")                       # doctest: +SKIP
    >>> simulate(program, device, *inputs, times=times).seconds           # doctest: +SKIP
    0.0747
    """

    name = "measured"

    def __init__(self, device: Device, path: str | Path | None = None) -> None:
        """A memory of times.

        Args:
            device: this machine, as :func:`~fx.simulation.calibration.calibrate` returns it. What cannot be run alone
                takes what its roofline says.
            path: a file to remember in; :meth:`save` writes it.

        Raises:
            AnalysisError: the device or the file is of another machine.
        """
        if device.calibration is None:
            raise AnalysisError(
                f"kernels cannot be run on {device.name} from here",
                why="times are measured on this machine",
                remedy="give MeasuredTimes what calibrate() returns",
            )
        refuse_other_machine(device.calibration.machine, device.name)
        self.device = device
        self.refused: dict[str, str] = {}
        """Calls that cannot be run alone, by their keys, with the reason."""
        self._path = None if path is None else Path(path)
        self._known = _read(self._path) if self._path is not None and self._path.exists() else {}
        self._roofline = Roofline(device)
        self._replay = Replay()

    @property
    def spread(self) -> float:
        """Relative standard deviation of whole programs that is left when all else is right."""
        return 0.0 if self.device.calibration is None else self.device.calibration.measured

    def __len__(self) -> int:
        return len(self._known)

    def time_of(self, call: KernelCall) -> KernelTime:
        """Return what a call takes: as remembered, or measured now."""
        key = f"{call.key} {''.join(map(str, distances_of(call)))}"
        if key in self.refused:
            return self._roofline.time_of(call)
        if key not in self._known:
            try:
                self._known[key] = self._replay.seconds(call)
            except AnalysisError as error:
                self.refused[key] = str(error)
                return self._roofline.time_of(call)
        seconds = self._known[key]
        if call.cost is None:
            return KernelTime(seconds, LAUNCH, self.device.launch.spread)
        return KernelTime(seconds, MEASURED, _SPREAD)

    def save(self) -> None:
        """Write what is remembered to the file, whole or not at all.

        Raises:
            AnalysisError: no file was named.
        """
        if self._path is None:
            raise AnalysisError("there is no file to remember times in", remedy='MeasuredTimes(device, "times.json")')
        write_json(self._path, {"machine": asdict(this_machine()), "seconds": self._known})


def _read(path: Path) -> dict[str, float]:
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        machine = Machine(**data["machine"])
        known = {str(key): float(seconds) for key, seconds in data["seconds"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnalysisError(
            f"{path} holds no times that can be read", why=f"{type(error).__name__}: {error}", remedy="remove it"
        ) from error
    refuse_other_machine(machine, str(path), "name another file for this machine")
    return known
