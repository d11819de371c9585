"""The page of a report: a single file that fetches nothing.

The data is untrusted: models and passes may choose any text. ``page/report.js`` inserts it as text, never as markup.
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
"""Maximum size of a page, in bytes."""
MOST_ROWS = 40_000
"""Maximum number of rows of a page."""
LONGEST_CELL = 200
"""Maximum length of a cell of the user's columns on a page, in characters."""
_FOLDER = Path(__file__).parent / "page"
_SCRIPTS = ("elements.js", "plots.js", "failures.js", "report.js")
_NUMBERS = (
    *("nodes_before", "nodes_after", "edits", "kept_bytes", "kept_bytes_before"),
    *("float64_error", "error", "eager_error", "allowed_error", "detects"),
    *("eager_seconds", "seconds", "speedup", "speedup_low", "speedup_high", "pairs", "eager_estimated", "estimated"),
    *("eager_host_seconds", "host_seconds", "outliers", "noise", "processors", "eager_peak_memory", "peak_memory"),
    *("baseline_speedup", "slowdown", "slowdown_low", "slowdown_high"),
)
_TEXTS = (
    *("model", "program", "outcome", "reason", "dtype", "verdict", "waiver", "way", "batch", "note", "kernels"),
    *("change_verdict", "metric_sentence", "training"),
)
_LEAST_URGENT = "first those that are right or change nothing"


@dataclass(slots=True)
class _Contents:
    """Limits on the optional contents of a page."""

    rows: int = MOST_ROWS
    """Maximum number of rows."""
    samples: bool = True
    """Whether the page has the ratio of each pair."""
    runs: int = 20
    """Maximum number of earlier runs."""
    failures: int = 1_000
    """Maximum number of failures shown in full."""
    texts: int = 5_000
    """Maximum number of failures shown with their text."""
    left_out: list[str] = field(default_factory=list[str])
    """Descriptions of the contents that were left out."""


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
        history: earlier runs reported in the same folder, the oldest first.
        before: a run to compare with, instead of the last of ``history``.
        limit: the maximum size of the page, in bytes; contents that do not fit are left out, with a note on the page.
    """
    earlier = EarlierRun.of(before) if before is not None else history[-1] if history else None
    changes = [] if earlier is None else changes_between(earlier.entries, run.entries())
    rows = run.rows()
    contents = _Contents()
    page = ""
    for cut in _cuts(contents, len(rows), len(run.failures()), len(history)):
        contents.left_out += [cut] if cut else []
        page = _page(_data(run, rows, history, earlier, changes, contents))
        if len(page.encode()) <= limit:
            break
    return page


def _cuts(contents: _Contents, rows: int, failures: int, runs: int) -> Iterator[str]:
    """Leave out more contents at each step, and yield a description of them; an empty text if there were none."""
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
        contents.left_out[:] = [sentence for sentence in contents.left_out if not sentence.endswith(_LEAST_URGENT)]
        yield f"{rows - contents.rows} of {rows} rows, {_LEAST_URGENT}"


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

    included = _most_urgent(rows, contents.rows)
    left_out = list(contents.left_out)
    # If rows were cut to make the page fit, a note is there already.
    if len(included) < len(rows) and not any("rows" in sentence for sentence in left_out):
        left_out.append(f"{len(rows) - len(included)} of {len(rows)} rows, {_LEAST_URGENT}")
    machines = list(dict.fromkeys(json.dumps(row.machine, sort_keys=True, default=str) for row in rows))
    failures = run.failures()
    by_key: dict[tuple[str, str], int] = {}
    by_test: dict[str, int] = {}
    for number, failure in enumerate(failures[: contents.texts]):
        by_test.setdefault(failure["test"], number)
        facts = failure.get("facts") or {}
        by_key.setdefault((facts.get("model", ""), facts.get("program", "")), number)
    reasons = {line["test"]: line["text"] for line in run.lines if line["kind"] == "skip"}
    headings = [name for name in run.headings() if any(row.columns.get(name, "-") != "-" for row in included)]
    compact: list[list[Any]] = []
    for row in included:
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
            _failure(line, number < contents.failures) for number, line in enumerate(failures[: contents.texts])
        ],
        "failureCount": len(failures),
        "history": _history(included, history[-contents.runs :]),
        "earlier": None if earlier is None else earlier.when,
        "changes": [[change.kind, change.model, change.program, change.text] for change in changes[:2_000]],
        "changeCount": len(changes),
        "leftOut": left_out,
    }


_FIRST = {"wrong": 0, "right": 2, "changes nothing": 3}
"""Priority of rows by verdict if a page cannot have all: smaller first, other verdicts are 1."""


def _most_urgent(rows: Sequence[ReportedRow], most: int) -> list[ReportedRow]:
    """Return at most ``most`` rows, chosen by the priority of their verdicts, in the original order."""
    if len(rows) <= most:
        return list(rows)
    order = sorted(range(len(rows)), key=lambda place: _FIRST.get(rows[place].verdict, 1))
    return [rows[place] for place in sorted(order[:most])]


def _own_cell(row: ReportedRow, heading: str) -> str | None:
    """Return the cell of a user's column, cut to the maximum length; None for an empty one."""
    text = row.columns.get(heading, "-")
    return None if text == "-" else text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]} …"


