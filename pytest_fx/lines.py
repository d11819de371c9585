"""Lines of messages that follow the width of the terminal."""

from __future__ import annotations

import re
import textwrap

_LABELLED = re.compile(r" *(where|value|why|note|also|try|error) +")
"""What the lines of a message begin with that have a label."""


def fit(text: str, width: int, first: int | None = None) -> str:
    """Return ``text`` with lines that are longer than ``width`` broken at spaces, below the part that they belong to.

    A path or another word that is longer stays whole. ``first`` is the width of the first line, if that is another.

    >>> print(fit("  why    they are 0.0059 apart, SQNR 53.7 dB", 30))
      why    they are 0.0059
               apart, SQNR 53.7 dB
    """
    fitted: list[str] = []
    for position, line in enumerate(text.split("\n")):
        fitted += fit_line(line, width if position or first is None else first, width)
    return "\n".join(fitted)


def fit_line(line: str, first: int, width: int) -> list[str]:
    """Return the lines of ``width`` that ``line`` is broken into, the first one of the width ``first``."""
    if len(line) <= first:
        return [line]
    label = _LABELLED.match(line)
    indent = " " * (len(line) - len(line.lstrip()) + 2) if label is None else " " * (label.end() + 2)
    shift = " " * max(width - first, 0)
    broken = textwrap.wrap(
        shift + line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False,
        replace_whitespace=False,
    )  # fmt: skip
    return [broken[0][len(shift) :], *broken[1:]] if broken else [line]
