"""The syntax of the files of traced code, parsed once."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_MOST_FILES = 50


def once_a_file(compute: Callable[[ast.Module], T]) -> Callable[[str], T | None]:
    """Let a function of the syntax of a file be one of its name, which computes when there is new source of it.

    It returns ``None`` where there is no source, or none that Python can read.
    """
    known: dict[str, tuple[list[str], T | None]] = {}

    @functools.wraps(compute)
    def of_file(file: str) -> T | None:
        lines = linecache.getlines(file)
        found = known.get(file)
        if found is None or found[0] is not lines:
            if len(known) >= _MOST_FILES:
                known.clear()
            found = known[file] = lines, _computed(compute, lines)
        return found[1]

    return of_file


def _computed(compute: Callable[[ast.Module], T], lines: list[str]) -> T | None:
    try:
        return compute(ast.parse("".join(lines))) if lines else None
    except (SyntaxError, ValueError):
        return None
