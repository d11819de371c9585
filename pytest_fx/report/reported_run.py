"""The records of a run and the history of earlier runs, as lines of JSON in the folder of a report.

``rows.jsonl`` begins with a line on the run. A line follows for each measured row, each failed test and each test that
judged nothing. ``history.jsonl`` has a line for each earlier run, with its verdicts and speed-ups only. Readers skip
truncated lines and lines of a later schema.
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
"""The version of the format of lines: a reader skips lines of later versions."""
ROWS, HISTORY, PAGE, MARKDOWN = "rows.jsonl", "history.jsonl", "index.html", "summary.md"
"""Files of a report."""
MOST_RUNS = 20
"""Maximum number of earlier runs in a history."""

Key = tuple[str, str]
"""The names of a model and a program; they include the batch and the threads."""


@dataclass(frozen=True, slots=True)
class ReportedRow:
    """All results of a run's tests for one program of one model."""

    row: SummaryRow
    """The row of the table at the end of the run."""
    tests: tuple[str, ...]
    """The tests that recorded the row."""
    timing: Mapping[str, Any] | None
    """The samples of its timing, with the conditions of the measurement, if it was timed."""
    machine: Mapping[str, Any]
    """The machine that measured the row; if it was timed, the one that timed it."""
    worker: str | None
    """The worker of pytest-xdist."""
    columns: Mapping[str, str]
    """The cells of users' columns, by heading."""

    @property
    def key(self) -> Key:
        """The names of the model and the program."""
        return self.row.model, self.row.program

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return verdict_of(self.row)


@dataclass(frozen=True, slots=True)
class ReportedEntry:
    """The part of a row that a history keeps."""

    model: str
    """The model's name."""
    program: str
    """The program's name."""
    verdict: str
    """The verdict in a word."""
    host: str | None = None
    """The host that it was timed on."""
    speedup: float | None = None
    """Median of the ratios of paired calls, eager over transformed; None if it was not timed."""
    low: float | None = None
    """Lower end of its 95 % interval."""
    high: float | None = None
    """Upper end of its 95 % interval."""
    columns: Mapping[str, str] = field(default_factory=dict[str, str])
    """The cells of users' columns that are compared between runs, by heading."""

    @property
    def key(self) -> Key:
        """The names of the model and the program."""
        return self.model, self.program

    @classmethod
    def of(cls, reported: ReportedRow, compared: Sequence[str] = ()) -> ReportedEntry:
        """Return the entry of a row, without the speed-up of a wrong program; ``compared`` names users' columns."""
        row = reported.row
        times = (row.speedup, row.speedup_low, row.speedup_high) if row.outcome is None else (None, None, None)
        columns = {heading: reported.columns[heading] for heading in compared if heading in reported.columns}
        return cls(row.model, row.program, reported.verdict, reported.machine.get("host"), *times, columns)

    def as_list(self) -> list[Any]:
        """Return all fields except the columns, floats rounded to five digits."""
        values = [getattr(self, name) for name in _LIST_FIELDS]
        return [float(f"{value:.5g}") if isinstance(value, float) else value for value in values]


_LIST_FIELDS = tuple(each.name for each in fields(ReportedEntry) if each.name != "columns")
"""The fields of an entry in the order of its list in a history."""


@dataclass(slots=True)
class ReportedRun:
    """A run with all its results."""

    run: dict[str, Any]
    """Facts on the run: start, end, command-line arguments, and the number of tests by outcome."""
    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Lines on rows and tests, in order of arrival."""

    def rows(self) -> list[ReportedRow]:
        """Return the rows, one for each program of each model, in the order of first appearance."""
        lines_by_key: dict[Key, list[dict[str, Any]]] = {}
        for line in self.lines:
            if line["kind"] == "row":
                lines_by_key.setdefault((line["row"]["model"], line["row"]["program"]), []).append(line)
        return [_merged(lines) for lines in lines_by_key.values()]

    def headings(self, *, compared: bool = False) -> list[str]:
        """Return the headings of users' columns, all or only those that are compared."""
        recorded: Any = self.run.get("columns")
        columns = [column for column in recorded if isinstance(column, dict)] if isinstance(recorded, list) else []
        return [str(column.get("heading")) for column in columns if column.get("compared") or not compared]

    def add_columns(self, columns: Sequence[SummaryColumn]) -> None:
        """Add the cells of users' columns to the last line of each row."""
        if not columns:
            return
        self.run["columns"] = [{"heading": column.heading, "compared": column.is_compared} for column in columns]
        cells_by_key = {
            row.key: {column.heading: column.shown(row.row, verbose=True) for column in columns} for row in self.rows()
        }
        for line in reversed(self.lines):
            if line["kind"] == "row" and (
                cells := cells_by_key.pop((line["row"]["model"], line["row"]["program"]), None)
            ):
                line["columns"] = cells

    def failures(self) -> list[dict[str, Any]]:
        """Return the lines on tests that failed."""
        return [line for line in self.lines if line["kind"] == "failure"]

    def entries(self) -> dict[Key, ReportedEntry]:
        """Return the entries of the run for a history."""
        compared = self.headings(compared=True)
        return {row.key: ReportedEntry.of(row, compared) for row in self.rows()}

    @property
    def when(self) -> str:
        """The start of the run, and its commit."""
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
    """Return the cells of users' columns from the last line of a row that has any."""
    cells: Any = next((line["columns"] for line in reversed(lines) if line.get("columns")), None)
    return {str(name): str(text) for name, text in cells.items()} if isinstance(cells, dict) else {}


