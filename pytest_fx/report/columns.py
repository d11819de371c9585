"""The columns of the table at the end of a run: what each shows of a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_fx.options import TOO_NOISY
from pytest_fx.report.rows import SummaryRow


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
        return shown_error(row.error)
    error = f"{shown_error(row.error)} ({shown_error(row.eager_error)}) {row.dtype}"
    if row.allowed_error is None:
        return error
    return f"{error}, {shown_error(row.allowed_error)} allowed" + (f"; {row.waiver}" if row.waiver else "")


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
    SummaryColumn("float64 error", lambda row: shown_error(row.float64_error)),
    SummaryColumn("error (eager's own)", _errors),
    SummaryColumn("detects", lambda row: shown_error(row.detects), True),
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


def shown_error(value: float | None) -> str:
    """Return an error with two digits, or a dash."""
    return "-" if value is None else f"{value:.1e}" if value else "0"


def _bytes(count: int) -> str:
    if count < 2**10:
        return f"{count} B"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"
