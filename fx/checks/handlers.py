"""Where a function handles exceptions: which, and around which lines."""

from __future__ import annotations

import ast
import dis
import linecache
import weakref
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

_HAS_TABLE = "PUSH_EXC_INFO" in dis.opmap  # from Python 3.11 on
_TRY = dis.opmap["PUSH_EXC_INFO" if _HAS_TABLE else "SETUP_FINALLY"]
_WITH = dis.opmap["WITH_EXCEPT_START"]
_handling: weakref.WeakKeyDictionary[CodeType, tuple[CodeType, ...]] = weakref.WeakKeyDictionary()


def handling(code: CodeType) -> tuple[CodeType, ...]:
    """Return the code of a function, and of the functions that are written in it, as far as it handles exceptions."""
    known = _handling.get(code)
    if known is None:
        codes = [code]
        for one in codes:
            codes += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
        known = _handling[code] = tuple(filter(_handles, codes))
    return known


def _handles(code: CodeType) -> bool:
    if "suppress" in code.co_names:
        return True
    names = code.co_code[::2]
    return names.count(_TRY) > (names.count(_WITH) if _HAS_TABLE else 0)


def handled_at(frame: FrameType) -> tuple[str, ...]:
    """Return the names of the classes of exceptions that ``except`` and ``suppress`` around the line of ``frame`` take.

    There are none where its source is not known, and none of an ``except`` that ends in a ``raise``.
    """
    file = frame.f_code.co_filename
    return _names_at(file, frame.f_lineno, len(linecache.getlines(file)))


@lru_cache(maxsize=1000)
def _names_at(file: str, line: int, lines: int) -> tuple[str, ...]:
    around = (names for first, last, names in _handlers(file, lines) if first <= line <= last)
    return tuple(name for names in around for name in names)


@lru_cache(maxsize=50)
def _handlers(file: str, _: int) -> tuple[tuple[int, int, list[str]], ...]:
    """First and last line of each body in a file, and what is handled around it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found = [one for node in ast.walk(tree) for one in _handled_by(node)]
    return tuple((body[0].lineno, body[-1].end_lineno or 0, names) for body, names in found)


def _handled_by(node: ast.AST) -> Iterator[tuple[list[ast.stmt], list[str]]]:
    if hasattr(node, "handlers"):
        one: Any = node
        names = [name for handler in one.handlers if not isinstance(handler.body[-1], ast.Raise)
                 for name in (["BaseException"] if handler.type is None else _names_in(handler.type))]  # fmt: skip
        yield one.body, names
    elif isinstance(node, ast.With):
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and _names_in(call.func) == ["suppress"]:
                yield node.body, [name for argument in call.args for name in _names_in(argument)]


def _names_in(expression: ast.expr) -> list[str]:
    """The last parts of dotted names, alone or in a tuple."""
    if isinstance(expression, ast.Tuple):
        return [name for element in expression.elts for name in _names_in(element)]
    return [expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")]
