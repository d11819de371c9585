"""Checks of traced values (``assert``, ``if …: raise``, ``torch._assert``), recorded as nodes with their messages."""

from __future__ import annotations

import functools
import itertools
import linecache
import operator
import re
from types import FrameType, FunctionType
from typing import Any

import torch

from fx.assertions import check, is_false
from fx.bytecode.values import Names
from fx.checks.messages import Marks, MessageTemplate, message_given, message_made_by, message_of
from fx.checks.recognition import Check, DecidingComparison, leaves, pending_check, values_of
from fx.checks.traced_values import TracedValue, outside_fx
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
    reading_of = functools.partial(_shown, tracer)
    if not isinstance(message, FunctionType):
        return record_condition(tracer, condition, message_given(message, reading_of))
    code = message.__code__
    source = linecache.getline(code.co_filename, code.co_firstlineno).strip() or "a check has failed"
    return record_condition(tracer, condition, message_made_by(message, reading_of) or MessageTemplate(source))


def record_condition(tracer: Any, condition: Any, message: MessageTemplate) -> Any:
    """Record a check with a message that is known, except for the values in it."""
    values = [tracer.proxy(node) for node in message.values]
    target: Any = check if values else torch._assert
    return tracer.create_proxy("call_function", target, (condition, message.text, *values), {})


def _shown(tracer: Any, value: Any, marks: Marks) -> Any:
    """Return the reading of a traced value for a message, or text with marks for such values; other values unchanged.

    Raises:
        LookupError: the value is of another trace, or no message can read such an attribute.
    """
    if isinstance(value, str):
        return _marked(tracer, value, marks)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
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


def _record(condition: Any, pending: Check, frame: FrameType) -> None:
    """Add nodes that raise at run time where the traced program would have raised."""
    tracer = condition.tracer
    message = message_of(pending.raised, Names.of_frame(frame), functools.partial(_shown, tracer))
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
    graph = asked.tracer.graph
    last = next(reversed(graph.nodes))
    conditions: list[tuple[Any, bool]] = [(asked, pending.raises_if)]
    is_known = True
    try:
        conditions += values_of(pending.rest, frame, TracedValue)
    except (LookupError, TypeError):  # their computation runs functions of the program
        is_known = False
    added = list(itertools.takewhile(lambda node: node is not last, reversed(graph.nodes)))
    traced = [(value, raises_if) for value, raises_if in conditions if isinstance(value, TracedValue)]
    concrete = [(value, raises_if) for value, raises_if in conditions if not isinstance(value, TracedValue)]
    is_decided = any(bool(value) is not raises_if for value, raises_if in concrete)
    harmless = all(value.node.target in COMPARISONS for value, _ in traced) and all(map(_cannot_fail, added))
    if is_decided or not is_known or not harmless:
        for node in added:
            graph.erase_node(node)
        return (not pending.raises_if) if is_decided else None
    combine = operator.and_ if pending.raises_if else operator.or_
    alike = [value if raises_if is pending.raises_if else operator.eq(value, False) for value, raises_if in traced]
    return functools.reduce(combine, alike)


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
