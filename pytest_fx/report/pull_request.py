"""What is reported to a pull request on GitHub: an annotation for each failure, and a summary in Markdown.

GitHub shows ten annotations of a kind for each step, and drops a summary above 1 MiB without a word.
"""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_fx.report.reported_run import EarlierRun, ReportedRow, ReportedRun
from pytest_fx.report.rows import CHANGES_NOTHING
from pytest_fx.report.run_comparison import RowChange, changes_between

MOST_BYTES = 1_000_000
"""Bytes of a summary: GitHub drops what is above 1 MiB (1,048,576)."""
MOST_ANNOTATIONS = 10
"""Annotations of a kind that GitHub shows for a step."""
LONGEST_MESSAGE = 2_000
"""Characters of an annotation."""


def annotations_of(run: ReportedRun, changes: Sequence[RowChange], root: Path) -> list[str]:
    """Return workflow commands: an error for each failure, at the user's line, a warning for what became slower."""
    errors = [_error(failure, root) for failure in run.failures()]
    slower = [change for change in changes if change.kind == "slower"]
    warnings = [f"::warning title={_property('pytest-fx: slower')}::{_message(str(change))}" for change in slower]
    return [*_first(errors, "error", "failures"), *_first(warnings, "warning", "programs that became slower")]


def summary_of(run: ReportedRun, earlier: EarlierRun | None = None, limit: int = MOST_BYTES) -> str:
    """Return the summary in Markdown, of at most ``limit`` bytes; what is cut is named at its top."""
    rows = run.rows()
    changes = [] if earlier is None else changes_between(earlier.entries, run.entries())
    counts = Counter(row.verdict for row in rows)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    head = [f"## pytest-fx: {counted or 'no rows'}", ""]
    lines = [*_failure_lines(run), *_change_lines(changes, earlier), *_row_lines(rows, run.headings(), earlier)]
    notice = "> **This summary is cut: {} of {} lines are left out, as GitHub shows 1 MiB.** The report has everything."
    room = limit - len("\n".join(head).encode()) - len(notice.encode()) - 40
    kept = _fitting(lines, room)
    if len(kept) < len(lines):
        head += [notice.format(len(lines) - len(kept), len(lines)), ""]
    return "\n".join([*head, *kept]) + "\n"


def write_summary_file(text: str, folder: Path) -> Path:
    """Add the summary to the file that GitHub names for the step, or replace ``summary.md`` in ``folder``."""
    named = os.environ.get("GITHUB_STEP_SUMMARY")
    path = Path(named) if named else folder / "summary.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if named else "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _first(commands: Sequence[str], kind: str, what: str) -> Iterator[str]:
    """As many as GitHub shows, the last of which counts the others."""
    if len(commands) <= MOST_ANNOTATIONS:
        yield from commands
        return
    yield from commands[: MOST_ANNOTATIONS - 1]
    yield f"::{kind} title=pytest-fx::{len(commands) - MOST_ANNOTATIONS + 1} more {what} are in the summary"


def _error(failure: Mapping[str, Any], root: Path) -> str:
    facts: Mapping[str, Any] = failure.get("facts") or {}
    place: Mapping[str, Any] = facts.get("where") or failure.get("place") or {}
    file = _relative(str(place.get("file", "")), root)
    title = f"{facts['program']} is wrong on {facts['model']}" if "program" in facts else f"{failure['test']} failed"
    parts = [
        facts.get("message"),
        facts.get("why") or (f"first wrong node: {facts['node']}" if "node" in facts else ""),
    ]
    said = "\n".join(filter(None, parts)) or _said(failure)
    where = f"file={_property(file)},line={int(place.get('line') or 1)}," if file else ""
    return f"::error {where}title={_property(title)}::{_message(said)}"


def _said(failure: Mapping[str, Any]) -> str:
    """The lines of a failure that pytest marks, or its end."""
    lines = str(failure["text"]).splitlines()
    marked = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return "\n".join(marked or lines[-5:]) or "no text"


