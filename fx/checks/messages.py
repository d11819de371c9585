"""Messages of checks: the byte code that makes a text becomes a template, which is filled in when a check fails.

Code of the program does not run for that. A message that calls functions of the program stays as its source. Python
itself makes the text, from placeholders for traced values: the text then has a mark for each of them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch

from fx.assertions import READ_ATTRIBUTES, READ_FUNCTIONS, READ_METHODS
from fx.bytecode.dataflow import CodeCall, Dataflow, Makers, dataflow
from fx.bytecode.dialects import Step
from fx.bytecode.values import Evaluator, Method, Names, behind, element_of
from fx.checks.recognition import Raise
from fx.node import Node


class MessageTemplate(NamedTuple):
    """A message to be written when a check fails."""

    text: str
    """The template for ``fx.assertions.check``, or the message itself if there are no values."""
    values: tuple[Node, ...] = ()
    """The values that are filled in."""


class Marks(list[tuple[Node, str]]):
    """The values in a text, in the order of their marks: each with the end of the template's field."""

    def template(self, text: str) -> MessageTemplate:
        """Return the template that makes a text with these marks."""
        literals = [literal.replace("{", "{{").replace("}", "}}") for literal in _MARK.split(text)[::2]]
        used = [self[int(number)] for number in _MARK.findall(text)]
        if not used:
            return MessageTemplate(text)
        values = list(dict.fromkeys(node for node, _ in used))
        fields = [f"{{{values.index(node)}{field}}}" for node, field in used]
        parts = [part for pair in zip(literals, [*fields, ""], strict=True) for part in pair]
        return MessageTemplate("".join(parts), tuple(values))


_MARK = re.compile(r"⟦fx (\d+)⟧")


class Reading:
    """A value that a message reads from a traced value. Its text is a mark."""

    def __init__(self, node: Node, marks: Marks, steps: str = "") -> None:
        """Create a reading.

        Args:
            node: the node of the traced value.
            marks: the marks of the text.
            steps: the path from the value, as in a field of a template: ``.shape[1]``.
        """
        self.node, self._marks, self._steps = node, marks, steps

    def then(self, step: str) -> Reading:
        """Return the reading one step further."""
        return Reading(self.node, self._marks, self._steps + step)

    def mark(self, conversion: str = "", form: str = "") -> str:
        """Return the mark for its text, with the conversion (``s`` or ``r``) and format of a template's field.

        Raises:
            LookupError: the format depends on a traced value.
        """
        if _MARK.search(form):
            raise LookupError
        self._marks.append((self.node, self._steps + (conversion and f"!{conversion}") + (form and f":{form}")))
        return f"⟦fx {len(self._marks) - 1}⟧"

    def __getattr__(self, name: str) -> Reading:
        if name not in READ_ATTRIBUTES:
            raise LookupError(name)
        return self.then(f".{name}")

    def __getitem__(self, key: Any) -> Reading:
        bounds = (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)
        if not all(type(bound) in (int, type(None)) for bound in bounds):
            raise LookupError
        written = ":".join("" if bound is None else str(bound) for bound in bounds)
        return self.then(f"[{written.removesuffix(':') if len(bounds) == 3 else written}]")

    def __str__(self) -> str:
        return self.mark("s")

    def __repr__(self) -> str:
        return self.mark("r")

    def __format__(self, form: str) -> str:
        return self.mark("", form)


Shown = Callable[[Any, Marks], Any]
"""Maps a value of the program to its placeholder in messages: a :class:`Reading`, text with marks, or itself."""
_PLAIN = (str, int, float, complex, bool, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.layout)
_NUMBERS = (int, float, bool)
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_SHOWN_AS = {BaseException.__str__: "s", KeyError.__str__: "r"}
_PERCENT = re.compile(r"%(?:(%)|(\d*)(\.\d+)?([sradiufFeEgGxXo]))")


class _Method(NamedTuple):
    reading: Reading
    """The value that has the method."""
    name: str
    """Its name."""


class _Raised(NamedTuple):
    kind: type[BaseException]
    """The class of the exception."""
    args: tuple[Any, ...]
    """The arguments of its constructor."""


def message_of(raised: Raise, names: Names, shown: Shown) -> MessageTemplate | None:
    """Return the template of the message of a ``raise`` or ``assert``; None if it calls functions of the program.

    Args:
        raised: the statement.
        names: the current values of the names in its function.
        shown: maps a value to its placeholder in messages.
    """
    flow, marks = dataflow(raised.code), Marks()
    if flow is None:
        return None
    try:
        reader = _Reader(flow, names, shown, marks, flow.stored_between(raised.start, raised.end))
        error = reader.value(flow.raised(raised.end))
        return marks.template(_said(error)) if isinstance(error, _Raised) else None
    except (LookupError, TypeError, ValueError):
        return None


def message_made_by(function: FunctionType, shown: Shown) -> MessageTemplate | None:
    """Return the template of the result of a function without arguments, such as one passed to ``torch._check``."""
    flow, marks = dataflow(function.__code__), Marks()
    if flow is None:
        return None
    try:
        return marks.template(_text(_Reader(flow, Names.of_function(function), shown, marks, {}).value(flow.result())))
    except (LookupError, TypeError, ValueError):
        return None


def message_given(message: Any, shown: Shown) -> MessageTemplate:
    """Return the template of a message that exists already."""
    marks = Marks()
    try:
        return marks.template(_text(shown(message, marks)))
    except LookupError:
        return MessageTemplate(str(message))


def _said(raised: _Raised) -> str:
    """Return ``str`` of an exception of Python, or of a class that adds nothing to one."""
    if not raised.args:
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
    if form and _MARK.search(str(value)):
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

    def __init__(self, flow: Dataflow, names: Names, shown: Shown, marks: Marks, stored: Mapping[str, Makers]) -> None:
        super().__init__(flow, names)
        self._shown, self._marks, self._stored = shown, marks, stored

    def of_constant(self, value: Any) -> Any:
        return self._shown(value, self._marks)

    def of_load(self, step: Step) -> Any:
        if step.value in self._stored:
            return self.value(self._stored[step.value])
        return self._shown(super().of_load(step), self._marks)

    def of_slice(self, _: Any, *bounds: Any) -> slice:
        return slice(*bounds)

    def of_format(self, conversion: str, value: Any, form: str = "") -> str:
        return _text(value, conversion, form)

    def of_joined(self, _: Any, *parts: Any) -> str:
        return "".join(map(_text, parts))

    def of_attribute(self, name: str, owner: Any) -> Any:
        if isinstance(owner, Reading):
            return _Method(owner, name) if name in READ_METHODS else getattr(owner, name)
        if isinstance(owner, str):
            return Method(owner, vars(str)[name])
        if isinstance(owner, torch.Tensor) and name in ("shape", "dtype", "ndim", "device"):
            return getattr(owner, name)
        return self._shown(super().of_attribute(name, owner), self._marks)

    def of_sliced(self, _: Any, owner: Any, *bounds: Any) -> Any:
        return self.of_element(_, owner, slice(*bounds))

    def of_element(self, _: Any, owner: Any, key: Any) -> Any:
        return owner[key] if isinstance(owner, Reading) else self._shown(element_of(owner, key), self._marks)

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
        if isinstance(callee, _Method):
            read = callee.reading.then(f".{callee.name}()")
            if not args or (callee.name == "size" and len(args) == 1):
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
