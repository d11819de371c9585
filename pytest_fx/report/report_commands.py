"""``python -m pytest_fx``: merge the reports of the parts of a run, and compare two runs."""

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
    """Run a command and return the exit status: 2 for an error, 1 if ``compare`` finds a regression."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_fx",
        description="work with reports that --fx-report wrote",
        epilog="python -m pytest_fx judge --help: judge candidates that replace a reference",
    )
    commands = parser.add_subparsers(required=True)
    merging = commands.add_parser("merge", help="merge the reports of a run's parts, for example from several machines")
    merging.add_argument("parts", nargs="+", type=Path, metavar="DIR", help="folders of reports")
    merging.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="the folder of the merged report"
    )
    merging.set_defaults(run=_merge)
    comparing = commands.add_parser(
        "compare", help="list rows that are new, gone, slower, faster, or have another verdict"
    )
    comparing.add_argument("before", type=Path, help="the folder of the earlier report")
    comparing.add_argument("now", type=Path, help="the folder of the later report")
    comparing.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write a page that compares both")
    comparing.set_defaults(run=_compare)
    options = parser.parse_args(arguments)
    try:
        return options.run(options, out)
    except (FxError, OSError) as error:
        out(f"{type(error).__name__}: {error}\n")
        return 2


def merged_run(parts: Sequence[ReportedRun]) -> ReportedRun:
    """Return the run that consists of these parts. If several parts ran a test, the last one counts."""
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
        # "?" sorts after all times: the start is the earliest known one, and the end is known if all parts have ended.
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


def _merge(options: argparse.Namespace, out: Callable[[str], Any]) -> int:
    run = merged_run([read_run(part) for part in options.parts])
    write_report(run, options.output)
    verdicts = Counter(row.verdict for row in run.rows())
    counted = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    out(f"{options.output / PAGE}: {len(options.parts)} part(s), {counted or 'no rows'}\n")
    return 0


def _compare(options: argparse.Namespace, out: Callable[[str], Any]) -> int:
    before, now = read_run(options.before), read_run(options.now)
    changes = changes_between(before.entries(), now.entries())
    for change in changes:
        out(f"{change.kind:8}{change}\n")
    out(f"{len(changes)} change(s) in {len(now.rows())} row(s)\n")
    if options.output is not None:
        write_atomically(options.output, page_of(now, before=before))
        out(f"{options.output}\n")
    return int(any(change.is_worse for change in changes))