def _relative(file: str, root: Path) -> str:
    """A path as GitHub knows it, from the root folder of the checkout; nothing for a file outside of it."""
    workspace = os.path.normpath(os.environ.get("GITHUB_WORKSPACE") or root)
    path = Path(os.path.normpath(root / file))
    return path.relative_to(workspace).as_posix() if file and path.is_relative_to(workspace) else ""


def _message(text: str) -> str:
    """A message as a workflow command has it: in one line."""
    return text[:LONGEST_MESSAGE].replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The same of a property, which colons and commas would end."""
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def _failure_lines(run: ReportedRun) -> Iterator[str]:
    failures = run.failures()
    if not failures:
        return
    yield f"### {len(failures)} failure(s)"
    yield ""
    for failure in failures:
        facts: Mapping[str, Any] = failure.get("facts") or {}
        named = f"{facts['program']} of {facts['model']}" if "program" in facts else failure["test"]
        where: Mapping[str, Any] = facts.get("where") or {}
        parts = [facts.get("message") or _said(failure).partition("\n")[0], facts.get("node")]
        parts.append(f"{Path(str(where['file'])).name}:{where['line']}" if where else None)
        yield f"- **{_cell(named)}**: {'; '.join(_cell(part) for part in parts if part)}"
        yield from (f"  - {_cell(' '.join(line.split()))}" for line in str(facts.get("why", "")).splitlines())
    yield ""


def _change_lines(changes: Sequence[RowChange], earlier: EarlierRun | None) -> Iterator[str]:
    if earlier is None:
        return
    yield f"### Since {_cell(earlier.when)}: {f'{len(changes)} change(s)' if changes else 'no change'}"
    yield ""
    for change in changes:
        yield f"- {change.kind}: {_cell(str(change))}"
    if changes:
        yield ""


def _row_lines(rows: Sequence[ReportedRow], headings: Sequence[str], earlier: EarlierRun | None) -> Iterator[str]:
    shown = [row for row in rows if row.verdict != CHANGES_NOTHING]
    heads = ["model", "program", "verdict", "nodes", "error (by rounding)", "speed-up (95 % interval)"]
    heads += ["before"] if earlier is not None else []
    heads += [_cell(heading) for heading in headings]
    if shown:
        yield f"| {' | '.join(heads)} |"
        yield f"|{' --- |' * len(heads)}"
    for row in shown:
        known = row.row
        own = "" if known.eager_error is None else f" ({known.eager_error:.1e})"
        error = "" if known.error is None else f"{known.error:.1e}{own}"
        cells = [known.model, known.program, row.verdict, known.nodes(" → "), error, _speedup(row)]
        old = None if earlier is None else earlier.entries.get(row.key)
        if earlier is not None:
            timed = old is not None and old.speedup is not None
            cells.append("new" if old is None else f"{old.verdict}, {old.speedup:.3f}" if timed else old.verdict)
        cells += [row.columns.get(heading, "") for heading in headings]
        yield f"| {' | '.join(map(_cell, cells))} |"
    idle = len(rows) - len(shown)
    if idle:
        yield ""
        yield f"{idle} row(s) changed nothing."


def _speedup(row: ReportedRow) -> str:
    known = row.row
    if known.speedup is None or known.outcome is not None:
        return ""
    if known.noisy:
        return "too noisy to tell"
    return f"{known.speedup:.3f} ({known.speedup_low:.3f} to {known.speedup_high:.3f}), {known.verdict}"


def _cell(text: object) -> str:
    """Text of a model or a pass as Markdown that means nothing else, in one line."""
    escaped = html.escape(str(text), quote=False).replace("\r", " ").replace("\n", " ")
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#~@" else letter for letter in escaped)


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    """As many of the first lines as have room."""
    kept: list[str] = []
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    return kept
