"""Break the lines of messages to the width of the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import Any

from _pytest._code.code import ReprFileLocation

_OURS = re.compile(r"(E +)((?:pytest_fx|fx)\.(?:\w+\.)*)(?=\w+: )")
"""Start of the first line of our errors: pytest's marker, and the module of the error class."""
_CODE = re.compile(r" {4}(?! *(?:where|value|why|note|also|try|error) )")
"""Start of the first line of a code block, which follows a line that ends with a colon."""
_PLACE = re.compile(r"(.+:\d+, in [^ ]+:)  (.+)")
"""A place, followed by its line of code."""
_LABELLED = re.compile(r" *(where|value|why|note|also|try|error) +")
"""Start of a labelled line of a message."""


def fit(text: str, width: int) -> str:
    """Return ``text`` with lines longer than ``width`` broken at spaces, and indented below their label.

    Lines of code, and words longer than ``width``, such as paths, stay whole.

    >>> print(fit("  why    they are 0.0059 apart, SQNR 53.7 dB", 30))
      why    they are 0.0059
               apart, SQNR 53.7 dB
    """
    fitted: list[str] = []
    is_code, before = False, ""
    for line in text.split("\n"):
        is_code = line[:4].isspace() or not line if is_code else before.endswith(":") and bool(_CODE.match(line))
        fitted += [line] if is_code else _fit_line(line, width)
        before = line if not line.startswith(" ") else ""
    return "\n".join(fitted)


def _fit_line(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    label = _LABELLED.match(line)
    text = line.lstrip()
    own = " " * (len(line) - len(text))
    indent = f"{own}  " if label is None else " " * (label.end() + 2)
    place = _PLACE.match(line)
    if place is not None:
        return [*_fit_line(place[1], width), indent + place[2]]
    broken = textwrap.wrap(
        text, width, initial_indent=own, subsequent_indent=indent, break_on_hyphens=False,
        break_long_words=False, replace_whitespace=False,
    )  # fmt: skip
    return broken or [line]


def terminal_width() -> int:
    """Return the number of columns of the terminal; 80 without a terminal, as in pytest."""
    return shutil.get_terminal_size(fallback=(80, 24)).columns


def fit_report(report: Any, error: BaseException | None = None) -> None:
    """Break the lines of our errors in the report of a failed test to the width of the terminal.

    pytest's note that all frames are hidden is removed, since our errors name their place. If ``error`` has a one-line
    reason, pytest's summary line of the test shows it instead of the beginning of the message.
    """
    if reason := getattr(error, "reason", ""):
        _name_reason(report, reason)
    for traceback, *_ in getattr(report.longrepr, "chain", ()):
        for entry in getattr(traceback, "reprentries", ()):
            lines: list[str] = getattr(entry, "lines", [])
            start = next((place for place, line in enumerate(lines) if _OURS.match(line)), None)
            if start is not None:
                entry.lines = lines[:start] + _fit_error(lines[start:], terminal_width())
                if (traceback.extraline or "").startswith("All traceback entries are hidden"):
                    traceback.extraline = None


def _name_reason(report: Any, reason: str) -> None:
    """Put ``reason`` into pytest's summary line of a failed test, also if all frames are hidden."""
    *chain, last = getattr(report.longrepr, "chain", None) or [None]
    if last is not None:
        traceback, crash, description = last
        file, line, _ = report.location
        at = (file, (line or 0) + 1) if crash is None else (crash.path, crash.lineno)
        report.longrepr.reprcrash = ReprFileLocation(*at, reason)
        report.longrepr.chain = [*chain, (traceback, report.longrepr.reprcrash, description)]


def _fit_error(lines: list[str], width: int) -> list[str]:
    """Return the broken lines of an error, each after pytest's marker or spaces."""
    match = _OURS.match(lines[0])
    assert match is not None, "the first line names the class of the error"
    indent = len(match[1])
    text = "\n".join(line[indent:] for line in lines)
    if len(lines[0]) > width:
        text = text.removeprefix(match[2])
    first, *others = fit(text, width - indent).split("\n")
    marker = lines[1][:indent] if len(lines) > 1 else " " * indent
    return [match[1] + first, *((marker.ljust(indent) + line).rstrip() for line in others)]
