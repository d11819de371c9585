"""The page of a report: one file with everything in it, which is allowed to fetch nothing.

What is written here is data, all of it text that models and passes may have made up; ``page/report.js`` puts it on the
page as text, never as markup.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fx.drawing.html_page import standalone_page
from pytest_fx.records.baseline import describe
from pytest_fx.report.reported_run import EarlierRun, ReportedRow, ReportedRun
from pytest_fx.report.run_comparison import RowChange, changes_between
from pytest_fx.report.side_by_side import side_by_side

MOST_BYTES = 10_000_000
"""Bytes that a page takes at most."""
MOST_ROWS = 40_000
"""Rows that a page has at most."""
LONGEST_CELL = 200
"""Characters of a cell of the user's columns that a page shows."""
_FOLDER = Path(__file__).parent / "page"
_SCRIPTS = ("elements.js", "plots.js", "failures.js", "report.js")
_NUMBERS = (
    *("nodes_before", "nodes_after", "edits", "float64_error", "error", "eager_error", "allowed_error", "detects"),
    *("eager_seconds", "seconds", "speedup", "speedup_low", "speedup_high", "pairs", "eager_estimated", "estimated"),
    *("eager_host_seconds", "host_seconds", "outliers", "noise", "processors", "eager_peak_memory", "peak_memory"),
    *("baseline_speedup", "slowdown", "slowdown_low", "slowdown_high"),
)
_TEXTS = (
    *("model", "program", "outcome", "reason", "dtype", "verdict", "waiver", "way", "batch", "note", "kernels"),
    "change_verdict",
)
_NOT_TELLING = "first those that are right or change nothing"


@dataclass(slots=True)
class _Contents:
    """What a page can be made without."""

    rows: int = MOST_ROWS
    """How many rows it has."""
    samples: bool = True
    """Whether it has the ratio of each pair."""
    runs: int = 20
    """How many earlier runs it has."""
    failures: int = 1_000
    """How many failures it shows in full."""
    texts: int = 5_000
    """How many failures it has the text of."""
    left_out: list[str] = field(default_factory=list[str])
    """What is said of it."""


def page_of(
    run: ReportedRun,
    history: Sequence[EarlierRun] = (),
    *,
    before: ReportedRun | None = None,
    limit: int = MOST_BYTES,
) -> str:
    """Return the page of a run.

    Args:
        run: the run.
        history: runs that were reported in the same folder before, the oldest first.
        before: a run to compare with in place of the last of these.
        limit: the bytes that the page may take; what does not fit is left out, and the page says so.
    """
    earlier = EarlierRun.of(before) if before is not None else history[-1] if history else None
    changes = [] if earlier is None else changes_between(earlier.entries, run.entries())
    rows = run.rows()
    contents = _Contents()
    page = ""
    for said in _cuts(contents, len(rows), len(run.failures()), len(history)):
        contents.left_out += [said] if said else []
        page = _page(_data(run, rows, history, earlier, changes, contents))
        if len(page.encode()) <= limit:
            break
    return page


def _cuts(contents: _Contents, rows: int, failures: int, runs: int) -> Iterator[str]:
    """Leave out something more each time, and yield what that is, if the page had it."""
    yield ""
    contents.samples = False
    yield "the single pairs of timings"
    contents.failures = 20
    yield f"programs, maps and drawings of {failures - 20} of {failures} failures" if failures > 20 else ""
    contents.runs = 3
    yield f"{runs - 3} of {runs} earlier runs" if runs > 3 else ""
    contents.failures, contents.texts = 5, 200
    yield f"the text of {failures - 200} of {failures} failures" if failures > 200 else ""
    for _ in range(8):
        contents.rows = min(contents.rows, rows) // 2
        contents.left_out[:] = [said for said in contents.left_out if not said.endswith(_NOT_TELLING)]
        yield f"{rows - contents.rows} of {rows} rows, {_NOT_TELLING}"


