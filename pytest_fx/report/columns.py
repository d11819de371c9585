"""The columns of the table at the end of a run, with the function for the cells of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_fx.options import OPTIONS, TOO_NOISY
from pytest_fx.records.baseline import BASELINE
from pytest_fx.report.rows import NOT_JUDGED, REFUSED, RIGHT, RIGHT_WITH_WAIVER, WRONG, SummaryRow, verdict_of
from pytest_fx.tracebacks import users_line

WIDE = 100
"""Minimum width of a terminal, in characters, for the columns of nodes and errors."""
Markup = Mapping[str, bool]
"""Colours and styles of a cell, as keyword arguments of pytest's terminal writer."""
_PLAIN: Markup = {}


@dataclass(frozen=True, slots=True)
class SummaryColumn:
    """One column of the table."""

    heading: str
    """The heading of the column."""
    cell: Callable[[SummaryRow], str]
    """The function from a row to the text of its cell."""
    optional: bool = False
    """Whether the column is left out if every cell is a dash."""
    narrowest: int | None = 0
    """Minimum width of a terminal that shows the column, in characters; None to show it only with ``-v``."""
    short: Callable[[SummaryRow], str] | None = None
    """The function for a shorter cell without ``-v``, if there is one."""
    markup: Callable[[SummaryRow], Markup] = lambda row: _PLAIN
    """The function from a row to the colours of its cell."""
    is_compared: bool = True
    """Whether a comparison of two runs reports changed cells; used for columns of
    :func:`~pytest_fx.hooks.pytest_fx_summary_columns`. Turn it off for measured values, which differ in every run."""

    def is_shown(self, width: int, *, verbose: bool) -> bool:
        """Return whether a terminal of ``width`` characters shows the column."""
        return verbose or (self.narrowest is not None and width >= self.narrowest)

    def shown(self, row: SummaryRow, *, verbose: bool) -> str:
        """Return the cell of ``row``: a dash for None, and the name of the exception if the function raises."""
        try:
            value: Any = self.cell(row) if verbose or self.short is None else self.short(row)
        except Exception as error:
            return f"raises {type(error).__name__}"
        return "-" if value is None else str(value)

    def problem(self, rows: Iterable[SummaryRow]) -> str | None:
        """Return a message on the first row for which the cell function raises; None if it never raises."""
        for row in rows:
            try:
                self.cell(row)
            except Exception as error:
                message, where = _raised(error)
                return f"fx: the column {self.heading!r} {message} for {row.program} of {row.model}{where}"
        return None


Column = SummaryColumn  # the former name, which hooks may import


def _raised(error: Exception) -> tuple[str, str]:
    """Return a description of the exception, and a line with its place in the user's code."""
    message, where = f"raises {type(error).__name__}: {error}", users_line(error, or_torchs=False)
    return message, f"\n  where  {where}" if where else ""


def columns_of(config: pytest.Config) -> tuple[list[SummaryColumn], list[str]]:
    """Return the columns from all implementations of the hook, the plugin's first, and messages on faulty ones."""
    try:
        returned: list[Any] = config.hook.pytest_fx_summary_columns(config=config)
    except Exception as error:
        message, where = _raised(error)
        return list(own_columns(config)), [
            f"fx: pytest_fx_summary_columns {message}; the table is without its columns{where}"
        ]
    columns, problems = list[SummaryColumn](), list[str]()
    for result in returned:
        for column in result if isinstance(result, Iterable) else [result]:
            if isinstance(column, SummaryColumn):
                columns.append(column)
            else:
                problems.append(f"fx: pytest_fx_summary_columns gives {column!r}, which is no SummaryColumn")
    return columns, problems


def is_users(column: SummaryColumn) -> bool:
    """Return whether a column was added by a user's hook."""
    return column not in COLUMNS and column not in (CHANGE, AGAINST)


def _verdict(row: SummaryRow) -> str:
    """Return the verdict, with the reason if the program is wrong or was not judged."""
    verdict = verdict_of(row)
    reason = (row.outcome or "").partition(": ")[2] or row.outcome
    return f"{verdict}: {reason}" if verdict in (WRONG, NOT_JUDGED) and reason else verdict


def _colour_of_verdict(row: SummaryRow) -> Markup:
    verdict = verdict_of(row)
    if verdict == RIGHT:
        return {"green": True}
    return {"yellow": True} if verdict in (RIGHT_WITH_WAIVER, REFUSED, NOT_JUDGED) else _PLAIN


def _nodes(row: SummaryRow) -> str:
    if row.changed is False:
        return "-" if row.nodes_before is None else str(row.nodes_before)
    return row.nodes() or "-"


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


def _short_metric(row: SummaryRow) -> str:
    if row.metric is None:
        return "-"
    interval = "" if row.metric_drop_low is None else f" ({row.metric_drop_low:+.4f} to {row.metric_drop_high:+.4f})"
    changed = "" if row.samples_changed is None else f", {row.samples_changed:,} of {row.samples:,} changed"
    return f"{row.metric} {row.program_metric:.4f}, drop {row.metric_drop:.4f}{interval}{changed}"


def _colour_of_speedup(row: SummaryRow) -> Markup:
    if not _has_speedup(row) or row.verdict not in ("faster", "slower"):
        return _PLAIN
    return {"green" if row.verdict == "faster" else "red": True}


def _has_speedup(row: SummaryRow) -> bool:
    """Return whether the speed-up is shown; that of a wrong program is meaningless."""
    return row.speedup is not None and verdict_of(row) != WRONG


