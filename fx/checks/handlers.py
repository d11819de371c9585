"""Where a function handles exceptions: which, and around which lines."""

from __future__ import annotations

import ast
import contextlib
import dis
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any

from fx.checks.bytecode import nested, once_for_code
from fx.checks.dataflow import may_return_truth
from fx.checks.syntax import once_a_file
from fx.frames import is_pythons_file, is_users_file

_HAS_TABLE = "PUSH_EXC_INFO" in dis.opmap  # from Python 3.11 on
_TRY = dis.opmap["PUSH_EXC_INFO" if _HAS_TABLE else "SETUP_FINALLY"]
_WITH = dis.opmap["WITH_EXCEPT_START"]
SUPPRESS: Mapping[str, tuple[str, ...]] = {"suppress": ()}
"""What context managers that swallow exceptions are called, each with the names of the classes of these; with none for
those that are given the classes."""
ATTRIBUTE = ".attribute"
"""Stands there for all attributes: one of them may be such a context manager."""


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
    manager: str = ""
    """What the context manager of a ``with`` is called, which may handle them."""


@once_for_code
def handling(code: CodeType) -> tuple[CodeType, ...]:
    """Return the code of a function, and of the functions that are written in it, as far as it handles exceptions."""
    return tuple(filter(_handles, nested(code)))


def swallowing(code: CodeType, managers: Mapping[str, Any]) -> Iterator[CodeType]:
    """Yield the code of a function, and of those that are written in it, as far as it has a ``with`` and names one of
    the context managers.
    """
    for one in nested(code) if managers else ():
        named = (*one.co_names, *one.co_freevars, *one.co_varnames, *one.co_cellvars)
        if _WITH in one.co_code[::2] and (ATTRIBUTE in managers or not managers.keys().isdisjoint(named)):
            yield one


def swallowed_by(manager: Any) -> tuple[str, ...] | None:
    """Return the classes of exceptions that a context manager swallows, by name; ``None`` if it swallows none.

    Args:
        manager: an object, a class, or a function that ``contextlib.contextmanager`` has made.

    >>> swallowed_by(contextlib.suppress), swallowed_by(contextlib.nullcontext)
    ((), None)
    """
    if isinstance(manager, FunctionType):
        behind = getattr(manager, "__wrapped__", None)
        if manager.__code__.co_filename != contextlib.__file__ or not isinstance(behind, FunctionType):
            return None
        return ("BaseException",) if handling(behind.__code__) else None
    leave = getattr(manager if isinstance(manager, type) else type(manager), "__exit__", None)
    if leave is contextlib.suppress.__exit__:
        # A call of the class names what it swallows; what an instance was made with is not asked.
        return () if isinstance(manager, type) else ("BaseException",)
    if not isinstance(leave, FunctionType) or is_pythons_file(leave.__code__.co_filename):
        return None
    is_own = is_users_file(leave.__code__.co_filename)
    return ("BaseException",) if is_own and may_return_truth(leave.__code__) else None


def _handles(code: CodeType) -> bool:
    if "suppress" in code.co_names:
        return True
    names = code.co_code[::2]
    if names.count(_TRY) <= (names.count(_WITH) if _HAS_TABLE else 0):
        return False
    last = max(line or 0 for *_, line in code.co_lines())
    known = _handlers(code.co_filename)
    return known is None or any(one.goes_on and code.co_firstlineno <= one.first <= last for one in known)


def handled_at(frame: FrameType, managers: Mapping[str, tuple[str, ...]] = SUPPRESS) -> tuple[str, ...]:
    """Return the names of the classes of exceptions that are handled around the line of ``frame``.

    That is what ``except`` takes, and what context managers swallow. There are none where its source is not known, and
    none of an ``except`` that ends in a ``raise``.

    Args:
        frame: where something may be raised.
        managers: what context managers that swallow exceptions are called, as ``SUPPRESS`` is.
    """
    line = frame.f_lineno
    return tuple(
        name
        for one in _handlers(frame.f_code.co_filename) or ()
        if one.first <= line <= one.last
        if not one.manager or one.manager in managers
        for name in managers.get(one.manager) or one.names
    )


@once_a_file
def _handlers(tree: ast.Module) -> tuple[_Handled, ...]:
    """The bodies in a file around which something is handled."""
    return tuple(one for node in ast.walk(tree) for one in _handled_by(node))


def _handled_by(node: ast.AST) -> Iterator[_Handled]:
    # `try` is ast.Try, and from Python 3.11 on ast.TryStar as well.
    if hasattr(node, "handlers"):
        one: Any = node
        names = [name for handler in one.handlers if not isinstance(handler.body[-1], ast.Raise)
                 for name in (["BaseException"] if handler.type is None else _names_in(handler.type))]  # fmt: skip
        goes_on = any(map(_goes_on, one.handlers)) or any(map(_leaves, one.finalbody))
        yield _Handled(one.body[0].lineno, one.body[-1].end_lineno or 0, names, goes_on)
    elif isinstance(node, ast.With):
        for item in node.items:
            call = item.context_expr
            arguments = call.args if isinstance(call, ast.Call) else []
            manager = call.func if isinstance(call, ast.Call) else call
            names = [name for argument in arguments for name in _names_in(argument)]
            named = next(iter(_names_in(manager)), "")
            called = ATTRIBUTE if manager is call and isinstance(call, ast.Attribute) else named
            if called:
                goes_on = called in SUPPRESS
                yield _Handled(node.body[0].lineno, node.body[-1].end_lineno or 0, names, goes_on, called)


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
