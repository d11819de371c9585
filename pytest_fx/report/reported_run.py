"""What a run found out, as lines of JSON in the folder of a report, and what is kept there of the runs before it.

``rows.jsonl`` begins with a line on the run; then there is a line for each row that was measured, each test that failed
and each that judged nothing. ``history.jsonl`` has a line for each earlier run, with its verdicts and speed-ups alone.
Lines that are cut off, or of a later schema, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pytest_fx.errors import ReportError
from pytest_fx.records.reading import has_types
from pytest_fx.records.records import read_records, write_atomically
from pytest_fx.report.columns import SummaryColumn
from pytest_fx.report.rows import SummaryRow, verdict_of

SCHEMA = 1
"""The version of what lines hold: a reader of this one takes no line of a later one."""
ROWS, HISTORY, PAGE, MARKDOWN = "rows.jsonl", "history.jsonl", "index.html", "summary.md"
"""Files of a report."""
MOST_RUNS = 20
"""Earlier runs that are kept."""

Key = tuple[str, str]
"""A model and a program by name, which have the batch and the threads in them."""


@dataclass(frozen=True, slots=True)
class ReportedRow:
    """All that the tests of a run found out about one program of one model."""

    row: SummaryRow
    """What the table at the end of the run shows."""
    tests: tuple[str, ...]
    """The tests that found it out."""
    timing: Mapping[str, Any] | None
    """The samples of its timing, with what they depend on, if it was timed."""
    machine: Mapping[str, Any]
    """The machine that it was found out on; of a timed one, where it was timed."""
    worker: str | None
    """The worker of pytest-xdist."""
    columns: Mapping[str, str]
    """What columns of users show of it, by their headings."""

    @property
    def key(self) -> Key:
        """Return what it is called by."""
        return self.row.model, self.row.program

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return verdict_of(self.row)


@dataclass(frozen=True, slots=True)
class ReportedEntry:
    """What is kept of a row when its run is over."""

    model: str
    """The model's name."""
    program: str
    """The program's name."""
    verdict: str
    """The verdict in a word."""
    host: str | None = None
    """The host that it was timed on."""
    speedup: float | None = None
    """Median of the ratios of paired calls, eager over transformed; None where it was not timed."""
    low: float | None = None
    """Lower end of its 95 % interval."""
    high: float | None = None
    """Upper end of its 95 % interval."""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """What columns of users show of it that are compared, by their headings."""

    @property
    def key(self) -> Key:
        """Return what it is called by."""
        return self.model, self.program

    @classmethod
    def of(cls, reported: ReportedRow, compared: Sequence[str] = ()) -> ReportedEntry:
        """Return what is kept of a row; no speed-up of a wrong program. ``compared`` are columns of users."""
        row = reported.row
        times = (row.speedup, row.speedup_low, row.speedup_high) if row.outcome is None else (None, None, None)
        columns = {heading: reported.columns[heading] for heading in compared if heading in reported.columns}
        return cls(row.model, row.program, reported.verdict, reported.machine.get("host"), *times, columns)

    def as_list(self) -> list[Any]:
        """Return the fields but the columns, numbers with five digits."""
        values = [getattr(self, name) for name in _LISTED]
        return [float(f"{value:.5g}") if isinstance(value, float) else value for value in values]


_LISTED = tuple(each.name for each in fields(ReportedEntry) if each.name != "columns")
"""The fields of an entry that its line of a history has in this order."""


@dataclass(slots=True)
class ReportedRun:
    """A run, with all that it found out."""

    run: dict[str, Any]
    """When it began and ended, what it was asked for, and how many tests had which outcome."""
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Lines on rows and tests, in the order in which they came."""

    def rows(self) -> list[ReportedRow]:
        """Return the rows, one for each program of each model, in the order of first appearance."""
        found: dict[Key, list[dict[str, Any]]] = {}
        for line in self.lines:
            if line["kind"] == "row":
                found.setdefault((line["row"]["model"], line["row"]["program"]), []).append(line)
        return [_merged(lines) for lines in found.values()]

    def headings(self, *, compared: bool = False) -> list[str]:
        """Return the headings of columns of users, of all or of those that are compared."""
        given: Any = self.run.get("columns")
        columns = [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
        return [str(one.get("heading")) for one in columns if one.get("compared") or not compared]

    def add_columns(self, columns: Sequence[SummaryColumn]) -> None:
        """Add what columns of users show of each row to the last of its lines."""
        if not columns:
            return
        self.run["columns"] = [{"heading": one.heading, "compared": one.is_compared} for one in columns]
        shown = {row.key: {one.heading: one.shown(row.row, verbose=True) for one in columns} for row in self.rows()}
        for line in reversed(self.lines):
            if line["kind"] == "row" and (cells := shown.pop((line["row"]["model"], line["row"]["program"]), None)):
                line["columns"] = cells

    def failures(self) -> list[dict[str, Any]]:
        """Return the lines on tests that failed."""
        return [line for line in self.lines if line["kind"] == "failure"]

    def entries(self) -> dict[Key, ReportedEntry]:
        """Return what is kept of the run when another one is reported in the same folder."""
        compared = self.headings(compared=True)
        return {row.key: ReportedEntry.of(row, compared) for row in self.rows()}

    @property
    def when(self) -> str:
        """When it began, and at which commit."""
        return _when(self.run)

    def write(self, folder: Path) -> None:
        """Replace ``rows.jsonl`` in ``folder``."""
        lines = [{"schema": SCHEMA, "kind": "run", **self.run}, *({"schema": SCHEMA, **line} for line in self.lines)]
        text = "".join(f"{json.dumps(line, default=str)}\n" for line in lines)
        write_atomically(folder / ROWS, text)


def _merged(lines: Sequence[dict[str, Any]]) -> ReportedRow:
    row = _row(lines[0]["row"])
    for line in lines[1:]:
        row = row.merged(_row(line["row"]))
    timed = next((line for line in reversed(lines) if line.get("timing")), None)
    last = timed or next((line for line in reversed(lines) if line.get("machine")), lines[-1])
    tests = tuple(dict.fromkeys(str(line["test"]) for line in lines))
    machine: dict[str, Any] = last.get("machine") or {}
    timing = None if timed is None else timed["timing"]
    return ReportedRow(row, tests, timing, machine, last.get("worker"), _columns_of(lines))


def _columns_of(lines: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return what columns of users show, by the last of the lines of a row that has any."""
    given: Any = next((line["columns"] for line in reversed(lines) if line.get("columns")), None)
    return {str(name): str(text) for name, text in given.items()} if isinstance(given, dict) else {}


