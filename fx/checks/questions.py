"""Queries by Python that do not accept a traced value: one row for each query, with its treatment.

A query is recorded as an operation, checked by an assertion in the program, answered from example inputs under a guard,
or refused at the user's line. ``Proxy`` queries here. Queries by a function of Python (``isinstance``, ``type``,
``hasattr``, ``len``, ``max``) are handled where traced code calls it: :mod:`fx.capture.leaf_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, get_args

import torch

from fx.assertions import KINDS, check_kind, check_not_kind, check_value, name_of_kind
from fx.bytecode.dialects import unknown_version
from fx.bytecode.mentions import count_to_unpack, matches_sequence, unpack_count, unpack_ends
from fx.checks.recognition import hash_of_option
from fx.checks.recorded_checks import record_check, record_condition
from fx.checks.text_uses import is_only_shown
from fx.checks.traced_values import MessageTemplate, TracedValue, caller_location, count_of, kind_of, outside_fx
from fx.errors import TracedValueError, TraceError, with_article
from fx.frames import is_ours, user_location
from fx.naming.printing import describe
from fx.node import Node


@dataclass(frozen=True, slots=True)
class Question:
    """The treatment of a query."""

    what: str
    """The first line of the error if nothing answers."""
    why: str
    """The reason that a value does not answer it while the program is captured."""
    remedy: str
    """The remedy in the program."""
    known: Callable[[Any, FrameType], Any] = lambda value, frame: None
    """Answers without example inputs, for the code in a frame: from the node of the value, or by a check that is
    recorded.
    None if it cannot. After it, the guide answers, in ``Guide.answer``.
    """
    is_of_sizes: bool = False
    """True if example inputs answer it for tensors too."""
    unread: str = ""
    """The loss if the byte code of this version of Python is not known."""
    error: type[TraceError] = TraceError
    """The class of the error."""


def ask(name: str, value: TracedValue, frame: FrameType, what: str | None = None, /, **lines: Any) -> Any:
    """Return the answer to a query of a value by the code in ``frame``.

    Args:
        name: the query, a key of :data:`QUESTIONS`.
        value: the queried value.
        frame: the frame that queries it.
        what: the first line of the error, if it differs from the row's.
        lines: its other lines, likewise.

    Raises:
        TraceError: nothing answers.
    """
    row, state = QUESTIONS[name], value.tracer._state
    answer = row.known(value, frame)
    if answer is not None:
        return answer
    if not state.is_tracing:
        refuse(name, value, frame, what, **lines)
    return state.answer(name, value, what or row.what, row.error, **{**_lines(row, value, frame), **lines})


def refuse(name: str, value: TracedValue, frame: FrameType, what: str | None = None, /, **lines: Any) -> NoReturn:
    """Raise the error of a query that nothing answers, which ends the trace. Arguments are those of :func:`ask`."""
    row = QUESTIONS[name]
    raise value.tracer._refusal(what or row.what, row.error, **{**_lines(row, value, frame), **lines})


def refusal_of(name: str, asked: TracedValue, frame: FrameType, **lines: Any) -> TraceError:
    """Return the error of a query that may not be the program's own, so that it does not end the trace."""
    row = QUESTIONS[name]
    return row.error(row.what, **{**_lines(row, asked, frame), **lines})


def refuse_text(tracer: Any, text: str) -> NoReturn:
    """Refuse text that contains a value, where it would become a constant of the program."""
    row = QUESTIONS["text"]
    raise tracer._refusal(row.what, where=caller_location(tracer), value=text, why=row.why, remedy=row.remedy)


def _lines(row: Question, value: TracedValue, frame: FrameType) -> dict[str, Any]:
    unknown = unknown_version() if row.unread else None
    more = "" if unknown is None else f"; the byte code of {unknown} is not known, so {row.unread}"
    remedy = row.remedy
    if value.tracer._state.guide is None and (row.is_of_sizes or kind_of(value.node)[0] is not torch.Tensor):
        remedy = f"capture with example_inputs, {remedy}"
    where = caller_location(value.tracer, frame)
    return {"where": where, "value": describe(value.node), "why": row.why + more, "remedy": remedy}


def check_once(check: Callable[..., None], value: TracedValue, expected: object, message: str) -> None:
    """Let the program check that a value is as expected, unless it does so already."""
    if not _is_checked(check, value.node, expected):
        value.tracer.create_proxy("call_function", check, (value, expected, message), {})


def _is_checked(check: Callable[..., None], node: Node, expected: object) -> bool:
    expected_values = [user.args[1] for user in node.users if user.target is check]
    return any(type(checked) is type(expected) and checked == expected for checked in expected_values)


# Numbers of elements: len(value), a, b = value, for element in value, f(*value).


