"""Where a function handles exceptions: which, and around which lines."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from fx.checks.bytecode import once_for_code

_HAS_TABLE = "PUSH_EXC_INFO" in dis.opmap  # from Python 3.11 on
_TRY = dis.opmap["PUSH_EXC_INFO" if _HAS_TABLE else "SETUP_FINALLY"]
_WITH = dis.opmap["WITH_EXCEPT_START"]


@dataclass(frozen=True, slots=True)
class _Handled:
    first: int
    """The first line of a body."""
    last: int
    """Its last line."""
    names: list[str]
    """The classes of exceptions that are handled around it."""
    goes_on: bool
    """Whether the function may go on behind one."""


@once_for_code
def handling(code: CodeType) -> tuple[CodeType, ...]:
    """Return the code of a function, and of the functions that are written in it, as far as it handles exceptions."""
    codes = [code]
    for one in codes:
        codes += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
    return tuple(filter(_handles, codes))


def _handles(code: CodeType) -> bool:
    if "suppress" in code.co_names:
        return True
    names = code.co_code[::2]
    if names.count(_TRY) <= (names.count(_WITH) if _HAS_TABLE else 0):
        return False
    lines = linecache.getlines(code.co_filename)
    last = max(line or 0 for *_, line in code.co_lines())
    known = _handlers(code.co_filename, len(lines))
    return not lines or any(one.goes_on and code.co_firstlineno <= one.first <= last for one in known)


def handled_at(frame: FrameType) -> tuple[str, ...]:
    """Return the names of the classes of exceptions that ``except`` and ``suppress`` around the line of ``frame`` take.

    There are none where its source is not known, and none of an ``except`` that ends in a ``raise``.
    """
    file = frame.f_code.co_filename
    return _names_at(file, frame.f_lineno, len(linecache.getlines(file)))


@lru_cache(maxsize=1000)
def _names_at(file: str, line: int, lines: int) -> tuple[str, ...]:
    around = (one.names for one in _handlers(file, lines) if one.first <= line <= one.last)
    return tuple(name for names in around for name in names)


@lru_cache(maxsize=50)
def _handlers(file: str, _: int) -> tuple[_Handled, ...]:
    """The bodies in a file around which something is handled."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(one for node in ast.walk(tree) for one in _handled_by(node))


def _handled_by(node: ast.AST) -> Iterator[_Handled]:
    if hasattr(node, "handlers"):
        one: Any = node
        names = [name for handler in one.handlers if not isinstance(handler.body[-1], ast.Raise)
                 for name in (["BaseException"] if handler.type is None else _names_in(handler.type))]  # fmt: skip
        goes_on = any(map(_goes_on, one.handlers)) or any(map(_leaves, one.finalbody))
        yield _Handled(one.body[0].lineno, one.body[-1].end_lineno or 0, names, goes_on)
    elif isinstance(node, ast.With):
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and _names_in(call.func) == ["suppress"]:
                names = [name for argument in call.args for name in _names_in(argument)]
                yield _Handled(node.body[0].lineno, node.body[-1].end_lineno or 0, names, True)


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """Return whether what is behind an ``except`` may go on: it does not always raise."""
    return _leaves(handler) or not isinstance(handler.body[-1], ast.Raise)


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(one, (ast.Return, ast.Continue, ast.Break)) for one in ast.walk(node))


def _names_in(expression: ast.expr) -> list[str]:
    """The last parts of dotted names, alone or in a tuple."""
    if isinstance(expression, ast.Tuple):
        return [name for element in expression.elts for name in _names_in(element)]
    return [expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")]