def _short(value: Any) -> Any:
    """Return a float rounded to four digits, or as text if it is not finite; other values are returned unchanged."""
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
    """Return the facts on a machine as pairs of name and value."""
    facts: dict[str, Any] = {"in short": describe(machine), **machine}
    versions: Any = facts.pop("versions", None)
    if isinstance(versions, dict):
        facts.update({str(name): version for name, version in versions.items()})
    return [[str(name).replace("_", " "), str(value)] for name, value in facts.items() if value is not None]


def _failure(line: Mapping[str, Any], in_full: bool) -> dict[str, Any]:
    facts: Mapping[str, Any] = line.get("facts") or {}
    entry = {name: line.get(name) for name in ("test", "when", "text", "place")}
    entry.update({name: facts.get(name) for name in ("model", "program", "law", "message", "why", "node", "where")})
    if not in_full:
        return {**entry, "isCut": bool(facts)}
    before, after = facts.get("before"), facts.get("after")
    if isinstance(before, str):
        marks = facts.get("before_line"), facts.get("after_line")
        rows, left_out = side_by_side(before, after, marks)
        entry["code"] = {"rows": rows, "leftOut": left_out, "marks": marks, "hasAfter": after is not None}
    maps = [facts[name] for name in ("node_map", "output_map") if name in facts]
    entry["maps"] = [
        {**value_map, **{end: _short(value_map[end]) for end in ("smallest", "largest")}} for value_map in maps
    ]
    if "drawing" in facts:
        entry["drawing"] = base64.b64encode(facts["drawing"].encode()).decode()
    entry["difference"] = facts.get("difference")
    return entry


def _history(rows: Sequence[ReportedRow], runs: Sequence[EarlierRun]) -> dict[str, Any]:
    """Return the earlier runs, and by row number the speed-ups with intervals that the same host measured."""
    timings: dict[str, list[Any]] = {}
    for place, row in enumerate(rows):
        entries = [(number, run.entries.get(row.key)) for number, run in enumerate(runs)]
        points = [
            [number, *map(_short, (entry.speedup, entry.low, entry.high))]
            for number, entry in entries
            if entry is not None and entry.speedup is not None and entry.host == row.machine.get("host")
        ]
        if points:
            timings[str(place)] = points
    return {"runs": [run.when for run in runs], "rows": timings}


def _page(data: Mapping[str, Any]) -> str:
    off = "This page is laid out by a script in it, which is switched off here."
    body = f'<main id="report"><noscript>{off}</noscript></main>'
    return standalone_page(data["title"], data, body, _FOLDER / "report.css", [_FOLDER / name for name in _SCRIPTS])
