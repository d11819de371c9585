"""Uses of text that the traced code makes of a value: in messages only, or where the program may depend on it.

Byte code shows the uses of a value (:mod:`fx.bytecode.dataflow`); called functions are recognized by their identity.
"""

from __future__ import annotations

import logging
import pprint
import sys
import warnings
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch

from fx.bytecode.dataflow import TEXTS, CodeCall, Dataflow, dataflow, parameters_given
from fx.bytecode.values import Method, Names, called_at, callee_of, value_of
from fx.frames import callers, is_ours

_LEVELS = ("debug", "info", "warning", "warn", "error", "critical", "exception", "log")
_LOGS = [vars(home).get(name) for home in (logging, logging.Logger, logging.LoggerAdapter) for name in _LEVELS]
_SHOW: dict[int, Any] = {
    id(function): function
    for function in (
        *(print, pprint.pprint, pprint.pp, warnings.warn, warnings.warn_explicit, torch._assert, torch._check),
        *(torch.profiler.record_function, *filter(None, _LOGS)),
    )
}
"""Functions, by identity, that show the text passed to them, and do not depend on it."""
_MAKE: dict[int, Any] = {
    id(function): function for function in (str, repr, ascii, format, list, tuple, str.join, str.format, pprint.pformat)
}
"""Functions that make text, or a container of text, from their arguments."""
_METHODS = frozenset("format join strip lstrip rstrip ljust rjust center upper lower title capitalize replace".split())
"""Methods of text that return text."""
_CODES = {id(each.__code__): each for each in {**_SHOW, **_MAKE}.values() if isinstance(each, FunctionType)}
"""The functions among these that are written in Python, by their code."""
_JOINS = frozenset({"+", "%", "*"})
_FILES = frozenset({"file", "stream"})
_DEEPEST = 8


def is_only_shown(frame: FrameType) -> bool:
    """Return whether text that ``frame`` makes of a value is used in messages only.

    Args:
        frame: the caller of ``__format__``, ``__str__`` or ``__repr__``.
    """
    if is_ours(frame):
        return True
    asking = frame
    for current in (frame, *callers(frame)):
        function = _CODES.get(id(current.f_code))
        if function is not None and id(function) in _SHOW:
            return True
        if function is not None and current.f_back is not None:
            asking = current.f_back
    # one of them shows text, and makes more of it meanwhile
    return any(id(called_at(caller)) in _SHOW for caller in callers(asking)) or _shown_by(asking)


def _shown_by(frame: FrameType) -> bool:
    """Return whether the text that a frame makes now, or the value it makes it for, is only shown."""
    flow, names = dataflow(frame.f_code), Names.of_frame(frame)
    if flow is None:
        return False
    index = flow.running(frame)
    call = flow.call(index)
    function = None if call is None else callee_of(flow, call, names)
    # a scripted function only writes arguments into its errors
    if id(function) in _SHOW or isinstance(function, (torch.jit.ScriptFunction, torch._C.ScriptMethod)):
        return True
    makes_text = flow.kind(index) in TEXTS if call is None else id(function) in _MAKE
    return makes_text and _Uses(flow, names, frame).are_shown(index)


class _Uses:
    """The uses of text in a function."""

    def __init__(self, flow: Dataflow, names: Names, frame: FrameType | None, depth: int = 0) -> None:
        self._flow, self._names = flow, names
        self._frame = frame
        """The frame that runs the function; None if it is not running."""
        self._depth = depth
        """The number of functions through which the text came."""
        self._seen: set[int] = set()
        self.is_returned = False
        """True if a function that is not running returns the text to its caller."""

    def are_shown(self, maker: int) -> bool:
        """Return whether the value of an instruction is used in messages only."""
        if maker in self._seen:
            return True
        self._seen.add(maker)
        return all(self._is_shown(maker, index, depth) for index, depth in self._flow.uses.get(maker, ()))

    def are_shown_from(self, variable: str) -> bool:
        """Return whether the value of a variable is used in messages only."""
        loads = self._flow.loads_of(variable)
        return loads is not None and all(map(self.are_shown, loads))

    def _is_shown(self, maker: int, index: int, depth: int) -> bool:
        flow = self._flow
        use = flow.kind(index)
        if use in ("drop", "raise"):
            return True
        if use in TEXTS or (use == "element" and depth == 2):
            return self._is_joined_to_text(index, depth) and self.are_shown(index)
        if use == "append":
            return all(map(self.are_shown, flow.container(index)))
        if use == "store":
            return self.are_shown_from(str(flow.steps[index].value))
        if use == "attribute":
            return flow.steps[index].value in _METHODS and self.are_shown(index)
        if use in ("return", "yield"):
            return self._is_shown_by_caller(use)
        call = flow.call(index)
        if call is None:
            return False
        return self.are_shown(index) if maker in call.callee else self._is_shown_by(call, maker, index)

    def _is_shown_by(self, call: CodeCall, maker: int, index: int) -> bool:
        """Return whether a call with the text as argument only shows it."""
        function = callee_of(self._flow, call, self._names)
        if id(function) in _SHOW:
            return self._is_for_people(call)
        if id(function) in _MAKE or (isinstance(function, type) and issubclass(function, BaseException)):
            return self.are_shown(index)
        flow = dataflow(function.__code__) if isinstance(function, FunctionType) else None
        if not isinstance(function, FunctionType) or flow is None or call.is_spread or self._depth >= _DEEPEST:
            return False
        inside = _Uses(flow, Names.of_function(function), None, self._depth + 1)
        try:
            bound = isinstance(value_of(self._flow, call.callee, self._names), (Method, MethodType))
        except LookupError:
            bound = False
        arguments_are_shown = all(map(inside.are_shown_from, parameters_given(function.__code__, call, maker, bound)))
        return arguments_are_shown and (not inside.is_returned or self.are_shown(index))

    def _is_for_people(self, call: CodeCall) -> bool:
        """Return whether the text is written to the standard streams, and not to a file of the program."""
        try:
            files = [value_of(self._flow, call.keywords[name], self._names) for name in _FILES & call.keywords.keys()]
        except LookupError:
            return False
        return all(file in (None, sys.stdout, sys.stderr) for file in files)

    def _is_joined_to_text(self, index: int, depth: int) -> bool:
        """Return whether the other operand of an operator is a plain Python value, which ignores the text."""
        flow = self._flow
        if flow.kind(index) != "binary":
            return True
        _, operands, sign = flow.expression(frozenset({index}))
        if sign not in _JOINS:
            return False
        other = operands[depth - 1]  # the right operand, on top of the stack, is the last
        try:
            return type(value_of(flow, other, self._names)) in (str, int, tuple, list)
        except LookupError:
            pass
        try:
            kind, _, call = flow.expression(other)
        except LookupError:
            return False
        makes_text = kind == "call" and id(callee_of(flow, call, self._names)) in _MAKE
        return makes_text or kind in ("joined", "format", "binary", "tuple", "list")

    def _is_shown_by_caller(self, use: str) -> bool:
        """Return whether the result of the function, or a yielded value, is only shown."""
        if self._frame is None:
            self.is_returned = use == "return"
            return self.is_returned
        outer = self._frame.f_back
        flow = None if outer is None or is_ours(outer) else dataflow(outer.f_code)
        if outer is None or flow is None:
            return False
        index, names = flow.running(outer), Names.of_frame(outer)
        call = flow.call(index)
        called = None if call is None else callee_of(flow, call, names)
        if use == "return" and self._frame.f_code in (called, getattr(called, "__code__", None)):
            return _Uses(flow, names, outer).are_shown(index)
        return _shown_by(outer)