def _data(
    run: ReportedRun,
    rows: Sequence[ReportedRow],
    history: Sequence[EarlierRun],
    earlier: EarlierRun | None,
    changes: Sequence[RowChange],
    contents: _Contents,
) -> dict[str, Any]:
    strings: dict[str, int] = {}

    def text(value: Any) -> int | None:
        return None if value is None else strings.setdefault(str(value), len(strings))

    kept = _most_telling(rows, contents.rows)
    left_out = list(contents.left_out)
    # Where the page was too large, what was cut to make it fit is said already.
    if len(kept) < len(rows) and not any("rows" in said for said in left_out):
        left_out.append(f"{len(rows) - len(kept)} of {len(rows)} rows, {_NOT_TELLING}")
    machines = list(dict.fromkeys(json.dumps(row.machine, sort_keys=True, default=str) for row in rows))
    failures = run.failures()
    by_key: dict[tuple[str, str], int] = {}
    by_test: dict[str, int] = {}
    for number, failure in enumerate(failures[: contents.texts]):
        by_test.setdefault(failure["test"], number)
        facts = failure.get("facts") or {}
        by_key.setdefault((facts.get("model", ""), facts.get("program", "")), number)
    reasons = {line["test"]: line["text"] for line in run.lines if line["kind"] == "skip"}
    headings = [one for one in run.headings() if any(row.columns.get(one, "-") != "-" for row in kept)]
    compact: list[list[Any]] = []
    for row in kept:
        failure = by_key.get(row.key, next((by_test[test] for test in row.tests if test in by_test), None))
        why = next((reasons[test] for test in row.tests if test in reasons), None)
        compact.append(
            [
                text(row.verdict),
                *(text(getattr(row.row, name)) for name in _TEXTS),
                *(_short(getattr(row.row, name)) for name in _NUMBERS),
                int(row.row.noisy or 0),
                failure,
                text(why),
                text(row.tests[-1]),
                machines.index(json.dumps(row.machine, sort_keys=True, default=str)),
                _ratios(row) if contents.samples else None,
                [text(_own_cell(row, heading)) for heading in headings],
            ]
        )
    return {
        "title": f"pytest-fx report, {run.when}",
        "run": {name: run.run.get(name) for name in ("begun", "ended", "commit", "outcomes", "interrupted", "parts")},
        "command": " ".join(map(str, run.run.get("arguments") or ())),
        "verdicts": Counter(row.verdict for row in rows),
        "fields": ["judged", *_TEXTS, *_NUMBERS, "noisy", "failure", "why", "test", "machine", "ratios", "own"],
        "own": headings,
        "texts": ["judged", *_TEXTS, "why", "test"],
        "rows": compact,
        "strings": list(strings),
        "machines": [_machine(json.loads(machine)) for machine in machines],
        "failures": [
            _failure(one, number < contents.failures) for number, one in enumerate(failures[: contents.texts])
        ],
        "failureCount": len(failures),
        "history": _history(kept, history[-contents.runs :]),
        "earlier": None if earlier is None else earlier.when,
        "changes": [[one.kind, one.model, one.program, one.text] for one in changes[:2_000]],
        "changeCount": len(changes),
        "leftOut": left_out,
    }


_FIRST = {"wrong": 0, "right": 2, "changes nothing": 3}
"""Which rows a page has first, where it cannot have all; the others stand between."""


def _most_telling(rows: Sequence[ReportedRow], most: int) -> list[ReportedRow]:
    """As many rows as a page can have, those first that are not right; in the order in which they came."""
    if len(rows) <= most:
        return list(rows)
    order = sorted(range(len(rows)), key=lambda place: _FIRST.get(rows[place].verdict, 1))
    return [rows[place] for place in sorted(order[:most])]


def _own_cell(row: ReportedRow, heading: str) -> str | None:
    """Return what a column of the user shows of a row, as far as a table has room for it."""
    shown = row.columns.get(heading, "-")
    return None if shown == "-" else shown if len(shown) <= LONGEST_CELL else f"{shown[:LONGEST_CELL]} …"


def _short(value: Any) -> Any:
    """A number with four digits; one that JSON does not have as text."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    return value


def _ratios(row: ReportedRow) -> list[float] | None:
    timing = row.timing
    if timing is None:
        return None
    pairs = zip(timing.get("eager") or (), timing.get("transformed") or (), strict=False)
    return [_short(eager / transformed) for eager, transformed in pairs if transformed > 0][:200]


def _machine(machine: Mapping[str, Any]) -> list[list[str]]:
    """Return what is known of a machine, in pairs."""
    facts: dict[str, Any] = {"in short": describe(machine), **machine}
    versions: Any = facts.pop("versions", None)
    if isinstance(versions, dict):
        facts.update({str(name): version for name, version in versions.items()})
    return [[str(name).replace("_", " "), str(value)] for name, value in facts.items() if value is not None]


def _failure(line: Mapping[str, Any], in_full: bool) -> dict[str, Any]:
    facts: Mapping[str, Any] = line.get("facts") or {}
    shown = {name: line.get(name) for name in ("test", "when", "text", "place")}
    shown.update({name: facts.get(name) for name in ("model", "program", "law", "message", "why", "node", "where")})
    if not in_full:
        return {**shown, "isCut": bool(facts)}
    before, after = facts.get("before"), facts.get("after")
    if isinstance(before, str):
        marks = facts.get("before_line"), facts.get("after_line")
        rows, left_out = side_by_side(before, after, marks)
        shown["code"] = {"rows": rows, "leftOut": left_out, "marks": marks, "hasAfter": after is not None}
    maps = [facts[name] for name in ("node_map", "output_map") if name in facts]
    shown["maps"] = [{**one, **{end: _short(one[end]) for end in ("smallest", "largest")}} for one in maps]
    if "drawing" in facts:
        shown["drawing"] = base64.b64encode(facts["drawing"].encode()).decode()
    shown["difference"] = facts.get("difference")
    return shown


def _history(rows: Sequence[ReportedRow], runs: Sequence[EarlierRun]) -> dict[str, Any]:
    """For each row that was timed before on the same host, by its place: the runs, and the speed-ups with intervals."""
    found: dict[str, list[Any]] = {}
    for place, row in enumerate(rows):
        entries = [(number, run.entries.get(row.key)) for number, run in enumerate(runs)]
        points = [
            [number, *map(_short, (entry.speedup, entry.low, entry.high))]
            for number, entry in entries
            if entry is not None and entry.speedup is not None and entry.host == row.machine.get("host")
        ]
        if points:
            found[str(place)] = points
    return {"runs": [run.when for run in runs], "rows": found}


def _page(data: Mapping[str, Any]) -> str:
    off = "This page is laid out by a script in it, which is switched off here."
    body = f'<main id="report"><noscript>{off}</noscript></main>'
    return standalone_page(data["title"], data, body, _FOLDER / "report.css", [_FOLDER / name for name in _SCRIPTS])
