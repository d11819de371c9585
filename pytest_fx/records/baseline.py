"""An earlier run to compare with: speed-ups as ratios with intervals, and the number of changes that passes made."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from pytest_fx.options import OPTIONS, WIDEST_INTERVAL
from pytest_fx.records.reading import has_types, parsed

LARGEST = 1e6
"""A speed-up above it, or below its inverse, was not measured."""
_FILES = "give .pytest_fx/last_run.json of an earlier run, or what --benchmark-json wrote in one"
"""The files that can be compared with."""

Key = tuple[str, str, int | None, str, str, int]
"""Model, pass, batch, dtype, device and threads: speed-ups are compared if all of these agree."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A speed-up, and the conditions of its measurement."""

    model: str
    """The model's name, without its batch."""
    program: str
    """The pass, or another source of the program, without the threads."""
    batch: int | None
    """Samples in the inputs, if that can be chosen."""
    dtype: str
    """The working dtype."""
    device: str
    """The device that it ran on: ``"cpu"`` or ``"cuda"``."""
    threads: int
    """Threads that PyTorch computed with."""
    speedup: float
    """Median of the ratios of pairs, eager over transformed."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    """Upper end of its 95 % interval."""
    machine: str
    """Host, processor, versions and commit, in words."""
    host: str | None = None
    """The name of the host; None in records that are older than this field."""

    @property
    def key(self) -> Key:
        """Return the part that must agree for two measurements to be compared."""
        return self.model, self.program, self.batch, self.dtype, self.device, self.threads

    def __str__(self) -> str:
        return f"{self.speedup:.3f} ({self.low:.3f} to {self.high:.3f}) on {self.machine}"


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a program's time since an earlier run, relative to eager in each."""

    before: Measurement
    """The speed-up of the earlier run."""
    now: Measurement
    """The speed-up of this run."""

    @property
    def slowdown(self) -> float:
        """The share by which the program takes longer; 0.05 for 5 %, negative if it became faster."""
        return self.before.speedup / self.now.speedup - 1

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of :attr:`slowdown`, from those of both speed-ups.

        The runs are independent, so the distances of the limits from the medians add in quadrature. They are taken on a
        logarithmic scale, where ratios are differences, and each side for itself (the method of variance estimates
        recovery, Zou and Donner 2008). The interval is wider than either run's own.
        """
        centre = math.log(self.before.speedup / self.now.speedup)
        down = math.hypot(*(math.log(a / b) for a, b in _sides(self.before, self.now)))
        up = math.hypot(*(math.log(a / b) for a, b in _sides(self.now, self.before)))
        return math.expm1(centre - down), math.expm1(centre + up)

    @property
    def verdict(self) -> str:
        """``"slower"`` or ``"faster"`` than before, or ``"no change shown"`` if the interval contains 0."""
        low, high = self.interval
        if low <= 0.0 <= high:
            return "no change shown"
        return "slower" if low > 0.0 else "faster"

    def exceeds(self, limit: float) -> bool:
        """Return whether the whole interval lies above ``limit``: a change that noise can explain is not a slowdown."""
        return self.interval[0] > limit

    def too_noisy(self, limit: float | None = None) -> bool:
        """Return whether the interval contains both 0 and more than ``limit``, or 10 %: it decides nothing."""
        low, high = self.interval
        return low <= 0.0 and high > (WIDEST_INTERVAL if limit is None else limit)


def _sides(lower: Measurement, upper: Measurement) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two pairs to divide: the median and lower limit of one, and the upper limit and median of the other."""
    return (lower.speedup, lower.low), (upper.high, upper.speedup)


