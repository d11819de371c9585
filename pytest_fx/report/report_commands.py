"""``python -m pytest_fx``: puts the parts of a run together, and compares two runs."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fx.errors import FxError
from pytest_fx.records.records import write_atomically
from pytest_fx.report.report_page import page_of
from pytest_fx.report.reported_run import PAGE, ReportedRun, read_run
from pytest_fx.report.run_comparison import changes_between
from pytest_fx.report.written_report import write_report


def main(arguments: Sequence[str] | None = None, out: Callable[[str], Any] = sys.stdout.write) -> int:
    """Run a command and return the exit status: 2 for what cannot be done, 1 if ``compare`` finds something worse."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_fx",
        description="reports of runs: what --fx-report wrote",
        epilog="python -m pytest_fx judge --help: candidates in the place of a reference",
    )
    commands = parser.add_subparsers(required=True)
    merging = commands.add_parser("merge", help="one report of the parts of a run, of several machines say")
    merging.add_argument("parts", nargs="+", type=Path, metavar="DIR", help="folders of reports")
    merging.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="the folder of the whole")
    merging.set_defaults(run=_merge)
    comparing = commands.add_parser("compare", help="what is new, gone, judged otherwise, slower or faster in a run")
    comparing.add_argument("before", type=Path, help="the folder of the earlier report")
    comparing.add_argument("now", type=Path, help="that of the later one")
    comparing.add_argument("-o", "--output", type=Path, metavar="FILE", help="a page with both, too")
    comparing.set_defaults(run=_compare)
    given = parser.parse_args(arguments)
    try:
        return given.run(given, out)
    except (FxError, OSError) as error:
        out(f"{type(error).__name__}: {error}\n")
        return 2


def merged_run(parts: Sequence[ReportedRun]) -> ReportedRun:
    """Return the run that these are parts of. Of a test that several of them ran, the last one counts."""
    outcomes: Counter[str] = Counter()
    last: dict[str, int] = {}
    for number, part in enumerate(parts):
        outcomes.update(part.run.get("outcomes") or {})
        last.update({str(line["test"]): number for line in part.lines})
    lines = [line for number, part in enumerate(parts) for line in part.lines if last[str(line["test"])] == number]
    runs = [part.run for part in parts]
    columns = {column["heading"]: column for run in runs for column in run.get("columns") or () if "heading" in column}
    commits = dict.fromkeys(str(run["commit"]) for run in runs if run.get("commit"))
    run = {
        "id": "+".join(sorted(str(run.get("id")) for run in runs)),
        # "?" sorts behind all times: the run has begun when a part is known to, and has ended if all parts have.
        "begun": min(str(run.get("begun", "?")) for run in runs),
        "ended": max(str(run.get("ended", "?")) for run in runs),
        "arguments": runs[0].get("arguments") or [],
        "interrupted": any(run.get("interrupted") for run in runs),
        "outcomes": dict(outcomes),
        "commit": ", ".join(commits) or None,
        "parts": len(parts),
        **({"columns": list(columns.values())} if columns else {}),
    }
    return ReportedRun(run, lines)


def _merge(given: argparse.Namespace, out: Callable[[str], Any]) -> int:
    run = merged_run([read_run(part) for part in given.parts])
    write_report(run, given.output)
    verdicts = Counter(row.verdict for row in run.rows())
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    out(f"{given.output / PAGE}: {len(given.parts)} part(s), {counted or 'no rows'}\n")
    return 0


def _compare(given: argparse.Namespace, out: Callable[[str], Any]) -> int:
    before, now = read_run(given.before), read_run(given.now)
    changes = changes_between(before.entries(), now.entries())
    for change in changes:
        out(f"{change.kind:8}{change}\n")
    out(f"{len(changes)} change(s) in {len(now.rows())} row(s)\n")
    if given.output is not None:
        write_atomically(given.output, page_of(now, before=before))
        out(f"{given.output}\n")
    return int(any(change.is_worse for change in changes))
