"""The summary at the end of a run: a table of passes on models, and the results of checks on random programs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence

import pytest

from pytest_fx.lines import fit, terminal_width
from pytest_fx.options import OPTIONS, Options
from pytest_fx.parallel.distribution import is_worker
from pytest_fx.records.baseline import BASELINE
from pytest_fx.report.columns import COLUMNS, WIDE, SummaryColumn, columns_of, shown_error
from pytest_fx.report.layout import format_rows, text_of
from pytest_fx.report.rows import (
    CHANGES_NOTHING,
    NOT_JUDGED,
    RIGHT_WITH_WAIVER,
    WRONG,
    SummaryRow,
    collect_rows,
    compared_with_base,
    verdict_of,
)

INTERRUPTED = pytest.StashKey[int]()
"""The stash key of the number of collected tests, set if the run was interrupted."""
NOTES = pytest.StashKey[list[str]]()
"""The stash key of lines to print below the table."""
NOTHING_COMPARED = pytest.StashKey[str]()
"""The stash key of the base of ``--fx-against``, set if nothing was compared with it."""
CHECK = "fx-check"
"""The user property that carries the sentence on a check on a test's report."""


MOST_REASONS = 10
"""Maximum number of programs of a kind whose reasons are printed; the record of the run has all."""


def format_table(rows: Sequence[SummaryRow], columns: Sequence[SummaryColumn] = COLUMNS) -> list[str]:
    """Return the lines of the table with all columns, without a limit on their width."""
    return [text_of(line) for line in format_rows(rows, columns, verbose=True)]


def write_interruption(reporter: pytest.TerminalReporter) -> None:
    """Print how many tests were done when the user interrupted the run, and where the results are."""
    collected = reporter.config.stash.get(INTERRUPTED, None)
    reports = [report for kind in reporter.stats.values() for report in kind]
    if collected is None or any(isinstance(report, pytest.CollectReport) for report in reports):
        return
    done = len({report.nodeid for report in reports if getattr(report, "when", None) == "teardown"})
    line = f"fx: interrupted after {done} of {collected} tests"
    if collect_rows(reports):
        line += "; what they measured is above, and in .pytest_fx/last_run.json"
    reporter.write_line(fit(line, reporter.config.get_terminal_writer().fullwidth), yellow=True)


def write_summary(reporter: pytest.TerminalReporter, options: Options) -> None:
    """Print the table if any test recorded a row, with models in the order of the command line."""
    rows = collect_rows(report for kind in reporter.stats.values() for report in kind)
    if not rows:
        return
    order = {name: position for position, name in enumerate(options.models)}
    models = dict.fromkeys(row.model for row in rows)
    order = {model: (order.get(model, len(order)), position) for position, model in enumerate(models)}
    # The row of the capture comes first for its model: only this row has no nodes before.
    rows.sort(key=lambda row: (order[row.model], row.nodes_before is not None, row.program))
    verbose, width = reporter.verbosity > 0, reporter.config.get_terminal_writer().fullwidth
    reporter.ensure_newline()
    reporter.section(_title(width, verbose=verbose))

    def write(lines: Iterable[str], **markup: bool) -> None:
        for line in lines:
            reporter.write_line(fit(line, width), **markup)

    write(of_a_loaded_machine(rows), yellow=True)
    columns, problems = columns_of(reporter.config)
    _write_table(reporter, rows, columns, width, verbose=verbose)
    write([*problems, *filter(None, (column.problem(rows) for column in columns))], yellow=True)
    write(_of_the_baseline(reporter.config, rows))
    write(_of_unmatched(rows))
    write(_capture_notes(rows, verbose=verbose))
    write(f"{row.program} of {row.model}: {row.choice}" for row in rows if row.choice is not None)
    write(_warning_of_coarse(rows), yellow=True)
    write(_of_reasons(rows, verbose=verbose), yellow=True)
    write(reporter.config.stash.get(NOTES, []))
    write(_of_wrong(rows), red=True, bold=True)


def _title(width: int, *, verbose: bool) -> str:
    if verbose:
        return "fx: verdicts, largest errors against eager in float64, median times of a call"
    return "fx: verdicts, largest errors against eager in float64, speed-ups" if width >= WIDE else "fx: verdicts"


def _write_table(
    reporter: pytest.TerminalReporter,
    rows: Sequence[SummaryRow],
    columns: Sequence[SummaryColumn],
    width: int,
    *,
    verbose: bool,
) -> None:
    """Print the rows; without ``verbose``, one line for each model lists the passes that found nothing to change.

    With ``verbose`` and a terminal of unknown width, the width of the table is not limited.
    """
    idle: dict[str, list[str]] = {}
    for row in rows:
        if not verbose and verdict_of(row) == CHANGES_NOTHING:
            idle.setdefault(row.model, []).append(row.program)
    others = [row for row in rows if row.program not in idle.get(row.model, ())]
    is_width_known = shutil.get_terminal_size(fallback=(0, 0)).columns > 0
    if others:
        for line in format_rows(others, columns, width if is_width_known or not verbose else None, verbose=verbose):
            for text, markup in line:
                reporter.write(text, **markup)
            reporter.write("\n")
    for model, programs in idle.items():
        count = f"{len(programs)} passes" if len(programs) > 1 else "1 pass"
        reporter.write_line(fit(f"{model}: {count} found nothing to change: {', '.join(programs)}", width))


