"""The exceptions that a function handles, and the places where it does, according to its byte code."""

from __future__ import annotations

import contextlib
import inspect
from types import CodeType, FrameType, FunctionType
from typing import Any

from fx.bytecode.dataflow import CodeCall, Dataflow, dataflow
from fx.bytecode.dialects import nested
from fx.bytecode.flow import flow_of
from fx.bytecode.values import Names, behind, may_return_truth, value_of

_ALL = ("BaseException",)


def handling(function: FunctionType) -> list[CodeType]:
    """Return the code of a function, and of the functions nested in it, as far as it may handle exceptions.

    It may if it continues after an ``except``, or has a ``with`` that may swallow exceptions.
    """
    code, names = function.__code__, Names.of_function(function)
    inside = Names({}, names.namespace)
    return [inner for inner in nested(code) if _may_handle(inner, names if inner is code else inside)]


def _may_handle(code: CodeType, names: Names) -> bool:
    flow = flow_of(code)
    if flow is None or flow.handles():
        return True
    blocks = flow.blocks()
    values = dataflow(code) if blocks else None
    return any(values is None or not lets_through(values, block, names) for block in blocks)


def swallowed_by(manager: Any) -> tuple[str, ...] | None:
    """Return the classes of exceptions that a context manager swallows, by name; ``None`` if it swallows none.

    Args:
        manager: an object, a class, or a result of ``contextlib.contextmanager``.

    Raises:
        LookupError: it is not known, as for results of other functions and classes in C.

    >>> swallowed_by(contextlib.suppress), swallowed_by(contextlib.nullcontext)
    ((), None)
    """
    if isinstance(manager, FunctionType):
        generator = vars(manager).get("__wrapped__")
        flow = dataflow(generator.__code__) if isinstance(generator, FunctionType) else None
        if manager.__code__ is not _OF_GENERATORS or flow is None:
            raise LookupError
        return None if all(flow.leaves(offset, lambda _: False) for offset in flow.yields()) else _ALL
    leave = behind(inspect.getattr_static(manager if isinstance(manager, type) else type(manager), "__exit__", None))
    if leave is contextlib.suppress.__exit__:
        # A call of the class names the exceptions; the arguments of an existing instance are not read.
        return () if isinstance(manager, type) else _ALL
    if not isinstance(leave, FunctionType):
        raise LookupError
    return _ALL if may_return_truth(leave.__code__) else None


_OF_GENERATORS: Any = contextlib.contextmanager(lambda: iter(())).__code__  # type: ignore[attr-defined]
"""The code of the results of ``contextlib.contextmanager``."""


def lets_through(flow: Dataflow, handler: int, names: Names) -> bool:
    """Return whether exceptions are known to leave the ``with`` with this handler."""
    try:
        return swallowed_by(_manager_at(flow, handler, names)[0]) is None
    except LookupError:
        return False


def _manager_at(flow: Dataflow, handler: int, names: Names) -> tuple[Any, CodeCall | None]:
    """Return the context manager of the ``with`` with this handler, or the callee and call that make it.

    Raises:
        LookupError: it is not known.
    """
    makers = flow.manager(handler)
    kind, _, detail = flow.expression(makers)
    call = detail if kind == "call" else None
    return value_of(flow, makers if call is None else call.callee, names), call


def handled_at(frame: FrameType) -> tuple[str, ...]:
    """Return the names of the classes of exceptions that are handled at the place of ``frame``.

    These are the classes of ``except``, without clauses that end in a ``raise``, and those that context managers
    swallow.
    """
    flow = dataflow(frame.f_code)
    if flow is None:
        return _ALL
    names = Names.of_frame(frame)
    handled: list[str] = []
    for kind, offset in flow.clauses(frame.f_lasti):
        try:
            if kind == "with":
                handled += _swallowed(flow, offset, names)
            else:
                handled += _ALL if kind == "all" else _named(value_of(flow, flow.operand(flow.at(offset), 1), names))
        except LookupError:
            handled += _ALL
    return tuple(handled)


def _swallowed(flow: Dataflow, handler: int, names: Names) -> tuple[str, ...]:
    """Return the classes of exceptions that the context manager of a ``with`` swallows, by name."""
    manager, call = _manager_at(flow, handler, names)
    swallowed: tuple[str, ...] | None = None
    with contextlib.suppress(LookupError):  # most unknown ones swallow none
        swallowed = swallowed_by(manager)
    if swallowed != () or call is None:
        return swallowed or ()
    return tuple(name for classes in call.positional for name in _named(value_of(flow, classes, names)))


def _named(classes: Any) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in (classes if isinstance(classes, tuple) else (classes,)))