@dataclass(frozen=True, slots=True)
class MatchCount:
    """The number of matches of a pass in a model, and its changes there."""

    model: str
    """The model's name, without its batch."""
    program: str
    """The program that the pass made, as tables call it."""
    edits: int | None
    """Edits that the pass made; None if it does not report its edits."""
    nodes_before: int
    """Nodes of the graph before the pass."""
    nodes_after: int
    """Nodes of the graph after the pass."""
    changed: bool
    """True if the pass changed anything."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> MatchCount | None:
        """Return the count in a row of the summary, if it has one."""
        values: dict[str, Any] = {field.name: row.get(field.name) for field in fields(cls)}
        if not has_types(cls, values):
            return None
        values["model"] = re.sub(r", batch \d+$", "", values["model"])
        return cls(**values)

    def less_than(self, before: MatchCount) -> bool:
        """Return whether the pass changed less than ``before``: fewer edits, fewer nodes removed, or nothing."""
        edits, removed = (before.edits or 0) - (self.edits or 0), before.nodes_before - before.nodes_after
        fewer_edits = self.edits is not None and before.edits is not None and edits > 0
        fewer_nodes = removed > max(self.nodes_before - self.nodes_after, 0)
        return fewer_edits or fewer_nodes or (before.changed and not self.changed)

    def __str__(self) -> str:
        if not self.changed:
            return f"nothing in {self.nodes_before} nodes"
        edits = "" if self.edits is None else f"{self.edits} edit(s), "
        return f"{edits}{self.nodes_before} -> {self.nodes_after} nodes"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The speed-ups of an earlier run, and the changes that passes made in it."""

    name: str
    """The file, as it was given."""
    measurements: Mapping[Key, Measurement]
    """Its rows, by key; the last one of those with equal keys."""
    match_counts: Mapping[tuple[str, str], MatchCount]
    """The changes of passes, by model and program."""

    @classmethod
    def of(cls, name: str, measurements: Iterable[Measurement], match_counts: Iterable[MatchCount] = ()) -> Baseline:
        """Return the baseline of these rows."""
        return cls(
            name,
            {measurement.key: measurement for measurement in measurements},
            {(match_count.model, match_count.program): match_count for match_count in match_counts},
        )

    def change(self, now: Measurement) -> Change | None:
        """Return the change from its row to ``now``, or None if there is no such row, or another host measured it."""
        before = self.measurements.get(now.key)
        return None if before is None or self.measured_elsewhere(now) is not None else Change(before, now)

    def measured_elsewhere(self, now: Measurement) -> str | None:
        """Return the name of the host that measured the row of ``now``, if it is another host."""
        before = self.measurements.get(now.key)
        if before is None or None in (before.host, now.host) or before.host == now.host:
            return None
        return before.host

    def as_data(self) -> dict[str, Any]:
        """Return the data from which :meth:`from_data` rebuilds the baseline in another process."""
        return {
            "name": self.name,
            "measurements": [asdict(measurement) for measurement in self.measurements.values()],
            "match_counts": [asdict(match_count) for match_count in self.match_counts.values()],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Baseline:
        """Return the baseline that :meth:`as_data` described."""
        measurements = (Measurement(**fields_of) for fields_of in data["measurements"])
        return cls.of(data["name"], measurements, (MatchCount(**fields_of) for fields_of in data["match_counts"]))


BASELINE = pytest.StashKey["Baseline | None"]()
"""The key under which a :class:`pytest.Config` keeps the run to compare with."""


def chosen_baseline(config: pytest.Config) -> Baseline | None:
    """Return the run that ``--fx-baseline`` names, or None.

    A worker gets it from the controller, whose files it need not have. Raises :class:`pytest.UsageError` if a file is
    missing or has nothing to compare with.
    """
    options = config.stash[OPTIONS]
    if options.baseline is None:
        return None
    sent: Mapping[str, Any] | None = getattr(config, "workerinput", {}).get("fx_baseline")
    if sent is not None:
        return Baseline.from_data(sent)
    on_command_line = config.getoption("fx_baseline") is not None
    folder = config.invocation_params.dir if on_command_line else config.rootpath
    return read_baseline(folder / options.baseline, options.baseline)


def read_baseline(path: Path, name: str) -> Baseline:
    """Return the timings in ``path``: a record or a journal of a run of the plugin, or pytest-benchmark's JSON.

    Raises :class:`pytest.UsageError`, which calls the file ``name``, if it cannot be read or has no timings.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        what = f"--fx-baseline: cannot read {name}: {reason}"
        raise pytest.UsageError(f"{what}\n  try    {_FILES}") from None
    measurements, match_counts = list(_measurements(text)), list(_match_counts(text))
    if not measurements and not match_counts:
        raise pytest.UsageError(f"--fx-baseline: {name} holds no timings of pytest-fx: {_FILES}")
    return Baseline.of(name, measurements, match_counts)


def describe(machine: Mapping[str, Any]) -> str:
    """Return the findings of :func:`~pytest_fx.records.records.describe_machine` in a few words."""
    versions: Any = machine.get("versions")
    torch = versions.get("torch", "?") if isinstance(versions, dict) else "?"
    named = (machine.get("device"), machine.get("machine"), f"torch {torch}")
    commit, host = machine.get("commit"), machine.get("host")
    named = (f"host {host}" if host else None, *named)
    return ", ".join(str(part) for part in (*named, f"commit {commit}" if commit else None) if part)


def _measurements(text: str) -> Iterator[Measurement]:
    for document in _documents(text):
        for record in _lists(document, "records") or [document]:
            timing: Any = record.get("timing")
            if isinstance(timing, dict):
                yield from _measurement(timing.get("info"), record.get("machine"))
        machine_info: Any = document.get("machine_info")
        machine = machine_info.get("fx") if isinstance(machine_info, dict) else None
        for benchmark in _lists(document, "benchmarks"):
            info: Any = benchmark.get("extra_info")
            if isinstance(info, dict) and info.get("role") == "transformed":
                yield from _measurement(info, machine)


def _match_counts(text: str) -> Iterator[MatchCount]:
    for document in _documents(text):
        for record in _lists(document, "records") or [document]:
            row: Any = record.get("row")
            if isinstance(row, dict) and (match_count := MatchCount.of_row(row)) is not None:
                yield match_count


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in ``text``: the whole text, or one in each line, of which the last may be cut off."""
    for part in (text,) if parsed(text) is not None else text.splitlines():
        if (document := parsed(part)) is not None:
            yield document


def _lists(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value: Any = document.get(name)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _measurement(info: Any, machine: Any) -> Iterator[Measurement]:
    """Yield the measurement that ``info`` describes, if the description is complete."""
    if not isinstance(info, dict):
        return
    values: dict[str, Any] = {field.name: info.get(field.name) for field in fields(Measurement)}
    values["program"] = info.get("pass")
    interval = info.get("speedup_interval")
    values["low"], values["high"] = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
    values["machine"] = describe(machine) if isinstance(machine, dict) else "a machine that is not described"
    if values["host"] is None and isinstance(machine, dict):
        values["host"] = machine.get("host")
    if has_types(Measurement, values):
        measurement = Measurement(**values)
        if 1 / LARGEST < measurement.low <= measurement.speedup <= measurement.high < LARGEST:
            yield measurement
