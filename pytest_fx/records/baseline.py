"""An earlier run to compare with: speed-ups, as ratios and by their intervals, and how much passes changed."""

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
"""A speed-up above it, or below its inverse, is none that was measured."""
_FILES = "give .pytest_fx/last_run.json of an earlier run, or what --benchmark-json wrote in one"
"""What can be compared with."""

Key = tuple[str, str, int | None, str, str, int]
"""Model, pass, batch, dtype, device and threads: what must agree for two speed-ups to be compared."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A speed-up, and what it was measured on."""

    model: str
    """The model's name, without its batch."""
    program: str
    """The pass, or what else made the program, without the threads."""
    batch: int | None
    """Samples in the inputs, where that can be chosen."""
    dtype: str
    """The working dtype."""
    device: str
    """Where it ran: ``"cpu"`` or ``"cuda"``."""
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
    """The name of the host; None where the record is older than that."""

    @property
    def key(self) -> Key:
        """Return what another measurement must share to be compared with this one."""
        return self.model, self.program, self.batch, self.dtype, self.device, self.threads

    def __str__(self) -> str:
        return f"{self.speedup:.3f} ({self.low:.3f} to {self.high:.3f}) on {self.machine}"


@dataclass(frozen=True, slots=True)
class Change:
    """How much longer a program takes than in an earlier run, relative to eager in each."""

    before: Measurement
    """The speed-up of the earlier run."""
    now: Measurement
    """The speed-up of this run."""

    @property
    def slowdown(self) -> float:
        """The share by which the program takes longer; 0.05 for 5 %, negative where it became faster."""
        return self.before.speedup / self.now.speedup - 1

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of :attr:`slowdown`, from those of both speed-ups.

        The runs are independent, so the distances of the limits from the medians add in quadrature, on a logarithmic
        scale where ratios are differences, each side for itself (the method of variance estimates recovery, Zou and
        Donner 2008). It is wider than either run's own.
        """
        centre = math.log(self.before.speedup / self.now.speedup)
        down = math.hypot(*(math.log(a / b) for a, b in _sides(self.before, self.now)))
        up = math.hypot(*(math.log(a / b) for a, b in _sides(self.now, self.before)))
        return math.expm1(centre - down), math.expm1(centre + up)

    @property
    def verdict(self) -> str:
        """``"slower"`` or ``"faster"`` than before, or ``"no change shown"`` where the interval holds 0."""
        low, high = self.interval
        if low <= 0.0 <= high:
            return "no change shown"
        return "slower" if low > 0.0 else "faster"

    def exceeds(self, limit: float) -> bool:
        """Return whether the whole interval lies above ``limit``: what noise can explain is not a slowdown."""
        return self.interval[0] > limit

    def too_noisy(self, limit: float | None = None) -> bool:
        """Return whether the interval holds both no change and more than ``limit``, or 10 %: it says nothing."""
        low, high = self.interval
        return low <= 0.0 and high > (WIDEST_INTERVAL if limit is None else limit)


def _sides(lower: Measurement, upper: Measurement) -> tuple[tuple[float, float], tuple[float, float]]:
    """The quotients that lead from the median of one down to its lower limit, and of the other up to its upper."""
    return (lower.speedup, lower.low), (upper.high, upper.speedup)


@dataclass(frozen=True, slots=True)
class MatchCount:
    """How often a pass matched in a model, and how much it changed there."""

    model: str
    """The model's name, without its batch."""
    program: str
    """What tables call the program that the pass made."""
    edits: int | None
    """Edits that the pass made; None where it does not say which it makes."""
    nodes_before: int
    """Nodes that the graph had before the pass."""
    nodes_after: int
    """Nodes that it had afterwards."""
    changed: bool
    """Whether the pass changed anything."""

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> MatchCount | None:
        """Return the count in a row of the summary, if it has one."""
        known: dict[str, Any] = {field.name: row.get(field.name) for field in fields(cls)}
        if not has_types(cls, known):
            return None
        known["model"] = re.sub(r", batch \d+$", "", known["model"])
        return cls(**known)

    def less_than(self, before: MatchCount) -> bool:
        """Return whether the pass changed less than ``before``: fewer edits, fewer nodes taken away, or nothing."""
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
    """The speed-ups of an earlier run, and what passes changed in it."""

    name: str
    """The file, as it was given."""
    measurements: Mapping[Key, Measurement]
    """Its rows; the last one where several agree in all that matters."""
    match_counts: Mapping[tuple[str, str], MatchCount]
    """What passes changed, by model and program."""

    @classmethod
    def of(cls, name: str, measurements: Iterable[Measurement], match_counts: Iterable[MatchCount] = ()) -> Baseline:
        """Return the baseline of these rows."""
        return cls(
            name,
            {measurement.key: measurement for measurement in measurements},
            {(match_count.model, match_count.program): match_count for match_count in match_counts},
        )

    def change(self, now: Measurement) -> Change | None:
        """Return how ``now`` compares with its row, or None if there is no row for it, or another host measured it."""
        before = self.measurements.get(now.key)
        return None if before is None or self.measured_elsewhere(now) is not None else Change(before, now)

    def measured_elsewhere(self, now: Measurement) -> str | None:
        """Return the name of the host that measured the row of ``now``, if that was another one."""
        before = self.measurements.get(now.key)
        if before is None or None in (before.host, now.host) or before.host == now.host:
            return None
        return before.host

    def as_data(self) -> dict[str, Any]:
        """Return what :meth:`from_data` makes the baseline of in another process."""
        return {
            "name": self.name,
            "measurements": [asdict(one) for one in self.measurements.values()],
            "match_counts": [asdict(one) for one in self.match_counts.values()],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Baseline:
        """Return the baseline that :meth:`as_data` described."""
        measurements = (Measurement(**one) for one in data["measurements"])
        return cls.of(data["name"], measurements, (MatchCount(**one) for one in data["match_counts"]))


BASELINE = pytest.StashKey["Baseline | None"]()
"""Where a :class:`pytest.Config` keeps the run to compare with."""


def chosen_baseline(config: pytest.Config) -> Baseline | None:
    """Return the run that ``--fx-baseline`` names, or None.

    A worker gets it from the controller, whose files it need not have. Raises :class:`pytest.UsageError` for a file
    that is missing or holds nothing to compare with.
    """
    options = config.stash[OPTIONS]
    if options.baseline is None:
        return None
    given: Mapping[str, Any] | None = getattr(config, "workerinput", {}).get("fx_baseline")
    if given is not None:
        return Baseline.from_data(given)
    on_command_line = config.getoption("fx_baseline") is not None
    folder = config.invocation_params.dir if on_command_line else config.rootpath
    return read_baseline(folder / options.baseline, options.baseline)


def read_baseline(path: Path, name: str) -> Baseline:
    """Return the timings in ``path``: a record or a journal of a run of the plugin, or pytest-benchmark's JSON.

    Raises :class:`pytest.UsageError`, which speaks of ``name``, for a file that cannot be read or holds none.
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
    """Return what :func:`~pytest_fx.records.records.describe_machine` found out, in a few words."""
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
    """The JSON objects in ``text``: it is one, or has one in each line, of which the last may be cut off."""
    for part in (text,) if parsed(text) is not None else text.splitlines():
        if (document := parsed(part)) is not None:
            yield document


def _lists(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found: Any = document.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _measurement(info: Any, machine: Any) -> Iterator[Measurement]:
    """The measurement that ``info`` describes, if it describes a whole one."""
    if not isinstance(info, dict):
        return
    known: dict[str, Any] = {field.name: info.get(field.name) for field in fields(Measurement)}
    known["program"] = info.get("pass")
    interval = info.get("speedup_interval")
    known["low"], known["high"] = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
    known["machine"] = describe(machine) if isinstance(machine, dict) else "a machine that is not described"
    if known["host"] is None and isinstance(machine, dict):
        known["host"] = machine.get("host")
    if has_types(Measurement, known):
        found = Measurement(**known)
        if 1 / LARGEST < found.low <= found.speedup <= found.high < LARGEST:
            yield found
