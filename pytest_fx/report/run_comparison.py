"""Two runs side by side: rows that are new or gone, verdicts that changed, and programs that became slower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_fx.records.baseline import Change, Measurement
from pytest_fx.report.reported_run import Key, ReportedEntry

LEAST_CHANGE = 0.01
"""Minimum relative change of time that is reported: two copies of one program differ by as much."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one row since an earlier run."""

    kind: str
    """``"new"``, ``"gone"``, ``"verdict"``, ``"slower"``, ``"faster"`` or ``"column"``."""
    model: str
    """The model's name."""
    program: str
    """The program's name."""
    text: str
    """A description of the change."""

    @property
    def is_worse(self) -> bool:
        """True if the program is slower, gone, or has a new verdict other than right."""
        return self.kind in ("slower", "gone") or (self.kind == "verdict" and not self.text.endswith("is right"))

    def __str__(self) -> str:
        return f"{self.program} of {self.model}: {self.text}"


def changes_between(before: Mapping[Key, ReportedEntry], now: Mapping[Key, ReportedEntry]) -> list[RowChange]:
    """Return the changes between two runs, the most urgent first.

    A program is slower, or faster, if the 95 % interval of the change lies beyond 1 %. Timings of two hosts are not
    compared.
    """
    changes = [*_rows_of_one(before, now), *_rows_of_both(before, now)]
    return sorted(changes, key=lambda change: _ORDER.index(change.kind))


_ORDER = ("verdict", "slower", "gone", "column", "new", "faster")


def _rows_of_one(before: Mapping[Key, ReportedEntry], now: Mapping[Key, ReportedEntry]) -> Iterator[RowChange]:
    for key, entry in now.items():
        if key not in before:
            yield RowChange("new", *key, entry.verdict)
    for key, entry in before.items():
        if key not in now:
            yield RowChange("gone", *key, f"was {entry.verdict}")


def _rows_of_both(before: Mapping[Key, ReportedEntry], now: Mapping[Key, ReportedEntry]) -> Iterator[RowChange]:
    for key, entry in now.items():
        old = before.get(key)
        if old is None:
            continue
        if old.verdict != entry.verdict:
            yield RowChange("verdict", *key, f"was {old.verdict}, is {entry.verdict}")
        for heading, cell in entry.columns.items():
            if old.columns.get(heading, cell) != cell:
                yield RowChange("column", *key, f"{heading} was {old.columns[heading]}, is {cell}")
        change = change_of(old, entry)
        if change is None:
            continue
        low, high = change.interval
        if low > LEAST_CHANGE or high < -LEAST_CHANGE:
            word = "slower" if low > 0 else "faster"
            text = f"{change.slowdown:+.1%} time, relative to eager ({low:+.1%} to {high:+.1%})"
            yield RowChange(word, *key, text)


def change_of(before: ReportedEntry, now: ReportedEntry) -> Change | None:
    """Return the change of a program's time; None if it was not measured in both runs on one host."""
    measured = _measurement(before), _measurement(now)
    if measured[0] is None or measured[1] is None or before.host != now.host:
        return None
    return Change(measured[0], measured[1])


def _measurement(entry: ReportedEntry) -> Measurement | None:
    if entry.speedup is None or entry.low is None or entry.high is None:
        return None
    if not 0 < entry.low <= entry.speedup <= entry.high:
        return None
    interval = entry.speedup, entry.low, entry.high
    return Measurement(entry.model, entry.program, None, "", "", 0, *interval, entry.host or "", entry.host)
