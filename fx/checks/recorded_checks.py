"""Checks of traced values (``assert``, ``if …: raise``, ``torch._assert``), recorded as nodes with their messages."""

from __future__ import annotations

import functools
import itertools
import linecache
import operator
import re
from contextlib import suppress
from types import FrameType, FunctionType
from typing import Any

import torch

from fx.assertions import check, is_false
from fx.bytecode.dataflow import Names, dataflow, value_of
from fx.bytecode.flow import Comparison
from fx.checks.messages import MessageTemplate, Reading, Text, message_made_by, message_of, text_of
from fx.checks.recognition import (
    Check,
    CompoundCheck,
    ElementCheck,
    compound_check,
    element_check,
    leaves,
    pending_check,
)
from fx.checks.traced_values import TracedValue, outside_fx
from fx.frames import callers
from fx.node import Node
from fx.operators.python import COMPARISONS
from fx.operators.tensor_queries import names_of

_OF_EVERY_TENSOR = names_of("sizes", "kind", "autograd")


def record_check(asked: TracedValue, frame: FrameType) -> bool | None:
    """Record the check that ``frame`` decides by the truth of a value.

    Returns:
        The truth value that lets the program go on; None where ``frame`` decides something else.
    """
    frame = outside_fx(frame)
    if not asked.tracer.trace_asserts or not all(map(leaves, callers(frame))):
        return None
    compared = Comparison(_operation(asked.node), TracedValue)
    if (single := pending_check(frame, compared)) is not None:
        return _record(asked, single, frame)
    of_element = element_check(frame, compared)
    if of_element is not None and (condition := _is_option(asked, of_element)) is not None:
        return _record(condition, of_element.check, frame)
    compound = compound_check(frame, compared)
    return None if compound is None else _record_compound(asked, compound, frame)


def record_assertion(tracer: Any, condition: Any, message: Any) -> Any:
    """Record a check, with the message that the program gives it, or a function that makes one."""
    written = None
    if isinstance(message, FunctionType):
        written = message_made_by(message, functools.partial(_shown, tracer))
        code = message.__code__
        message = linecache.getline(code.co_filename, code.co_firstlineno).strip() or "a check has failed"
    else:
        with suppress(LookupError):
            written = text_of(_shown(tracer, message)).template()
    return record_condition(tracer, condition, written or MessageTemplate(str(message)))


def record_condition(tracer: Any, condition: Any, message: MessageTemplate) -> Any:
    """Record a check with a message that is known, but for the values in it."""
    values = [tracer.proxy(node) for node in message.values]
    target: Any = check if values else torch._assert
    return tracer.create_proxy("call_function", target, (condition, message.text, *values), {})


def text_with_values(tracer: Any, text: str) -> Text:
    """Return what text is made of in which traced values were written before."""
    written = tracer._state.written
    longest_first = sorted(filter(text.__contains__, written), key=len, reverse=True)
    parts: list[str | Reading] = []
    end = 0
    for place in re.finditer("|".join(map(re.escape, longest_first)), text) if longest_first else ():
        value, form = written[place[0]]
        parts += [text[end : place.start()], _shown(tracer, value)._replace(form=form)]
        end = place.end()
    return Text((*parts, text[end:]))


def _shown(tracer: Any, value: Any) -> Any:
    """Return what a message reads of a traced value, or of text in which some stand; other values are themselves.

    Raises:
        LookupError: the value is of another trace, or nothing reads such an attribute.
    """
    if isinstance(value, str):
        return text_with_values(tracer, value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_shown(tracer, one) for one in value)
    if not isinstance(value, TracedValue):
        return value
    reading = value._reading()
    if reading.node.graph is not tracer.graph:
        raise LookupError(reading.node.name)
    return reading


def _record(condition: Any, found: Check | CompoundCheck, frame: FrameType) -> bool:
    """Add nodes that raise at run time where the traced program would have; return what lets it go on."""
    tracer = condition.tracer
    message = message_of(found.raised, Names.of_frame(frame), functools.partial(_shown, tracer))
    if found.raises_if:
        # "== False" is exact for what a comparison gives, and reads better than a call
        node = condition.node
        exact = node.op == "call_function" and node.target in (*COMPARISONS, operator.and_)
        condition = operator.eq(condition, False) if exact else is_false(condition)
    # where functions of the program would have to run for the message, it is its source
    record_condition(tracer, condition, message or MessageTemplate(found.message))
    return not found.raises_if


def _is_option(asked: TracedValue, found: ElementCheck) -> Any:
    """Return whether a value is one of the options (``assert value in (2, 3)``), the first of which is asked for."""
    if found.options is None:
        return asked
    value, first = asked.node.args[:2]
    if not isinstance(value, Node) or first is not found.options[0]:
        return None
    whole = asked.tracer.proxy(value)
    return functools.reduce(operator.or_, [whole == option for option in found.options[1:]], asked)


def _record_compound(first: TracedValue, found: CompoundCheck, frame: FrameType) -> bool | None:
    """Record ``if first and …: raise`` or ``assert first or …`` and return what lets the program go on.

    The program evaluates all conditions, where eager code may stop at the first; so only comparisons of what every
    tensor has (number of dimensions, dtype, …) are combined. None where there are others.
    """
    graph, names = first.tracer.graph, Names.of_frame(frame)
    last = next(reversed(graph.nodes))
    traced, known = [first], list[Any]()
    is_computed = True
    try:
        for flow in filter(None, map(dataflow, found.rest)):
            value = value_of(flow, flow.result(), names, TracedValue)
            (traced if isinstance(value, TracedValue) else known).append(value)
    except (LookupError, TypeError):  # what they compute runs functions of the program
        is_computed = False
    made = list(itertools.takewhile(lambda node: node is not last, reversed(graph.nodes)))
    is_decided = is_computed and any(bool(value) is not found.raises_if for value in known)
    compares = all(value.node.target in COMPARISONS for value in traced) and all(map(_cannot_fail, made))
    if is_computed and compares and not is_decided:
        combine = operator.and_ if found.raises_if else operator.or_
        return _record(functools.reduce(combine, traced), found, frame)
    for node in made:
        graph.erase_node(node)
    return (not found.raises_if) if is_decided else None


def _cannot_fail(node: Node) -> bool:
    """Return whether a node computes something that every tensor has, or compares."""
    if node.op == "call_method":
        return node.target in _OF_EVERY_TENSOR and len(node.args) == 1
    if node.target is getattr:
        return node.args[1] in _OF_EVERY_TENSOR
    return node.op == "call_function" and node.target in COMPARISONS


def _operation(node: Node) -> str:
    """``eq`` for all that compares like ``operator.eq``: methods, and functions of torch."""
    target: Any = node.target
    return (target if isinstance(target, str) else str(getattr(target, "__name__", ""))).strip("_")
