"""Checks of traced values (``assert``, ``if …: raise``, ``torch._assert``), recorded as nodes with their messages.

The byte code that makes a message becomes a template, which is filled in when a check fails. Code of the program does
not run for that. A message that calls functions of the program stays as its source. Python itself makes the text, from
readings of traced values: the text then has a mark for each of them.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import operator
import re
from collections.abc import Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch

from fx.assertions import READ_FUNCTIONS, READ_METHODS, check, is_false
from fx.bytecode.dataflow import CodeCall, Makers, known_dataflow
from fx.bytecode.dialects import Step
from fx.bytecode.values import Evaluator, Method, Names, behind, element_of
from fx.checks.recognition import Check, DecidingComparison, leaves, pending_check, values_of
from fx.checks.traced_values import MARK, Marks, MessageTemplate, Reading, TracedValue, outside_fx
from fx.frames import callers
from fx.node import Node
from fx.operators.python import COMPARISONS
from fx.operators.tensor_queries import names_of

_OF_EVERY_TENSOR = names_of("sizes", "kind", "autograd")


def record_check(asked: TracedValue, frame: FrameType) -> bool | None:
    """Record the check that ``frame`` makes by testing a value's truth.

    Returns:
        The truth value with which the program continues; None if ``frame`` makes no check.
    """
    frame = outside_fx(frame)
    if not asked.tracer.trace_asserts or not all(map(leaves, callers(frame))):
        return None
    pending = pending_check(frame, DecidingComparison(_operation(asked.node), TracedValue))
    condition = None if pending is None else _condition(asked, pending, frame)
    if pending is None or condition is None:
        return None
    if isinstance(condition, TracedValue):
        _record(condition, pending, frame)
    return not pending.raises_if


def record_assertion(tracer: Any, condition: Any, message: Any) -> Any:
    """Record a check, with a message or a function that makes one."""
    if isinstance(message, FunctionType):
        code = message.__code__
        source = linecache.getline(code.co_filename, code.co_firstlineno).strip() or "a check has failed"
        template = _message_made_by(message, tracer) or MessageTemplate(source)
    else:
        template = _message_given(message, tracer)
    return record_condition(tracer, condition, template)


def record_condition(tracer: Any, condition: Any, message: MessageTemplate) -> Any:
    """Record a check with a message that is known, except for the values in it."""
    values = [tracer.proxy(node) for node in message.values]
    target: Any = check if values else torch._assert
    return tracer.create_proxy("call_function", target, (condition, message.text, *values), {})


def _record(condition: Any, pending: Check, frame: FrameType) -> None:
    """Add nodes that raise at run time where the traced program would have raised."""
    tracer = condition.tracer
    message = _message_at(frame, pending.raised_at, tracer)
    if pending.raises_if:
        # "== False" is exact for the result of a comparison, and reads better than a call
        node = condition.node
        exact = node.op == "call_function" and node.target in (*COMPARISONS, operator.and_)
        condition = operator.eq(condition, False) if exact else is_false(condition)
    # if the message needs functions of the program, use its source
    record_condition(tracer, condition, message or MessageTemplate(pending.message))


def _condition(asked: TracedValue, pending: Check, frame: FrameType) -> Any:
    """Return the condition of a check that tests ``asked`` first, or its value if that is known.

    Return None if no graph can hold it.
    """
    if pending.options:
        value, first = asked.node.args[:2]
        if not isinstance(value, Node) or first is not pending.options[0]:
            return None
        whole = asked.tracer.proxy(value)
        return functools.reduce(operator.or_, [whole == option for option in pending.options[1:]], asked)
    return _combined(asked, pending, frame) if pending.rest else asked


def _combined(asked: Any, pending: Check, frame: FrameType) -> Any:
    """Combine several conditions into one.

    The program evaluates all of them, where eager code may stop at the first. So only comparisons of properties that
    every tensor has (number of dimensions, dtype, …) are combined.
    """
    graph, raises_if = asked.tracer.graph, pending.raises_if
    last = next(reversed(graph.nodes))
    conditions: list[tuple[Any, bool]] = [(asked, raises_if)]
    is_known = True
    try:
        conditions += values_of(pending.rest, frame, TracedValue)
    except (LookupError, TypeError):  # their computation runs functions of the program
        is_known = False
    added = list(itertools.takewhile(lambda node: node is not last, reversed(graph.nodes)))
    traced = [(value, leads) for value, leads in conditions if isinstance(value, TracedValue)]
    is_decided = any(bool(value) is not leads for value, leads in conditions if not isinstance(value, TracedValue))
    harmless = all(value.node.target in COMPARISONS for value, _ in traced) and all(map(_cannot_fail, added))
    if is_decided or not is_known or not harmless:
        for node in added:
            graph.erase_node(node)
        return not raises_if if is_decided else None
    alike = [value if leads is raises_if else operator.eq(value, False) for value, leads in traced]
    return functools.reduce(operator.and_ if raises_if else operator.or_, alike)


def _cannot_fail(node: Node) -> bool:
    """Return whether a node computes a property that every tensor has, or compares."""
    if node.op == "call_method":
        return node.target in _OF_EVERY_TENSOR and len(node.args) == 1
    if node.target is getattr:
        return node.args[1] in _OF_EVERY_TENSOR
    return node.op == "call_function" and node.target in COMPARISONS


def _operation(node: Node) -> str:
    """Return the name of an operation: ``eq`` for methods and functions that compare like ``operator.eq``."""
    target: Any = node.target
    return (target if isinstance(target, str) else str(getattr(target, "__name__", ""))).strip("_")


# Messages.

_PLAIN = (str, int, float, complex, bool, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.layout)
_NUMBERS = (int, float, bool)
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_SHOWN_AS = {BaseException.__str__: "s", KeyError.__str__: "r"}
_PERCENT = re.compile(r"%(?:(%)|(\d*)(\.\d+)?([sradiufFeEgGxXo]))")


class _Raised(NamedTuple):
    kind: type[BaseException]
    """The class of the exception."""
    args: tuple[Any, ...]
    """The arguments of its constructor."""


def _message_at(frame: FrameType, raised_at: int, tracer: Any) -> MessageTemplate | None:
    """Return the template of the message of a ``raise`` or ``assert``; None if it calls functions of the program."""
    try:
        reader = _Reader(frame.f_code, Names.of_frame(frame), tracer)
        reader.stored = reader.flow.stored_between(frame.f_lasti, raised_at)
        return reader.marks.template(_said(reader.value(reader.flow.raised(raised_at))))
    except (LookupError, TypeError, ValueError):
        return None


def _message_made_by(function: FunctionType, tracer: Any) -> MessageTemplate | None:
    """Return the template of the result of a function without arguments, such as one passed to ``torch._check``."""
    try:
        reader = _Reader(function.__code__, Names.of_function(function), tracer)
        return reader.marks.template(_text(reader.value(reader.flow.result())))
    except (LookupError, TypeError, ValueError):
        return None


def _message_given(message: Any, tracer: Any) -> MessageTemplate:
    """Return the template of a message that exists already."""
    marks = Marks()
    try:
        return marks.template(_text(_shown(tracer, message, marks)))
    except LookupError:
        return MessageTemplate(str(message))


def _shown(tracer: Any, value: Any, marks: Marks) -> Any:
    """Return the reading of a traced value for a message, or text with marks for such values; other values unchanged.

    Raises:
        LookupError: the value is of another trace, or no message can read such an attribute.
    """
    if isinstance(value, str):
        return _marked(tracer, value, marks)
    if type(value) in (list, tuple):
        return type(value)(_shown(tracer, part, marks) for part in value)
    if not isinstance(value, TracedValue):
        return value
    reading = value._reading(marks)
    if reading.node.graph is not tracer.graph:
        raise LookupError(reading.node.name)
    return reading


def _marked(tracer: Any, text: str, marks: Marks) -> str:
    """Return text with marks in place of the traced values that were written into it before."""
    written = tracer._state.written

    def mark(place: re.Match[str]) -> str:
        value, form = written[place[0]]
        return _shown(tracer, value, marks).mark("", form)

    longest_first = sorted(filter(text.__contains__, written), key=len, reverse=True)
    return re.sub("|".join(map(re.escape, longest_first)), mark, text) if longest_first else text


def _said(raised: Any) -> str:
    """Return ``str`` of an exception of Python, or of a class that adds nothing to one."""
    if not isinstance(raised, _Raised) or not raised.args:
        raise LookupError
    how = _SHOWN_AS.get(raised.kind.__str__)
    own = [vars(kind) for kind in raised.kind.__mro__ if kind.__module__ != "builtins"]
    if how is None or any("__init__" in namespace or "__new__" in namespace for namespace in own):
        raise LookupError
    return _text(raised.args[0], how) if len(raised.args) == 1 else _text(raised.args)


def _text(value: Any, conversion: str = "", form: str = "") -> str:
    """Return the text of a value.

    Raises:
        LookupError: a function of the program makes it, or it depends on the length of a marked value.
    """
    _expect_plain(value)
    if isinstance(value, Reading):
        return value.mark(conversion, form)
    if conversion:
        value = {"s": str, "r": repr, "a": ascii}[conversion](value)
    if form and MARK.search(str(value)):
        raise LookupError
    return format(value, form)


def _expect_plain(value: Any) -> None:
    """Check that Python makes the text of a value without code of the program.

    Raises:
        LookupError: it does not.
    """
    if type(value) in (tuple, list, dict):
        for part in (*value, *(value.values() if type(value) is dict else ())):
            _expect_plain(part)
    elif type(value) not in _PLAIN and not isinstance(value, Reading):
        raise LookupError


class _Reader(Evaluator):
    """Computes values as byte code does; traced values are read when a check fails."""

    def __init__(self, code: CodeType, names: Names, tracer: Any) -> None:
        super().__init__(known_dataflow(code), names)
        self.marks = Marks()
        self.stored: Mapping[str, Makers] = {}
        """The values of variables that the code sets on its way to the message."""
        self._tracer = tracer

    def _read(self, value: Any) -> Any:
        return _shown(self._tracer, value, self.marks)

    def of_constant(self, value: Any) -> Any:
        return self._read(value)

    def of_load(self, step: Step) -> Any:
        if step.value in self.stored:
            return self.value(self.stored[step.value])
        return self._read(super().of_load(step))

    def of_slice(self, _: Any, *bounds: Any) -> slice:
        return slice(*bounds)

    def of_format(self, conversion: str, value: Any, form: str = "") -> str:
        return _text(value, conversion, form)

    def of_joined(self, _: Any, *parts: Any) -> str:
        return "".join(map(_text, parts))

    def of_attribute(self, name: str, owner: Any) -> Any:
        if isinstance(owner, Reading):
            return Method(owner, name) if name in READ_METHODS else getattr(owner, name)
        if isinstance(owner, str):
            return Method(owner, vars(str)[name])
        if isinstance(owner, torch.Tensor) and name in ("shape", "dtype", "ndim", "device"):
            return getattr(owner, name)
        return self._read(super().of_attribute(name, owner))

    def of_sliced(self, _: Any, owner: Any, *bounds: Any) -> Any:
        return self.of_element(_, owner, slice(*bounds))

    def of_element(self, _: Any, owner: Any, key: Any) -> Any:
        return owner[key] if isinstance(owner, Reading) else self._read(element_of(owner, key))

    def of_binary(self, sign: str, left: Any, right: Any) -> Any:
        if isinstance(left, str):
            if sign == "%":
                return _percent(left, right)
            if sign == "+" and isinstance(right, str):
                return left + right
        elif type(left) in _NUMBERS and type(right) in _NUMBERS and sign in _ARITHMETIC:
            return _ARITHMETIC[sign](left, right)
        raise LookupError(sign)

    def of_call(self, call: CodeCall) -> Any:
        callee, *args = map(self.value, (call.callee, *call.positional))
        if call.is_spread or call.keywords:
            raise LookupError
        if isinstance(callee, type) and issubclass(callee, BaseException):
            return _Raised(callee, tuple(args))
        for argument in args:
            _expect_plain(argument)
        if isinstance(callee, Method) and isinstance(callee.owner, Reading):
            read = callee.owner.then(f".{callee.function}()")
            if not args or (callee.function == "size" and len(args) == 1):
                return read[args[0]] if args else read
        elif isinstance(callee, Method):
            if callee.function in (str.join, str.format):
                return callee.function(callee.owner, *args)
        elif len(args) == 1:
            return _called(behind(callee), args[0])
        raise LookupError


def _called(function: Any, argument: Any) -> Any:
    """Return the result of one of Python's functions."""
    if function in (str, repr):
        return _text(argument, "s" if function is str else "r")
    name = next((name for name, function_read in READ_FUNCTIONS.items() if function is function_read), None)
    if name is not None and isinstance(argument, Reading):
        return argument.then(f"|{name}")
    if name is not None and type(argument) in (tuple, list, dict, torch.Size):
        return function(argument)
    raise LookupError


def _percent(pattern: str, right: Any) -> str:
    """Return ``pattern % values``, if all conversions are plain, and their number is known."""
    values = list(right) if type(right) is tuple else [right]

    def converted(conversion: re.Match[str]) -> str:
        escaped, width, precision, kind = conversion.groups()
        if escaped:
            return "%"
        is_text = kind in "sra"
        form = (">" if is_text and width else "") + width + (precision or "") + ("" if kind in "sradiu" else kind)
        return _text(values.pop(0), kind if is_text else "", form)

    text = _PERCENT.sub(converted, pattern)
    if values or "%" in _PERCENT.sub("", pattern):
        raise LookupError
    return text