def _short_speedup(row: SummaryRow) -> str:
    if not _has_speedup(row):
        return "-"
    if row.noisy:
        return _without_ratio(row.verdict)
    verdict = "no difference" if row.verdict == "no difference shown" else row.verdict
    undecided = ", undecided" if row.is_open else ""
    return f"{row.speedup:.3f} ({row.speedup_low:.3f} to {row.speedup_high:.3f}), {verdict}{undecided}"


def _speedup(row: SummaryRow) -> str:
    if not _has_speedup(row):
        return "-"
    if row.noisy:
        cell = f"{_without_ratio(row.verdict)}: {row.outliers:.0%} outliers, pairs deviate by {row.noise:.1%}"
    else:
        cell = f"{row.speedup:.3f} ({row.speedup_low:.3f} to {row.speedup_high:.3f}), {row.verdict}"
    if row.pairs is not None:
        cell += f"; undecided after {row.pairs} pairs" if row.is_open else f"; {row.pairs} pairs"
    return f"{cell}; contents of inputs repeat" if row.contents_repeat else cell


def _estimated_speedup(row: SummaryRow) -> str:
    if not row.eager_estimated or not row.estimated:
        return "-"
    return f"{row.eager_estimated / row.estimated:.3f}"


def _without_ratio(verdict: str | None) -> str:
    """Return the verdict on a timing that is too noisy for a ratio."""
    return TOO_NOISY if verdict in (TOO_NOISY, "no change shown") else f"{verdict}, {TOO_NOISY} by how much"


def _pair(value: Any, eager: Any, formatted: Callable[[Any], str]) -> str:
    return "-" if value is None else f"{formatted(value)} ({formatted(eager)})"


def _change(row: SummaryRow) -> str:
    if row.slowdown is None:
        missing = f"measured on host {row.measured_elsewhere}" if row.measured_elsewhere else "not in the baseline"
        return "-" if row.speedup is None else missing
    interval = f"{row.slowdown_low:+.1%} to {row.slowdown_high:+.1%}"
    if row.noisy or row.change_verdict == TOO_NOISY:
        return f"{_without_ratio(row.change_verdict)} ({interval})"
    return f"{row.slowdown:+.1%} time ({interval}), {row.change_verdict}"


def _kept(row: SummaryRow) -> str:
    """Return the bytes kept for the backward pass, without the pass and with it."""
    return "-" if row.kept_bytes is None else f"{row.kept_bytes_before:,} -> {row.kept_bytes:,} B"


COLUMNS = (
    SummaryColumn("model", lambda row: row.model),
    SummaryColumn("program", lambda row: row.program),
    SummaryColumn("verdict", _verdict, short=verdict_of, markup=_colour_of_verdict),
    SummaryColumn("nodes", _nodes, narrowest=WIDE),
    SummaryColumn("captured by", _way, True),
    SummaryColumn("form", lambda row: "-" if row.form in (None, "fx", "torch.fx") else row.form, True),
    SummaryColumn("float64 error", lambda row: shown_error(row.float64_error), narrowest=None),
    SummaryColumn(
        "error (by rounding)", _errors, narrowest=WIDE, short=lambda row: _pair(row.error, row.eager_error, shown_error)
    ),
    SummaryColumn("metric, drop (95 % interval)", lambda row: row.metric_sentence or "-", True, short=_short_metric),
    SummaryColumn("training", lambda row: row.training or "-", True, WIDE),
    SummaryColumn("detects", lambda row: shown_error(row.detects), True, None),
    SummaryColumn("eager", lambda row: _milliseconds(row.eager_seconds), narrowest=None),
    SummaryColumn("transformed", lambda row: _milliseconds(row.seconds), narrowest=None),
    SummaryColumn("estimated eager", lambda row: _milliseconds(row.eager_estimated), True, None),
    SummaryColumn("estimated transformed", lambda row: _milliseconds(row.estimated), True, None),
    SummaryColumn("speed-up (95 % interval)", _speedup, True, short=_short_speedup, markup=_colour_of_speedup),
    SummaryColumn("estimated speed-up", _estimated_speedup, True),
    SummaryColumn(
        "launched after (eager's)",
        lambda row: _pair(row.host_seconds, row.eager_host_seconds, _milliseconds),
        True,
        None,
    ),
    SummaryColumn("8-bit kernels (layers)", lambda row: row.kernels or "-", True, None),
    SummaryColumn(
        "peak memory (eager's)", lambda row: _pair(row.peak_memory, row.eager_peak_memory, _bytes), True, None
    ),
    SummaryColumn("kept for backward", _kept, True),
)
"""The plugin's own columns."""
CHANGE = SummaryColumn("change since the baseline (95 % interval)", _change)
"""The column that the plugin adds if a baseline was given."""
AGAINST = SummaryColumn("time against the base (95 % interval)", _change)
"""The column that the plugin adds under ``--fx-against``."""


def own_columns(config: pytest.Config) -> tuple[SummaryColumn, ...]:
    """Return the plugin's columns for a run."""
    added = [CHANGE] if config.stash[BASELINE] is not None else []
    return (*COLUMNS, *added, *([AGAINST] if config.stash[OPTIONS].against is not None else []))


def shown_error(value: float | None) -> str:
    """Return an error with two digits, or a dash."""
    return "-" if value is None else f"{value:.1e}" if value else "0"


def _bytes(count: int) -> str:
    if count < 2**10:
        return f"{count} B"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.4g} ms"