def unpacked(value: Any, frame: FrameType) -> Iterator[Any] | None:
    """Return the elements of a value that the code in ``frame`` unpacks (``a, b = value``); None if it does not.

    With example inputs, the program checks their number.
    """
    if (ends := unpack_ends(frame)) is not None:
        return _elements_at_ends(value, *ends, frame)
    if (count := unpack_count(frame)) is None:
        return None
    guide = value.tracer._state.guide
    if guide is None or not guide.knows(value):
        return _first_elements(value, count)
    return ask("iter", value, frame, "cannot unpack a traced value")


def _elements(value: Any, frame: FrameType) -> Iterator[Any] | None:
    """Return the elements of a value of known length, or a placeholder if ``frame`` spreads them in a call."""
    outer, state = outside_fx(frame), value.tracer._state
    if (count := _count(value, outer)) is not None:
        return _first_elements(value, count)
    if not state.is_tracing:
        return None
    state.note_class_called(outer)
    placeholder = state.spread_elements(value, outer, refusal_of("iter", value, frame))
    return None if placeholder is None else iter((placeholder,))


def _first_elements(value: Any, count: int) -> Iterator[Any]:
    return (value[index] for index in range(count))


def _elements_at_ends(value: Any, first: int, last: int, frame: FrameType) -> Iterator[Any]:
    """Return the elements at both ends, for a program that uses no others (``first, *_, last = value``)."""
    tracer = value.tracer
    if first and last and ((counted := count_of(value.node)) is None or not counted[1] or counted[0] < first + last):
        count = tracer.create_proxy("call_function", len, (value,), {})
        message = f"not enough values to unpack (expected at least {first + last}): "
        where = user_location(frame, tracer._state.locations)
        record_condition(tracer, count >= first + last, MessageTemplate(f"{message}{where}"))
    return (value[index] for index in (*range(first), *range(-last, 0)))


def _count(value: TracedValue, frame: FrameType) -> int | None:
    """Return the number of elements of a value; the program checks it if its node does not guarantee it."""
    count, is_certain = count_of(value.node) or (count_to_unpack(frame), False)
    guide = None if is_certain else value.tracer._state.guide
    if count is None or (guide is not None and guide.knows(value) and len(guide.value_of(value)) != count):
        return None
    lengths = [user for user in value.node.users if user.target is len]
    if not is_certain and not any(_is_checked(check_value, length, count) for length in lengths):
        tracer = value.tracer
        message = f"the program was captured for {count} elements: {user_location(frame, tracer._state.locations)}"
        check_once(check_value, tracer.create_proxy("call_function", len, (value,), {}), count, message)
    return count


def _known_length(value: TracedValue, frame: FrameType) -> Any:
    outer = outside_fx(frame)
    count = _count(value, outer)
    if matches_sequence(outer):
        return ask("match", value, frame)
    is_spread = any(shape.whole is value and shape.frame is outer for shape in value.tracer._state.spread_shapes)
    return 1 if count is None and is_spread else count


# Numbers, hashes and text.


def _note_call(value: TracedValue, frame: FrameType) -> None:
    """Note that a Python class may be called in ``frame``, which a second run records."""
    state = value.tracer._state
    if state.is_tracing:
        state.note_class_called(outside_fx(frame))


def _hash_of_option(value: TracedValue, frame: FrameType) -> int | None:
    # the set then compares the value with that option
    return hash_of_option(frame) if value.tracer.trace_asserts else None


def text_for(value: TracedValue, text: str, write: Callable[[Any], str], frame: FrameType, form: str = "") -> str:
    """Return a value's text for code in ``frame``: a placeholder, or the real text if control flow may depend on it.

    Args:
        value: the queried value.
        text: the placeholder; the message of a check has the value's own text in its place.
        write: makes text of a known value.
        frame: the frame that queries it.
        form: the format.
    """
    state = value.tracer._state
    if not state.is_tracing or state.is_finished:
        return text
    if not is_only_shown(frame):
        return write(ask("text", value, frame, value=text))
    if not is_ours(frame):
        state.written[text] = (value, form)
    return text


# Classes: isinstance(value, kind), type(value), value.__class__, hasattr(value, name), callable(value).


def is_of(value: TracedValue, frame: FrameType, classes: Any) -> bool:
    """Return the answer to ``isinstance(value, classes)`` in ``frame``; the program checks it if it is not certain."""
    kind = kind_for(value, frame)
    if issubclass(kind, classes):
        return True
    for other in _flat(classes):
        if isinstance(other, type) and issubclass(other, kind):
            name = name_of_kind(other)
            message = f"the program was captured where this was not {with_article(name)}: {user_location(frame, {})}"
            check_once(check_not_kind, value, name, message)
    return False


def _flat(classes: Any) -> Iterator[Any]:
    """Yield the single classes of the second argument of ``isinstance``."""
    parts = classes if isinstance(classes, tuple) else get_args(classes)
    if not parts:
        yield classes
    for part in parts:
        yield from _flat(part)


