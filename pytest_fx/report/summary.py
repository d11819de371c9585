"""The table at the end of a run: what each pass did to each model, from the rows on the reports of tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from pytest_fx.options import Options
from pytest_fx.records.baseline import BASELINE
from pytest_fx.report.columns import COLUMNS, SummaryColumn, shown_error
from pytest_fx.report.rows import SummaryRow, collect_rows

NOTES = pytest.StashKey[list[str]]()
"""Where a :class:`pytest.Config` keeps lines to print below the table."""


def format_table(rows: Sequence[SummaryRow], columns: Sequence[SummaryColumn] = COLUMNS) -> list[str]:
    """Return the lines of the table, without the optional columns that say nothing."""
    columns = [column for column in columns if not column.optional or any(column.cell(row) != "-" for row in rows)]
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
    given: list[Sequence[SummaryColumn]] = reporter.config.hook.pytest_fx_summary_columns(config=reporter.config)
    for line in format_table(rows, [column for columns in given for column in columns]):
        reporter.write_line(line)
    baseline = reporter.config.stash.get(BASELINE, None)
    if baseline is not None:
        timed = sum(row.speedup is not None for row in rows)
        found = sum(row.slowdown is not None for row in rows)
        elsewhere = sum(row.measured_elsewhere is not None for row in rows)
        others = f"; {elsewhere} of another host, whose timings are not compared" if elsewhere else ""
        reporter.write_line(f"compared with {baseline.name}: {found} of {timed} timing(s) are in it{others}")
        for row in rows:
            for line in (row.less or "").splitlines():
                reporter.write_line(line)
    for line in _ways_in(rows, verbose=reporter.verbosity > 0):
        reporter.write_line(line)
    for line in _warning_of_coarse(rows):
        reporter.write_line(line, yellow=True)
    for note in reporter.config.stash.get(NOTES, []):
        reporter.write_line(note)


def _ways_in(rows: Sequence[SummaryRow], *, verbose: bool) -> Iterator[str]:
    """Why models were not captured symbolically, a line for each way that refused, or in full."""
    for row in rows:
        for line in (row.refusal_messages if verbose else row.refusals) or ():
            way, _, said = line.partition(": ")
            yield f"{row.model} is refused by {way} capture: {said}"
        if row.way == "export" and row.batch != "free":
            yield f"{row.model} is exported for one call: its batch is {row.batch}"
        if row.note is not None:
            yield f"{row.model} is exported with a change: {row.note}"


def _warning_of_coarse(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """A line on rows that say little: one in all, as whole runs in half precision have such rows only."""
    coarse = [row for row in rows if row.is_coarse and row.outcome is None]
    if coarse:
        worst = max(coarse, key=lambda row: row.detects or 0.0)
        yield (
            f"fx: {len(coarse)} of {len(rows)} row(s) would not have caught outputs that are off by a thousandth, "
            f"{worst.program} of {worst.model} none below {shown_error(worst.detects)}: compare in float32 or "
            "float64, or see --fx-detect"
        )
