"""Values of a function, and the exceptions that it handles, as far as its byte code and names determine them.

Nothing is run. Needs the standard library only.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import logging
from collections.abc import Mapping
from contextlib import suppress
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from fx.bytecode.dataflow import CodeCall, Dataflow, Makers, dataflow, known_dataflow
from fx.bytecode.dialects import CONSTANTS, Step, nested, steps
from fx.bytecode.flow import flow_of


class Names(NamedTuple):
    """The values of the names in a function."""

    local: Mapping[str, Any]
    """Its variables, and those of outer functions, as far as they are known."""
    namespace: Mapping[str, Any]
    """Its globals."""

    @classmethod
    def of_frame(cls, frame: FrameType) -> Names:
        """Return the current names of a frame."""
        return cls(frame.f_locals, frame.f_globals)

    @classmethod
    def of_function(cls, function: FunctionType) -> Names:
        """Return the names of a function that is not running, whose parameters and variables are unknown."""
        cells: dict[str, Any] = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # the cell is empty
                cells[name] = cell.cell_contents
        return cls(cells, function.__globals__)

    def value(self, step: Step) -> Any:
        """Return the value that an instruction loads by its name.

        Raises:
            LookupError: it loads none, or the value is not known.
        """
        if step.name in CONSTANTS:
            return step.value
        if step.name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            return self.local[step.value]
        if step.name in ("LOAD_GLOBAL", "LOAD_NAME"):
            scopes = (self.local, self.namespace) if step.name == "LOAD_NAME" else (self.namespace,)
            for names in (*scopes, vars(builtins)):
                if step.value in names:
                    return names[step.value]
        if step.name == "LOAD_ASSERTION_ERROR":
            return AssertionError
        raise LookupError(step.name)


class Method(NamedTuple):
    """A method that is not bound, with its object."""

    owner: Any
    """The object."""
    function: Any
    """The function; where a message reads a traced value, its name."""


_METHODS = (FunctionType, type(str.join), type(str.__len__))
_MISSING = object()


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute of an object if reading it runs no code of the program; a :class:`Method` for a method.

    Raises:
        LookupError: the object has no such attribute itself, or a property or the like computes it.
    """
    if isinstance(owner, ModuleType):
        return vars(owner)[name]
    value = inspect.getattr_static(owner, name, _MISSING)
    if value is _MISSING:  # a module of torch keeps parameters, buffers and modules elsewhere
        dictionaries = (
            vars(owner).get(kind, ()) for kind in ("_parameters", "_buffers", "_modules") if _has_entries(owner)
        )
        value = next((entries[name] for entries in dictionaries if name in entries), _MISSING)
    if isinstance(value, staticmethod):
        return value.__func__
    if isinstance(value, classmethod):
        return Method(owner, value.__func__)
    if isinstance(value, _METHODS) and not (isinstance(owner, type) or name in getattr(owner, "__dict__", ())):
        return Method(owner, value)
    is_plain = isinstance(owner, type) or isinstance(value, _METHODS) or not hasattr(type(value), "__get__")
    if value is _MISSING or not is_plain:
        raise LookupError(name)
    return value


def _has_entries(owner: Any) -> bool:
    return not isinstance(owner, type) and isinstance(getattr(owner, "__dict__", None), dict)


def element_of(owner: Any, key: Any) -> Any:
    """Return an element of one of Python's containers.

    Raises:
        LookupError: there is no such element, or the container is of another class.
    """
    if type(owner) in (list, tuple, dict) and type(key) in (int, str, slice):
        with suppress(TypeError):
            return owner[key]
    raise LookupError(key)


class Evaluator:
    """Computes values as byte code does, from the names of a function: one method for each kind of expression.

    Subclasses add kinds. A kind without a method is not known.
    """

    def __init__(self, flow: Dataflow, names: Names) -> None:
        self.flow, self.names = flow, names

    def value(self, makers: Makers) -> Any:
        """Return a value.

        Raises:
            LookupError: code of the program would have to run, or the value is not known.
        """
        kind, operands, detail = self.flow.expression(makers)
        method = getattr(self, f"of_{kind}", None)
        if method is None:
            raise LookupError(kind)
        return method(detail, *map(self.value, operands))

    def of_constant(self, value: Any) -> Any:
        """Return a constant."""
        return value

    def of_load(self, step: Step) -> Any:
        """Return the value of a name."""
        return self.names.value(step)

    def of_attribute(self, name: str, owner: Any) -> Any:
        """Return an attribute of an object."""
        return attribute_of(owner, name)

    def of_element(self, _: Any, owner: Any, key: Any) -> Any:
        """Return an element of a container."""
        return element_of(owner, key)

    def of_tuple(self, _: Any, *parts: Any) -> Any:
        """Return a tuple."""
        return parts

    def of_list(self, _: Any, *parts: Any) -> Any:
        """Return a list."""
        return list(parts)