def kind_for(value: TracedValue, frame: FrameType) -> type:
    """Return the class of a value for code in ``frame``; the program checks it if it is not certain."""
    kind, is_certain = kind_of(value.node)
    guide = None if is_certain else value.tracer._state.guide
    where = user_location(frame, {})
    if guide is not None and (kind_of_examples := guide.kind_of(value)) is not None:
        guide.check_kind(value, kind_of_examples, where)
        return kind_of_examples
    if not is_certain and kind in KINDS.values():
        check_once(check_kind, value, kind.__name__, f"the program was captured for a value of {kind}: {where}")
    return kind


# The table.

_LINE = "put the line in a function marked fx.wrap"
TO_COMPUTE = f"compute it from a module attribute, fix the argument with concrete_args, or {_LINE}"
"""The remedy if a number, or another plain value, is needed."""


def _number(kind: str) -> Question:
    return Question(
        f"cannot convert a traced value to {kind}",
        why="its value is known only when the module runs",
        remedy=TO_COMPUTE,
        known=_note_call,
        error=TracedValueError,
    )


QUESTIONS = {
    # if value, while value, value and other, not value, assert value. Guard: the truth.
    "bool": Question(
        "symbolically traced variables cannot be used as inputs to control flow",
        why="whether it is true is known only when the module runs",
        remedy="decide from a module attribute, fix the argument with concrete_args, use torch.where, or put "
        "the branch in a function marked fx.wrap",
        known=record_check,
        unread="checks are not recognized",
    ),
    # for element in value, list(value), f(*value); a, b = value only where example inputs are given.
    # Guard: the number of elements, or the keys of a dict.
    "iter": Question(
        "Proxy object cannot be iterated",
        why="how many elements it has is known only when the module runs (only `a, b = value` says it)",
        remedy="index it with numbers, unpack it into names, use the * or ** parameters as they are, or put the "
        "loop in a function marked fx.wrap",
        known=_elements,
        is_of_sizes=True,
        unread="`a, b = value` is not recognized",
    ),
    # len(value) is recorded where traced code calls it; here Python itself needs the number. Guard: the number.
    "len": Question(
        "'len' is not supported in symbolic tracing by default",
        why="Python requires len to give a real number, which is known only when the module runs",
        remedy='use value.shape[0], or call fx.wrap("len") at the top level of the module to record the call',
        known=_known_length,
        is_of_sizes=True,
    ),
    # case a, b. Guard: the class, and the number of elements.
    "match": Question(
        "cannot match a traced value against a sequence pattern",
        why="whether it is a sequence, and of how many elements, is known only when the module runs",
        remedy="unpack it (a, b = value), or put the match in a function marked fx.wrap",
    ),
    # int(value), float(value), complex(value), which are recorded in a second run. Guard: the number.
    **{kind: _number(kind) for kind in ("int", "float", "complex")},
    # range(value), numbers[value], only if example inputs are given, as torch also takes it of its arguments. Guard:
    # the number, unless the call that took it is recorded.
    "index": Question(
        "cannot use a traced value as an integer",
        why="its value is known only when the module runs",
        remedy=TO_COMPUTE,
        is_of_sizes=True,
        error=TracedValueError,
    ),
    # {value: …}, value in {…}, functions under lru_cache. Guard: the value.
    "hash": Question(
        "cannot use a traced value as the key of a dict or an element of a set. "
        "Keys for dictionaries used as an argument cannot contain a Node",
        why="which entry it would be is known only when the module runs",
        remedy="compare it instead, use a list of pairs, or put the look-up in a function marked fx.wrap",
        known=_hash_of_option,
    ),
    # str(value), f"{value}", repr(value), where the text is not only shown. Guard: the value.
    "text": Question(
        "cannot branch on the text of a traced value",
        why="the value, and so its text, is known only when the module runs",
        remedy=f"decide from a module attribute, or {_LINE}",
    ),
    # value.dtype is torch.float32; the first line names the attribute. Guard: the value.
    "identity": Question(
        "cannot compare a traced value by identity",
        why="its value is known only when the module runs, and Python would compare the placeholder for it",
        remedy=f"decide from a module attribute, or {_LINE}",
    ),
    # value is other, id(value), for a value that may be the very tensor that is an argument of its operation. No
    # example says whether it is.
    "is": Question(
        "cannot compare traced values by identity",
        why="the operation may return the very tensor that it takes, which is known only when the module runs",
        remedy=f"compare what decides it (shape, dtype, device), or {_LINE}",
    ),
    # isinstance(value, torch.FloatTensor). kind_for answers for other classes, and for type(value), value.__class__,
    # hasattr(value, name) and callable(value). Guard: the class.
    "dtype": Question(
        "cannot tell of which dtype a traced value is",
        why="that asks for its dtype, which is known only when the module runs",
        remedy="ask isinstance(value, torch.Tensor), or decide the dtype from a module attribute",
    ),
    # numpy.asarray(value). Guard: the value.
    "array": Question(
        "cannot make a numpy array of a traced value",
        why="its elements are known only when the module runs, and what numpy does is not recorded",
        remedy=f"compute it with functions of torch, or {_LINE}",
        error=TracedValueError,
    ),
}
"""All queries, by Python's name for them."""
