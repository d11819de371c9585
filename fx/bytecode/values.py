"""Values of a function, as far as its byte code and its names determine them without running anything.

Needs the standard library only.
"""

from __future__ import annotations

import builtins
import inspect
import logging
from collections.abc import Mapping
from contextlib import suppress
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from fx.bytecode.dataflow import CodeCall, Dataflow, Makers, dataflow
from fx.bytecode.dialects import CONSTANTS, Step, steps


def may_return_truth(code: CodeType) -> bool:
    """Return whether a function may return anything but the constants ``None`` and ``False``."""
    instructions = steps(code)
    for before, step in zip([None, *instructions], instructions, strict=False):
        if step.name == "RETURN_CONST" and step.value:
            return True
        if step.name == "RETURN_VALUE" and (before is None or before.name not in CONSTANTS or before.value):
            return True
    return False


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
    """The function."""


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