_FIELDS = frozenset(each.name for each in fields(SummaryRow))


def _row(known: Mapping[str, Any]) -> SummaryRow:
    """The row of a line; another version of the plugin may know more of one, which is left out."""
    return SummaryRow(**{name: value for name, value in known.items() if name in _FIELDS})


def read_run(folder: Path) -> ReportedRun:
    """Return the run that was reported in ``folder``, or in the file of its rows.

    Raises :class:`~pytest_fx.errors.ReportError` if there is none, or none that this version can read.
    """
    path = folder if folder.is_file() else folder / ROWS
    if not path.is_file():
        raise ReportError(f"there is no report in {folder}", why=f"it has no {ROWS}", remedy="pytest … --fx-report DIR")
    records = read_records(path)
    runs = [record for record in records if record.get("kind") == "run"]
    if not runs or not _is_readable(runs[0]):
        schema = runs[0].get("schema") if runs else None
        raise ReportError(
            f"{path} cannot be read",
            why=f"its schema is {schema}, and this version reads up to {SCHEMA}" if runs else "no line is on a run",
            remedy="read it with the version of pytest-fx that wrote it" if runs else "give what --fx-report wrote",
        )
    run = {name: value for name, value in runs[0].items() if name not in ("schema", "kind")}
    lines = [record for record in records if _is_whole(record)]
    return ReportedRun(run, [{name: line[name] for name in line if name != "schema"} for line in lines])


def _is_readable(record: Mapping[str, Any]) -> bool:
    return isinstance(schema := record.get("schema"), int) and schema <= SCHEMA


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Return whether a line has what the page is made of."""
    if not _is_readable(record) or not isinstance(record.get("test"), str):
        return False
    row: Any = record.get("row")
    if record.get("kind") == "row":
        names = isinstance(row, dict) and [row.get("model"), row.get("program")]
        return (
            bool(names)
            and all(isinstance(name, str) for name in names)
            and isinstance(record.get("machine") or {}, dict)
        )
    return record.get("kind") in ("failure", "skip") and isinstance(record.get("text"), str)


def _when(run: Mapping[str, Any]) -> str:
    commit = run.get("commit")
    return str(run.get("begun", "?"))[:16].replace("T", " ") + (f", commit {commit}" if commit else "")


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run that was reported before in the same folder."""

    run: Mapping[str, Any]
    """When it began and ended, and its commit."""
    entries: Mapping[Key, ReportedEntry]
    """Its rows."""

    @classmethod
    def of(cls, run: ReportedRun) -> EarlierRun:
        """Return what is kept of a run."""
        kept = {name: run.run[name] for name in ("id", "begun", "ended", "commit") if name in run.run}
        return cls(kept, run.entries())

    @property
    def when(self) -> str:
        """When it began, and at which commit."""
        return _when(self.run)

    def as_line(self) -> dict[str, Any]:
        """Return its line."""
        rows = [entry.as_list() for entry in self.entries.values()]
        line = {"schema": SCHEMA, "kind": "history", "run": dict(self.run), "rows": rows}
        columns = [dict(entry.columns) for entry in self.entries.values()]
        return {**line, "columns": columns} if any(columns) else line


def _entry(row: Any, columns: Any) -> ReportedEntry | None:
    """The entry that a row of a history is, if it is a whole one."""
    if not isinstance(row, list) or len(row) != len(_LISTED):
        return None
    known = dict(zip(_LISTED, row, strict=True))
    shown = {str(name): str(text) for name, text in columns.items()} if isinstance(columns, dict) else {}
    return ReportedEntry(**known, columns=shown) if has_types(ReportedEntry, known, but=["columns"]) else None


def read_history(folder: Path) -> list[EarlierRun]:
    """Return the runs that were reported in ``folder`` before the one that is there, the oldest first."""
    found: list[EarlierRun] = []
    for record in read_records(folder / HISTORY):
        rows: Any = record.get("rows")
        if record.get("kind") == "history" and _is_readable(record) and isinstance(rows, list):
            given: Any = record.get("columns")
            columns: list[Any] = given if isinstance(given, list) and len(given) == len(rows) else [None] * len(rows)
            pairs = zip(rows, columns, strict=True)
            entries = [entry for row, cells in pairs if (entry := _entry(row, cells)) is not None]
            found.append(EarlierRun(dict(record.get("run") or {}), {entry.key: entry for entry in entries}))
    return found


def write_history(folder: Path, runs: Iterable[EarlierRun]) -> None:
    """Replace the history in ``folder`` by the last of ``runs``."""
    kept = list(runs)[-MOST_RUNS:]
    write_atomically(folder / HISTORY, "".join(f"{json.dumps(run.as_line())}\n" for run in kept))
