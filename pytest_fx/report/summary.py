"""The table at the end of a run: what each pass did to each model, from the rows on the reports of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_fx.options import TOO_NOISY, Options
from pytest_fx.records.baseline import BASELINE, Change

if TYPE_CHECKING:
    from pytest_fx.timing.paired import PairedTiming

PROPERTY = "fx"
"""The user property that carries a record on a test's report: a dict whose ``"row"`` is a :class:`SummaryRow`."""
NOTES = pytest.StashKey[list[str]]()
"""Where a :class:`pytest.Config` keeps lines to print below the table."""


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """What is known of one program of one model. A part that no test has found out yet is None."""

    model: str
    """The model's name."""
    program: str
    """The pass, or what else made the program."""
    way: str | None = None
    """How the model was captured: ``"symbolic"``, ``"guided"`` or ``"export"``."""
    batch: str | None = None
    """Of an exported one: ``"free"``, or why it takes one number of samples only."""
    note: str | None = None
    """What was changed in the model to export it, if anything."""
    refusals: Sequence[str] | None = None
    """Why the ways that were tried before refused it, a line each."""
    refusal_messages: Sequence[str] | None = None
    """The same in full."""
    nodes_before: int | None = None
    """Nodes of the captured graph."""
    nodes_after: int | None = None
    """Nodes of the program's graph."""
    edits: int | None = None
    """Edits that the pass made, where it says which it makes."""
    changed: bool | None = None
    """Whether the pass changed anything."""
    outcome: str | None = None
    """What came of it where that is no right program: it raises, refuses, takes too long, or is wrong."""
    less: str | None = None
    """How it changes less than in the run that is compared with, in a sentence, if it does."""
    dtype: str | None = None
    """The working dtype."""
    float64_error: float | None = None
    """Largest error in float64."""
    error: float | None = None
    """Largest error in the working dtype, against eager in float64."""
    eager_error: float | None = None
    """Largest error of eager itself in the working dtype, against eager in float64."""
    allowed_error: float | None = None
    """What the element with the largest error may be off in the working dtype, under a contract that limits that."""
    waiver: str | None = None
    """Why a difference beyond the contract is not held against the program, in words."""
    detects: float | None = None
    """Detection limit: the smallest relative change of all outputs that would have broken the contract."""
    detects_largest: float | None = None
    """The same of the largest element alone."""
    detects_median: float | None = None
    """The same of an element of median size alone."""
    is_coarse: bool | None = None
    """Whether a change of all outputs by a thousandth would not have been caught, where the contract asks for more."""
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
    noisy: bool | None = None
    """Whether the interval is too wide for the ratio to mean anything."""
    outliers: float | None = None
    """Share of pairs far outside of the quartiles."""
    noise: float | None = None
    """Median deviation of the ratios, relative to their median."""
    processors: float | None = None
    """Part of the time in which the calls had a processor, where that was not all of it: the machine was loaded."""
    contents_repeat: bool | None = None
    """Whether calls were given contents that earlier ones had, as there were no others: a cache would be fast."""
    eager_estimated: float | None = None
    """Seconds that an eager call was estimated to take, from its kernels measured one by one."""
    estimated: float | None = None
    """The same of the program."""
    eager_host_seconds: float | None = None
    """On a GPU, median time until an eager call has launched its work."""
    host_seconds: float | None = None
    """On a GPU, median time until a call of the program has launched its work."""
    kernels: str | None = None
    """The kernels of its layers on 8-bit integers, each with the number of layers that used it."""
    eager_peak_memory: int | None = None
    """Bytes that an eager call holds at a time."""
    peak_memory: int | None = None
    """Bytes that a call of the program holds at a time."""
    baseline_speedup: float | None = None
    """The speed-up in the run that is compared with."""
    measured_elsewhere: str | None = None
    """The host of the run that is compared with, where it was another one, so that nothing is compared."""
    slowdown: float | None = None
    """Share by which the program takes longer, relative to eager, than in the run that is compared with."""
    slowdown_low: float | None = None
    """Lower end of its 95 % interval."""
    slowdown_high: float | None = None
    """Upper end of its 95 % interval."""
    change_verdict: str | None = None
    """What that interval says in words."""

    def with_errors(
        self,
        *,
        dtype: str,
        float64_error: float | None,
        error: float,
        eager_error: float,
        allowed_error: float | None = None,
    ) -> SummaryRow:
        """Return the row with what a comparison found."""
        return replace(
            self,
            dtype=dtype,
            float64_error=float64_error,
            error=error,
            eager_error=eager_error,
            allowed_error=allowed_error,
        )

    def with_detection(self, limits: tuple[float, float, float], *, is_coarse: bool) -> SummaryRow:
        """Return the row with the smallest changes that would have been caught."""
        everywhere, largest, median = limits
        return replace(self, detects=everywhere, detects_largest=largest, detects_median=median, is_coarse=is_coarse)

    def with_timing(self, timing: PairedTiming) -> SummaryRow:
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
            noisy=timing.noisy,
            outliers=timing.outliers,
            noise=timing.noise,
            processors=timing.processors if timing.loaded else None,
            contents_repeat=timing.contents_repeat or None,
            eager_host_seconds=_median(timing.eager_host) if timing.eager_host else None,
            host_seconds=_median(timing.transformed_host) if timing.transformed_host else None,
        )

    def with_estimates(self, eager: float | None, transformed: float | None) -> SummaryRow:
        """Return the row with the seconds that calls were estimated to take."""
        return replace(self, eager_estimated=eager, estimated=transformed)

    def with_peak_memory(self, *, eager: int, transformed: int) -> SummaryRow:
        """Return the row with the most bytes that calls hold at a time."""
        return replace(self, eager_peak_memory=eager, peak_memory=transformed)

    def with_kernels(self, used: Mapping[str, int]) -> SummaryRow:
        """Return the row with the kernels that were used, and by how many layers each."""
        return replace(self, kernels=", ".join(f"{name} ({count})" for name, count in used.items()) or None)

    def with_change(self, change: Change, limit: float | None = None) -> SummaryRow:
        """Return the row with how its speed-up compares with that of an earlier run, where ``limit`` is allowed."""
        low, high = change.interval
        return replace(
            self,
            baseline_speedup=change.before.speedup,
            slowdown=change.slowdown,
            slowdown_low=low,
            slowdown_high=high,
            change_verdict=TOO_NOISY if change.too_noisy(limit) else change.verdict,
        )

    def merged(self, other: SummaryRow) -> SummaryRow:
        """Return the row with the parts that ``other`` knows in place of its own."""
        known = {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(self, **{name: value for name, value in known.items() if value is not None})


@dataclass(frozen=True, slots=True)
class SummaryColumn:
    """One column of the table."""

    heading: str
    """What stands above it."""
    cell: Callable[[SummaryRow], str]
    """What it shows of a row."""
    optional: bool = False
    """Whether it is left out where it shows a dash in every row."""


Column = SummaryColumn  # what hooks were once told to return


def _nodes(row: SummaryRow) -> str:
    if row.changed is False:
        return f"{row.nodes_before}, {row.outcome or 'changes nothing'}"
    nodes = " -> ".join(str(count) for count in (row.nodes_before, row.nodes_after) if count is not None)
    return ", ".join(filter(None, (nodes, row.outcome))) or "-"


def _way(row: SummaryRow) -> str:
    if row.way == "guided":
        return "guided"
    return "-" if row.way in (None, "symbolic") else f"{row.way}, batch {(row.batch or '').partition(':')[0]}"


def _errors(row: SummaryRow) -> str:
    if row.eager_error is None:
        return _error(row.error)
    error = f"{_error(row.error)} ({_error(row.eager_error)}) {row.dtype}"
    if row.allowed_error is None:
        return error
    return f"{error}, {_error(row.allowed_error)} allowed" + (f"; {row.waiver}" if row.waiver else "")


def _speedup(row: SummaryRow) -> str:
    if row.speedup is None or row.outcome is not None:  # a wrong program is not praised
        return "-"
    if row.noisy:
        said = f"{_without_ratio(row.verdict)}: {row.outliers:.0%} outliers, pairs deviate by {row.noise:.1%}"
    else:
        said = f"{row.speedup:.3f} ({row.speedup_low:.3f} to {row.speedup_high:.3f}), {row.verdict}"
    loaded = None if row.processors is None else f"loaded machine: {row.processors:.0%} of a processor"
    return "; ".join(filter(None, (said, loaded, "contents of inputs repeat" if row.contents_repeat else None)))


def _estimated_speedup(row: SummaryRow) -> str:
    if not row.eager_estimated or not row.estimated:
        return "-"
    return f"{row.eager_estimated / row.estimated:.3f}"


def _without_ratio(verdict: str | None) -> str:
    """What can be said where a ratio means nothing."""
    return TOO_NOISY if verdict in (TOO_NOISY, "no change shown") else f"{verdict}, {TOO_NOISY} by how much"


def _pair(value: Any, eager: Any, shown: Callable[[Any], str]) -> str:
    return "-" if value is None else f"{shown(value)} ({shown(eager)})"


def _change(row: SummaryRow) -> str:
    if row.slowdown is None:
        missing = f"measured on host {row.measured_elsewhere}" if row.measured_elsewhere else "not in the baseline"
        return "-" if row.speedup is None else missing
    interval = f"{row.slowdown_low:+.1%} to {row.slowdown_high:+.1%}"
    if row.noisy or row.change_verdict == TOO_NOISY:
        return f"{_without_ratio(row.change_verdict)} ({interval})"
    return f"{row.slowdown:+.1%} time ({interval}), {row.change_verdict}"


COLUMNS = (
    SummaryColumn("model", lambda row: row.model),
    SummaryColumn("program", lambda row: row.program),
    SummaryColumn("nodes", _nodes),
    SummaryColumn("captured by", _way, True),
    SummaryColumn("float64 error", lambda row: _error(row.float64_error)),
    SummaryColumn("error (eager's own)", _errors),
    SummaryColumn("detects", lambda row: _error(row.detects), True),
    SummaryColumn("eager", lambda row: _milliseconds(row.eager_seconds)),
    SummaryColumn("transformed", lambda row: _milliseconds(row.seconds)),
    SummaryColumn("estimated eager", lambda row: _milliseconds(row.eager_estimated), True),
    SummaryColumn("estimated transformed", lambda row: _milliseconds(row.estimated), True),
    SummaryColumn("speed-up (95 % interval)", _speedup),
    SummaryColumn("estimated speed-up", _estimated_speedup, True),
    SummaryColumn(
        "launched after (eager's own)", lambda row: _pair(row.host_seconds, row.eager_host_seconds, _milliseconds), True
    ),
    SummaryColumn("8-bit kernels (layers)", lambda row: row.kernels or "-", True),
    SummaryColumn("peak memory (eager's own)", lambda row: _pair(row.peak_memory, row.eager_peak_memory, _bytes), True),
)
"""The columns that the plugin itself gives."""
CHANGE = SummaryColumn("change since the baseline (95 % interval)", _change)
"""The column that it adds where a baseline was given."""


def records_on(report: Any) -> list[dict[str, Any]]:
    """Return what the test of ``report`` recorded, in order; only the report of its call has it."""
    if getattr(report, "when", None) != "call":
        return []
    return [value for name, value in getattr(report, "user_properties", ()) if name == PROPERTY]


def collect_rows(reports: Iterable[Any]) -> list[SummaryRow]:
    """Return the rows on the reports, one for each program of each model, in the order of first appearance."""
    rows: dict[tuple[str, str], SummaryRow] = {}
    for report in reports:
        for record in records_on(report):
            row = SummaryRow(**record["row"])
            key = (row.model, row.program)
            rows[key] = rows[key].merged(row) if key in rows else row
    return list(rows.values())


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
            f"{worst.program} of {worst.model} none below {_error(worst.detects)}: compare in float32 or float64, or "
            "see --fx-detect"
        )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}" if value else "0"


def _bytes(count: int) -> str:
    if count < 2**10:
        return f"{count} B"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"
