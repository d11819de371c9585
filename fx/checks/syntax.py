"""The syntax of the files of traced code, parsed once, and which function a frame calls by it."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
_UNKNOWN = object()
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


def is_calling(frame: FrameType, function: Any) -> bool:
    """Return whether ``frame`` calls ``function``, by whatever name: a variable, an attribute or an entry of a dict.

    Nothing of the program runs to find that out. Where byte code has no columns, each call in the line counts.
    """
    positions: Any = getattr(frame.f_code, "co_positions", tuple)  # which code has from Python 3.11 on
    place = next(itertools.islice(positions(), frame.f_lasti // 2, None), None)
    for call in (_calls_by_line(frame.f_code.co_filename) or {}).get(frame.f_lineno, ()):
        here = (call.lineno, call.end_lineno, call.col_offset, call.end_col_offset)
        is_other = place is not None and None not in place and here != place
        if not is_other and _value_of(call.func, frame) is function:
            return True
    return False


@once_a_file
def _calls_by_line(tree: ast.Module) -> dict[int, list[ast.Call]]:
    """The calls in each line of a file."""
    found: dict[int, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found.setdefault(line, []).append(node)
    return found


def _value_of(expression: ast.expr, frame: FrameType) -> Any:
    """Return what names, attributes and constant subscripts stand for in a frame."""
    if isinstance(expression, ast.Name):
        for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
            if expression.id in names:
                return names[expression.id]
    elif isinstance(expression, ast.Attribute):
        owner = _value_of(expression.value, frame)
        return _UNKNOWN if owner is _UNKNOWN else inspect.getattr_static(owner, expression.attr, _UNKNOWN)
    elif isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        owner = _value_of(expression.value, frame)
        if type(owner) in (dict, list, tuple):
            try:
                return owner[expression.slice.value]
            except (KeyError, IndexError, TypeError):
                return _UNKNOWN
    return _UNKNOWN
