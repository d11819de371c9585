"""The table at the end of a run: what each pass did to each model. Rows travel with reports, also between processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import pytest

from .options import Options

if TYPE_CHECKING:
    from .timing import PairedTiming

PROPERTY = "fx"
"""The user property that carries a row on a test's report."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one program of one model. A part that no test has found out yet is None."""

    model: str
    """The model's name."""
    program: str
    """The pass, or what else made the program."""
    nodes_before: int | None = None
    """Nodes of the captured graph."""
    nodes_after: int | None = None
    """Nodes of the program's graph."""
    dtype: str | None = None
    """The working dtype."""
    float64_error: float | None = None
    """Largest error in float64."""
    error: float | None = None
    """Largest error in the working dtype, against eager in float64."""
    eager_error: float | None = None
    """Largest error of eager itself in the working dtype, against eager in float64."""
    eager_seconds: float | None = None
    """Median time of an eager call."""
    seconds: float | None = None
    """Median time of a call of the program."""
    speedup: float | None = None
    """Median of the ratios of paired calls, eager over transformed."""
    speedup_low: float | None = None
    """Lower end of the ratio's 95 % interval."""
    speedup_high: float | None = None
    """Upper end of the ratio's 95 % interval."""
    verdict: str | None = None
    """What the interval says in words."""

    def with_errors(self, *, dtype: str, float64_error: float | None, error: float, eager_error: float) -> Row:
        """Return the row with what a comparison found."""
        return replace(self, dtype=dtype, float64_error=float64_error, error=error, eager_error=eager_error)

    def with_timing(self, timing: PairedTiming) -> Row:
        """Return the row with what a timing found."""
        low, high = timing.interval
        return replace(
            self,
            eager_seconds=_median(timing.eager),
            seconds=_median(timing.transformed),
            speedup=timing.speedup,
            speedup_low=low,
            speedup_high=high,
            verdict=timing.verdict,
        )

    def merged(self, other: Row) -> Row:
        """Return the row with the parts that ``other`` knows in place of its own."""
        known = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in known.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    heading: str
    """What stands above it."""
    cell: Callable[[Row], str]
    """What it shows of a row."""


def _nodes(row: Row) -> str:
    return " -> ".join(str(count) for count in (row.nodes_before, row.nodes_after) if count is not None) or "-"


def _errors(row: Row) -> str:
    error = _error(row.error)
    return error if row.eager_error is None else f"{error} ({_error(row.eager_error)}) {row.dtype}"


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return "-"
    return f"{row.speedup:.3f} ({row.speedup_low:.3f} to {row.speedup_high:.3f}), {row.verdict}"


COLUMNS = (
    Column("model", lambda row: row.model),
    Column("program", lambda row: row.program),
    Column("nodes", _nodes),
    Column("float64 error", lambda row: _error(row.float64_error)),
    Column("error (eager's own)", _errors),
    Column("eager", lambda row: _milliseconds(row.eager_seconds)),
    Column("transformed", lambda row: _milliseconds(row.seconds)),
    Column("speed-up (95 % interval)", _speedup),
)
"""The columns that the plugin itself gives."""


def record_row(item: pytest.Item, row: Row) -> None:
    """Attach ``row`` to the report of ``item``."""
    item.user_properties.append((PROPERTY, asdict(row)))


def collect_rows(reports: Iterable[Any]) -> list[Row]:
    """Return the rows on the reports, one for each program of each model, in the order of first appearance."""
    rows: dict[tuple[str, str], Row] = {}
    for report in reports:
        if getattr(report, "when", None) != "call":
            continue
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY:
                row = Row(**value)
                key = (row.model, row.program)
                rows[key] = rows[key].merged(row) if key in rows else row
    return list(rows.values())


def format_table(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> list[str]:
    """Return the lines of the table."""
    table = [[column.heading for column in columns], *([column.cell(row) for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table]


def write_summary(reporter: pytest.TerminalReporter, options: Options) -> None:
    """Print the table, models in the order of the command line, if any test recorded a row."""
    reports = [report for kind in reporter.stats.values() for report in kind]
    rows = collect_rows(reports)
    if not rows:
        return
    order = {name: position for position, name in enumerate(options.models)}
    models = dict.fromkeys(row.model for row in rows)
    order = {model: (order.get(model, len(order)), position) for position, model in enumerate(models)}
    rows.sort(key=lambda row: (order[row.model], row.nodes_before is not None, row.program))
    reporter.section("fx: largest errors against eager in float64, median times of a call")
    given: list[Sequence[Column]] = reporter.config.hook.pytest_fx_summary_columns(config=reporter.config)
    for line in format_table(rows, [column for columns in given for column in columns]):
        reporter.write_line(line)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}" if value else "0"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"