def value_of(flow: Dataflow, makers: Makers, names: Names) -> Any:
    """Return a value made from loads, attributes, elements and tuples only, without running anything.

    Raises:
        LookupError: other operations make it, or it is not known.
    """
    return Evaluator(flow, names).value(makers)


# Calls.


def callee_of(flow: Dataflow, call: CodeCall, names: Names) -> Any:
    """Return the called function or class; None if it is not known."""
    try:
        value = value_of(flow, call.callee, names)
    except LookupError:
        return _method_of_result(flow, call, names)
    if isinstance(value, Method):
        value = value.function
    return behind(value.__func__ if type(value) is MethodType else value)


def _method_of_result(flow: Dataflow, call: CodeCall, names: Names) -> Any:
    """Return the method of ``logging.getLogger(…)`` that is called."""
    for index in call.callee:
        for maker in flow.operand(index, 1) if index >= 0 and flow.kind(index) == "attribute" else ():
            maker_call = flow.call(maker) if maker >= 0 else None
            if maker_call is not None and callee_of(flow, maker_call, names) is logging.getLogger:
                return getattr(logging.getLoggerClass(), str(flow.steps[index].value), None)
    return None


def behind(value: Any) -> Any:
    """Return the original of a function that replaces one during a capture; other values are returned unchanged."""
    attributes = getattr(value, "__dict__", None)
    return attributes["_stands_for"] if isinstance(attributes, dict) and "_stands_for" in attributes else value


def called_at(frame: FrameType) -> Any:
    """Return the function or class that a frame calls, under any name; None if there is no call, or it is not known."""
    flow = dataflow(frame.f_code)
    call = None if flow is None else flow.call(flow.running(frame))
    return None if flow is None or call is None else callee_of(flow, call, Names.of_frame(frame))


# Exceptions.

_ALL = ("BaseException",)
_OF_GENERATORS: Any = contextlib.contextmanager(lambda: iter(())).__code__  # type: ignore[attr-defined]
"""The code of the results of ``contextlib.contextmanager``."""


def handling(function: FunctionType) -> list[CodeType]:
    """Return the code of a function, and of the functions nested in it, as far as it may handle exceptions.

    It may if it continues after an ``except``, or has a ``with`` that may swallow exceptions.
    """
    code, names = function.__code__, Names.of_function(function)
    inside = Names({}, names.namespace)
    return [inner for inner in nested(code) if _may_handle(inner, names if inner is code else inside)]


def _may_handle(code: CodeType, names: Names) -> bool:
    flow = flow_of(code)
    return flow is None or flow.may_handle(lambda handler: lets_through(code, handler, names))


def lets_through(code: CodeType, handler: int, names: Names) -> bool:
    """Return whether exceptions are known to leave the ``with`` with this handler."""
    try:
        return swallowed_by(_manager_at(known_dataflow(code), handler, names)[0]) is None
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
        if manager.__code__ is not _OF_GENERATORS or not isinstance(generator, FunctionType):
            raise LookupError
        flow = known_dataflow(generator.__code__)
        return None if all(flow.leaves(offset, lambda _: False) for offset in flow.yields()) else _ALL
    leave = behind(inspect.getattr_static(manager if isinstance(manager, type) else type(manager), "__exit__", None))
    if leave is contextlib.suppress.__exit__:
        # A call of the class names the exceptions; the arguments of an existing instance are not read.
        return () if isinstance(manager, type) else _ALL
    if not isinstance(leave, FunctionType):
        raise LookupError
    return _ALL if _may_return_truth(leave.__code__) else None


def _may_return_truth(code: CodeType) -> bool:
    """Return whether a function may return anything but the constants ``None`` and ``False``."""
    instructions = steps(code)
    for before, step in zip([None, *instructions], instructions, strict=False):
        if step.name == "RETURN_CONST" and step.value:
            return True
        if step.name == "RETURN_VALUE" and (before is None or before.name not in CONSTANTS or before.value):
            return True
    return False


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
    with suppress(LookupError):  # most unknown ones swallow none
        swallowed = swallowed_by(manager)
    if swallowed != () or call is None:
        return swallowed or ()
    return tuple(name for classes in call.positional for name in _named(value_of(flow, classes, names)))


def _named(classes: Any) -> tuple[str, ...]:
    return tuple(kind.__name__ for kind in (classes if isinstance(classes, tuple) else (classes,)))