_FIELDS = frozenset(each.name for each in fields(SummaryRow))


def _row(record: Mapping[str, Any]) -> SummaryRow:
    """Return the row of a record, without fields that only another version of the plugin has."""
    return SummaryRow(**{name: value for name, value in record.items() if name in _FIELDS})


def read_run(folder: Path) -> ReportedRun:
    """Return the run that was reported in ``folder``, which may also be the file of its rows.

    Raises :class:`~pytest_fx.errors.ReportError` if there is none, or this version cannot read it.
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
            remedy="read it with the version of pytest-fx that wrote it"
            if runs
            else "pass a folder that --fx-report wrote",
        )
    run = {name: value for name, value in runs[0].items() if name not in ("schema", "kind")}
    lines = [record for record in records if _is_whole(record)]
    return ReportedRun(run, [{name: line[name] for name in line if name != "schema"} for line in lines])


def _is_readable(record: Mapping[str, Any]) -> bool:
    return isinstance(schema := record.get("schema"), int) and schema <= SCHEMA


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Return whether a line has all the values that the page needs."""
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
    """An earlier run in the same folder."""

    run: Mapping[str, Any]
    """Start, end and commit of the run, with its identifier."""
    entries: Mapping[Key, ReportedEntry]
    """The rows of the run."""

    @classmethod
    def of(cls, run: ReportedRun) -> EarlierRun:
        """Return the part of a run that a history keeps."""
        facts = {name: run.run[name] for name in ("id", "begun", "ended", "commit") if name in run.run}
        return cls(facts, run.entries())

    @property
    def when(self) -> str:
        """The start of the run, and its commit."""
        return _when(self.run)

    def as_line(self) -> dict[str, Any]:
        """Return the line of the run in a history."""
        rows = [entry.as_list() for entry in self.entries.values()]
        line = {"schema": SCHEMA, "kind": "history", "run": dict(self.run), "rows": rows}
        columns = [dict(entry.columns) for entry in self.entries.values()]
        return {**line, "columns": columns} if any(columns) else line


def _entry(row: Any, columns: Any) -> ReportedEntry | None:
    """Return the entry of a row in a history; None if it is malformed."""
    if not isinstance(row, list) or len(row) != len(_LIST_FIELDS):
        return None
    values = dict(zip(_LIST_FIELDS, row, strict=True))
    cells = {str(name): str(text) for name, text in columns.items()} if isinstance(columns, dict) else {}
    return ReportedEntry(**values, columns=cells) if has_types(ReportedEntry, values, but=["columns"]) else None


def read_history(folder: Path) -> list[EarlierRun]:
    """Return the runs in the history of ``folder``, the oldest first."""
    runs: list[EarlierRun] = []
    for record in read_records(folder / HISTORY):
        rows: Any = record.get("rows")
        if record.get("kind") == "history" and _is_readable(record) and isinstance(rows, list):
            recorded: Any = record.get("columns")
            columns: list[Any] = (
                recorded if isinstance(recorded, list) and len(recorded) == len(rows) else [None] * len(rows)
            )
            pairs = zip(rows, columns, strict=True)
            entries = [entry for row, cells in pairs if (entry := _entry(row, cells)) is not None]
            runs.append(EarlierRun(dict(record.get("run") or {}), {entry.key: entry for entry in entries}))
    return runs


def write_history(folder: Path, runs: Iterable[EarlierRun]) -> None:
    """Replace the history in ``folder`` by the last of ``runs``."""
    latest = list(runs)[-MOST_RUNS:]
    write_atomically(folder / HISTORY, "".join(f"{json.dumps(run.as_line())}\n" for run in latest))
