"""Reports for a pull request on GitHub: an annotation for each failure, and a summary in Markdown.

GitHub shows ten annotations of a kind for each step, and silently drops a summary above 1 MiB.
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
"""Maximum size of a summary, in bytes: GitHub drops one above 1 MiB (1,048,576)."""
MOST_ANNOTATIONS = 10
"""Maximum number of annotations of a kind that GitHub shows for a step."""
LONGEST_MESSAGE = 2_000
"""Maximum length of an annotation, in characters."""


def annotations_of(run: ReportedRun, changes: Sequence[RowChange], root: Path) -> list[str]:
    """Return workflow commands: an error at the user's line for each failure, a warning for each slower program."""
    errors = [_error(failure, root) for failure in run.failures()]
    slower = [change for change in changes if change.kind == "slower"]
    warnings = [f"::warning title={_property('pytest-fx: slower')}::{_message(str(change))}" for change in slower]
    return [*_first(errors, "error", "failures"), *_first(warnings, "warning", "programs that became slower")]


def summary_of(run: ReportedRun, earlier: EarlierRun | None = None, limit: int = MOST_BYTES) -> str:
    """Return the summary in Markdown, cut to ``limit`` bytes; a notice at the top counts the lines left out."""
    rows = run.rows()
    changes = [] if earlier is None else changes_between(earlier.entries, run.entries())
    counts = Counter(row.verdict for row in rows)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    head = [f"## pytest-fx: {counted or 'no rows'}", ""]
    lines = [*_failure_lines(run), *_change_lines(changes, earlier), *_row_lines(rows, run.headings(), earlier)]
    notice = "> **This summary is cut: {} of {} lines are left out, as GitHub shows 1 MiB.** The report has everything."
    room = limit - len("\n".join(head).encode()) - len(notice.encode()) - 40
    included = _fitting(lines, room)
    if len(included) < len(lines):
        head += [notice.format(len(lines) - len(included), len(lines)), ""]
    return "\n".join([*head, *included]) + "\n"


def write_summary_file(text: str, folder: Path) -> Path:
    """Add the summary to the file that GitHub names for the step, or replace ``summary.md`` in ``folder``."""
    named = os.environ.get("GITHUB_STEP_SUMMARY")
    path = Path(named) if named else folder / "summary.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a" if named else "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _first(commands: Sequence[str], kind: str, what: str) -> Iterator[str]:
    """Yield as many commands as GitHub shows; the last one counts the rest."""
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
    message = "\n".join(filter(None, parts)) or _excerpt(failure)
    where = f"file={_property(file)},line={int(place.get('line') or 1)}," if file else ""
    return f"::error {where}title={_property(title)}::{_message(message)}"


def _excerpt(failure: Mapping[str, Any]) -> str:
    """Return the error lines (``E``) of a failure, or its last lines."""
    lines = str(failure["text"]).splitlines()
    marked = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return "\n".join(marked or lines[-5:]) or "no text"


def _relative(file: str, root: Path) -> str:
    """Return a path relative to the root of the checkout; an empty text for a file outside of it."""
    workspace = os.path.normpath(os.environ.get("GITHUB_WORKSPACE") or root)
    path = Path(os.path.normpath(root / file))
    return path.relative_to(workspace).as_posix() if file and path.is_relative_to(workspace) else ""


def _message(text: str) -> str:
    """Return a message escaped for a workflow command, in one line."""
    return text[:LONGEST_MESSAGE].replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Return a property of a workflow command, with colons and commas escaped too."""
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
        parts = [facts.get("message") or _excerpt(failure).partition("\n")[0], facts.get("node")]
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
    changed = [row for row in rows if row.verdict != CHANGES_NOTHING]
    heads = ["model", "program", "verdict", "nodes", "error (by rounding)", "speed-up (95 % interval)"]
    heads += ["before"] if earlier is not None else []
    heads += [_cell(heading) for heading in headings]
    if changed:
        yield f"| {' | '.join(heads)} |"
        yield f"|{' --- |' * len(heads)}"
    for row in changed:
        summary = row.row
        own = "" if summary.eager_error is None else f" ({summary.eager_error:.1e})"
        error = "" if summary.error is None else f"{summary.error:.1e}{own}"
        cells = [summary.model, summary.program, row.verdict, summary.nodes(" → "), error, _speedup(row)]
        old = None if earlier is None else earlier.entries.get(row.key)
        if earlier is not None:
            timed = old is not None and old.speedup is not None
            cells.append("new" if old is None else f"{old.verdict}, {old.speedup:.3f}" if timed else old.verdict)
        cells += [row.columns.get(heading, "") for heading in headings]
        yield f"| {' | '.join(map(_cell, cells))} |"
    idle = len(rows) - len(changed)
    if idle:
        yield ""
        yield f"{idle} row(s) changed nothing."


def _speedup(row: ReportedRow) -> str:
    summary = row.row
    if summary.speedup is None or summary.outcome is not None:
        return ""
    if summary.noisy:
        return "too noisy to tell"
    return f"{summary.speedup:.3f} ({summary.speedup_low:.3f} to {summary.speedup_high:.3f}), {summary.verdict}"


def _cell(text: object) -> str:
    """Return text as one line of Markdown with all markup escaped."""
    escaped = html.escape(str(text), quote=False).replace("\r", " ").replace("\n", " ")
    return "".join(f"\\{letter}" if letter in "\\`*_[]|#~@" else letter for letter in escaped)


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    """Return as many of the first lines as fit in ``room`` bytes."""
    fitting: list[str] = []
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        fitting.append(line)
    return fitting
