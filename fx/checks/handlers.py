"""Where a function handles exceptions, and which, as byte code shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any

from fx.bytecode.dataflow import Dataflow, dataflow
from fx.bytecode.dialects import nested, once_for_code
from fx.bytecode.flow import flow_of
from fx.bytecode.mentions import enters_contexts
from fx.bytecode.values import Names, value_of
from fx.checks.recognition import manager_at, never_swallows
from fx.frames import is_pythons_file, is_users_file

_ALL = ("BaseException",)
SUPPRESS: Mapping[str, tuple[str, ...]] = {"suppress": ()}
"""What context managers that swallow exceptions are called, each with the names of the classes of these; with none for
those that are given the classes."""
ATTRIBUTE = ".attribute"
"""Stands there for all attributes: one of them may be such a context manager."""


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
        if enters_contexts(one) and (ATTRIBUTE in managers or not managers.keys().isdisjoint(named)):
            yield one


def swallowed_by(manager: Any) -> tuple[str, ...] | None:
    """Return the classes of exceptions that a context manager swallows, by name; ``None`` if it swallows none.

    Args:
        manager: an object, a class, or a function that ``contextlib.contextmanager`` has made.

    >>> swallowed_by(contextlib.suppress), swallowed_by(contextlib.nullcontext)
    ((), None)
    """
    if isinstance(manager, FunctionType):
        is_generator = manager.__code__.co_filename == contextlib.__file__ and hasattr(manager, "__wrapped__")
        return None if not is_generator or never_swallows(manager) else _ALL
    leave = getattr(manager if isinstance(manager, type) else type(manager), "__exit__", None)
    if leave is contextlib.suppress.__exit__:
        # A call of the class names what it swallows; what an instance was made with is not asked.
        return () if isinstance(manager, type) else _ALL
    if not isinstance(leave, FunctionType) or never_swallows(manager):
        return None
    file = leave.__code__.co_filename
    return _ALL if is_users_file(file) and not is_pythons_file(file) else None


def _handles(code: CodeType) -> bool:
    flow = flow_of(code)
    return "suppress" in code.co_names or flow is None or flow.handles()


def handled_at(frame: FrameType) -> tuple[str, ...]:
    """Return the names of the classes of exceptions that are handled where ``frame`` is.

    That is what ``except`` takes, without those that end in a ``raise``, and what context managers swallow.
    """
    flow = dataflow(frame.f_code)
    if flow is None:
        return _ALL
    names = Names.of_frame(frame)
    found: list[str] = []
    for kind, offset in flow.clauses(frame.f_lasti):
        try:
            if kind == "with":
                found += _swallowed(flow, offset, names)
            else:
                found += _ALL if kind == "all" else _named(value_of(flow, flow.operand(flow.at(offset), 1), names))
        except LookupError:
            found += _ALL
    return tuple(found)


def _swallowed(flow: Dataflow, handler: int, names: Names) -> tuple[str, ...]:
    """The classes of exceptions that the context manager of a ``with`` swallows, by name."""
    manager, call = manager_at(flow, handler, names)
    swallowed = swallowed_by(manager)
    if swallowed != () or call is None:
        return swallowed or ()
    return tuple(name for one in call.positional for name in _named(value_of(flow, one, names)))


def _named(classes: Any) -> tuple[str, ...]:
    return tuple(one.__name__ for one in (classes if isinstance(classes, tuple) else (classes,)))