def of_a_loaded_machine(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Yield one line for all rows if other processes used the processor during timings."""
    shares = [row.processors for row in rows if row.processors is not None]
    timed = sum(row.speedup is not None or row.slowdown is not None for row in rows)
    if shares:
        low, high = min(shares), max(shares)
        share = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
        yield (
            f"loaded machine: {len(shares)} of {timed} timing(s) had {share} of a processor, and wider intervals for "
            "that; time with nothing else running"
        )


def _of_the_baseline(config: pytest.Config, rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Yield lines on the baseline: how many timings it has, and which passes change less than in it."""
    baseline = config.stash.get(BASELINE, None)
    if baseline is None:
        return
    timed = sum(row.speedup is not None for row in rows)
    compared = sum(row.slowdown is not None for row in rows)
    elsewhere = sum(row.measured_elsewhere is not None for row in rows)
    others = f"; {elsewhere} of another host, whose timings are not compared" if elsewhere else ""
    yield f"compared with {baseline.name}: {compared} of {timed} timing(s) are in it{others}"
    yield from (row.less for row in rows if row.less)


def _of_unmatched(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Yield a line for each pass whose patterns match nothing in a model, with the nearest place."""
    unmatched = [row for row in rows if row.unmatched is not None]
    yield from (f"{row.program} of {row.model}: {row.unmatched}" for row in unmatched[:MOST_REASONS])


def _of_wrong(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Yield a line that lists the wrong programs, and a line for the reason of each."""
    wrong = [row for row in rows if verdict_of(row) == WRONG]
    if wrong:
        reasons = [(row.outcome or "").removeprefix(f"{WRONG}: ") for row in wrong]
        listed = [f"{row.program} of {row.model} ({reason})" for row, reason in zip(wrong, reasons, strict=True)]
        yield f"fx: {len(wrong)} of {len(rows)} program(s) wrong: {'; '.join(listed)}"
    yield from (f"  {row.program} of {row.model}: {row.reason}" for row in wrong[:MOST_REASONS] if row.reason)


def _capture_notes(rows: Sequence[SummaryRow], *, verbose: bool) -> Iterator[str]:
    """Yield the reasons why models were not captured symbolically: a line for each way, or full messages."""
    for row in rows:
        for line in (row.refusal_messages if verbose else row.refusals) or ():
            way, _, reason = line.partition(": ")
            yield f"{row.model} is refused by {way} capture: {reason}"
        if row.way == "export" and row.batch != "free":
            yield f"{row.model} is exported for one call: its batch is {row.batch}"
        if row.note is not None:
            yield f"{row.model} is captured with a change: {row.note}"


def _warning_of_coarse(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Yield one line for all rows of low sensitivity, since in half precision every row may have it."""
    coarse = [row for row in rows if row.is_coarse and row.outcome is None]
    if coarse:
        worst = max(coarse, key=lambda row: row.detects or 0.0)
        yield (
            f"fx: {len(coarse)} of {len(rows)} row(s) would not have caught outputs that are off by a thousandth, "
            f"{worst.program} of {worst.model} none below {shown_error(worst.detects)}: compare in float32 or "
            "float64, or see --fx-detect"
        )


def _of_reasons(rows: Sequence[SummaryRow], *, verbose: bool) -> Iterator[str]:
    """Yield the reasons for waivers and unjudged rows; with ``verbose``, also for unchecked laws."""
    programs: dict[str, list[str]] = {}
    for row in rows:
        verdict, name = verdict_of(row), f"{row.program} of {row.model}"
        if verdict == RIGHT_WITH_WAIVER:
            programs.setdefault(f"{verdict}, {row.waiver}", []).append(name)
        elif verdict == NOT_JUDGED and row.outcome:
            programs.setdefault(row.outcome, []).append(name)
        for law, reason in (row.not_asked or {}).items() if verbose else ():
            programs.setdefault(f"law {law!r} not checked, {reason}", []).append(name)
    for reason, names in programs.items():
        yield f"fx: {reason}: {', '.join(names)}"


def require_comparisons(session: pytest.Session) -> None:
    """Fail the run, with a note in the summary, if ``--fx-against`` compared nothing and nothing else failed."""
    base, reporter = session.config.stash[OPTIONS].against, session.config.pluginmanager.get_plugin("terminalreporter")
    if base is None or reporter is None or is_worker(session.config) or session.config.option.collectonly:
        return
    rows = collect_rows(report for kind in reporter.stats.values() for report in kind)
    if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not compared_with_base(rows, base):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.stash[NOTHING_COMPARED] = base


def write_nothing_compared(reporter: pytest.TerminalReporter) -> None:
    """Print that ``--fx-against`` compared nothing, if so."""
    if (base := reporter.config.stash.get(NOTHING_COMPARED, None)) is not None:
        line = (
            f"fx: nothing was compared with {base}: no pass ran here and there on a model that it changes; name such a "
            "pass (--fx-pass) and model, and see -rs for the reasons of skipped tests"
        )
        reporter.write_line(line, red=True, bold=True)


def record_check(item: pytest.Item, sentence: str) -> None:
    """Attach the result of a check to the report of ``item``."""
    item.user_properties.append((CHECK, sentence))


def write_checks(reporter: pytest.TerminalReporter) -> None:
    """Print a line for each check that passed, or judged nothing; failed checks print a full report."""
    sentences = [
        str(value)
        for reports in reporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in getattr(report, "user_properties", ())
        if name == CHECK
    ]
    if sentences:
        reporter.section("fx: checks")
        for sentence in sentences:
            reporter.write_line(fit(sentence, terminal_width()))
