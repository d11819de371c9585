"""Messages of checks: how byte code makes the text becomes a template, which is filled in when a check fails.

Nothing of the program runs for that. A message that calls functions of the program stays as its source.
"""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch

from fx.assertions import READ_ATTRIBUTES, READ_FUNCTIONS, READ_METHODS
from fx.bytecode.dataflow import Call, Dataflow, Makers, dataflow
from fx.bytecode.dialects import Step
from fx.bytecode.values import Evaluator, Method, Names, behind, element_of
from fx.checks.recognition import Raise
from fx.node import Node


class MessageTemplate(NamedTuple):
    """A message to be written when a check fails."""

    text: str
    """What ``fx.assertions.check`` takes, or the message itself where there are no values."""
    values: tuple[Node, ...] = ()
    """What is filled in."""


class Reading(NamedTuple):
    """What a message reads of a traced value."""

    node: Node
    """The value."""
    steps: str = ""
    """What is read of it, as a field of a template says it: ``.shape[1]``."""
    conversion: str = ""
    """``s`` or ``r``, where text is made of it so."""
    form: str = ""
    """The format of the text."""


class _Method(NamedTuple):
    reading: Reading
    """The value whose method it is."""
    name: str
    """Its name."""


class _Raised(NamedTuple):
    kind: type[BaseException]
    """The class of the exception."""
    args: tuple[Any, ...]
    """What it is made with."""


class Text(NamedTuple):
    """Text in which values stand."""

    parts: tuple[str | Reading, ...]
    """Literal text, and values."""

    def template(self) -> MessageTemplate:
        """The template that makes the text."""
        values: dict[Node, int] = {}
        written: list[str] = []
        for part in self.parts:
            if isinstance(part, str):
                written.append(part.replace("{", "{{").replace("}", "}}"))
            else:
                number = values.setdefault(part.node, len(values))
                conversion = part.conversion and f"!{part.conversion}"
                written.append(f"{{{number}{part.steps}{conversion}{part.form and f':{part.form}'}}}")
        return MessageTemplate("".join(written), tuple(values)) if values else MessageTemplate(self.literal())

    def literal(self) -> str:
        """The text, where no values stand in it.

        Raises:
            LookupError: there are some.
        """
        if all(isinstance(part, str) for part in self.parts):
            return "".join(map(str, self.parts))
        raise LookupError

    def quoted(self) -> Text:
        """What ``repr`` makes of it."""
        if all(isinstance(part, str) for part in self.parts):
            return Text((repr(self.literal()),))
        if any(isinstance(part, str) and repr(part) != f"'{part}'" for part in self.parts):
            raise LookupError
        return Text(("'", *self.parts, "'"))


Shown = Callable[[Any], Any]
"""Of a value of the program, the :class:`Reading` or :class:`Text` that stands for it in messages, or itself."""
_PLAIN = (int, float, complex, bool, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.layout)
_NUMBERS = (int, float, bool)
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_SHOWN_AS = {BaseException.__str__: "s", KeyError.__str__: "r"}
_PERCENT = re.compile(r"%(?:(%)|(\d*)(\.\d+)?([sradiufFeEgGxXo]))")


def message_of(raised: Raise, names: Names, shown: Shown) -> MessageTemplate | None:
    """The template of what a ``raise`` or ``assert`` is going to say; None where it calls functions of the program.

    Args:
        raised: where it stands.
        names: what the names of its function stand for now.
        shown: what stands for a value in messages.
    """
    flow = dataflow(raised.code)
    if flow is None:
        return None
    try:
        stored = flow.stored_between(raised.start, raised.end)
        reader = _Reader(flow, names, shown, stored)
        error = reader.value(flow.raised(raised.end))
        return _said(error).template() if isinstance(error, _Raised) else None
    except (LookupError, TypeError, ValueError):
        return None


def message_made_by(function: FunctionType, shown: Shown) -> MessageTemplate | None:
    """The template of what a function of no arguments returns, as ``torch._check`` is given one, likewise."""
    flow = dataflow(function.__code__)
    try:
        reader = None if flow is None else _Reader(flow, Names.of_function(function), shown, {})
        return None if reader is None or flow is None else text_of(reader.value(flow.result())).template()
    except (LookupError, TypeError, ValueError):
        return None


def _said(raised: _Raised) -> Text:
    """What ``str`` makes of an exception of Python's, or of a class that adds nothing to one."""
    if not raised.args:
        raise LookupError
    how = _SHOWN_AS.get(raised.kind.__str__)
    own = [vars(kind) for kind in raised.kind.__mro__ if kind.__module__ != "builtins"]
    if how is None or any("__init__" in held or "__new__" in held for held in own):
        raise LookupError
    return text_of(raised.args[0], how) if len(raised.args) == 1 else text_of(raised.args)


def text_of(value: Any, conversion: str = "", form: str = "") -> Text:
    """The text of a value.

    Raises:
        LookupError: a function of the program makes it.
    """
    if isinstance(value, Reading):
        return Text((value._replace(conversion=conversion, form=form),))
    if isinstance(value, Text):
        value = value.quoted() if conversion == "r" else value
        return Text((format(value.literal(), form),)) if form else value
    kind = type(value)
    if kind in _PLAIN:
        return Text((format(repr(value) if conversion == "r" else str(value) if conversion else value, form),))
    if kind not in (tuple, list, dict) or form:
        raise LookupError
    opening, closing = {tuple: "()", list: "[]", dict: "{}"}[kind]
    parts: list[str | Reading] = []
    for element in value.items() if kind is dict else value:
        parts += [", "] if parts else []
        if kind is dict:
            parts += [*text_of(element[0], "r").parts, ": ", *text_of(element[1], "r").parts]
        else:
            parts += text_of(element, "r").parts
    return Text((opening, *parts, "," if kind is tuple and len(value) == 1 else "", closing))


class _Reader(Evaluator):
    """Computes values as byte code does, of which traced ones stay open: a :class:`Reading`, or in a :class:`Text`."""

    def __init__(self, flow: Dataflow, names: Names, shown: Shown, stored: Mapping[str, Makers]) -> None:
        super().__init__(flow, names)
        self._shown, self._stored = shown, stored

    def of_constant(self, value: Any) -> Any:
        return self._shown(value)

    def of_load(self, step: Step) -> Any:
        if step.value in self._stored:
            return self.value(self._stored[step.value])
        return self._shown(super().of_load(step))

    def of_slice(self, _: Any, *bounds: Any) -> slice:
        return slice(*bounds)

    def of_format(self, conversion: str, value: Any, form: Any = None) -> Text:
        return text_of(value, conversion, "" if form is None else form.literal())

    def of_joined(self, _: Any, *parts: Any) -> Text:
        return Text(tuple(one for part in parts for one in text_of(part).parts))

    def of_attribute(self, name: str, owner: Any) -> Any:
        if isinstance(owner, Reading):
            if name in READ_METHODS:
                return _Method(owner, name)
            if name not in READ_ATTRIBUTES:
                raise LookupError(name)
            return owner._replace(steps=f"{owner.steps}.{name}")
        if isinstance(owner, Text):
            return Method(owner, vars(str)[name])
        if isinstance(owner, torch.Tensor) and name in ("shape", "dtype", "ndim", "device"):
            return getattr(owner, name)
        return self._shown(super().of_attribute(name, owner))

    def of_sliced(self, _: Any, owner: Any, *bounds: Any) -> Any:
        return self.of_element(_, owner, slice(*bounds))

    def of_element(self, _: Any, owner: Any, key: Any) -> Any:
        if not isinstance(owner, Reading):
            return self._shown(element_of(owner, key.literal() if isinstance(key, Text) else key))
        bounds = (key.start, key.stop, key.step) if isinstance(key, slice) else (key,)
        if not all(type(bound) in (int, type(None)) for bound in bounds):
            raise LookupError
        written = ":".join("" if bound is None else str(bound) for bound in bounds)
        return owner._replace(steps=f"{owner.steps}[{written.removesuffix(':') if len(bounds) == 3 else written}]")

    def of_binary(self, sign: str, left: Any, right: Any) -> Any:
        if isinstance(left, Text):
            if sign == "+" and isinstance(right, Text):
                return Text((*left.parts, *right.parts))
            if sign == "%":
                return _percent(left.literal(), right)
        if type(left) in _NUMBERS and type(right) in _NUMBERS and sign in _ARITHMETIC:
            return _ARITHMETIC[sign](left, right)
        raise LookupError(sign)

    def of_call(self, call: Call) -> Any:
        callee = self.value(call.callee)
        args = [self.value(one) for one in call.positional]
        if call.is_spread or call.keywords:
            raise LookupError
        if isinstance(callee, _Method):
            reading = callee.reading._replace(steps=f"{callee.reading.steps}.{callee.name}()")
            return self.of_element(None, reading, *args) if args and callee.name == "size" else _only(reading, not args)
        if isinstance(callee, type) and issubclass(callee, BaseException):
            return _Raised(callee, tuple(args))
        if isinstance(callee, Method) and isinstance(callee.owner, Text):
            return _method_of_text(callee, args)
        function = behind(callee)
        for name, known in READ_FUNCTIONS.items():
            if function is known and len(args) == 1:
                if isinstance(args[0], Reading):
                    return args[0]._replace(steps=f"{args[0].steps}|{name}")
                return _only(known(args[0]), type(args[0]) in (tuple, list, dict, torch.Size))
        if function in (str, repr) and len(args) == 1:
            return text_of(args[0], "s" if function is str else "r")
        raise LookupError


def _only(value: Any, holds: bool) -> Any:
    if not holds:
        raise LookupError
    return value


def _method_of_text(method: Method, args: list[Any]) -> Text:
    """What ``"…".format(…)`` or ``"…".join((…))`` gives."""
    pattern, parts = method.owner.literal(), list[str | Reading]()
    if method.function is str.join:
        for element in _only(args[0], type(args[0]) in (tuple, list)):
            parts += [*([pattern] if parts else []), *_only(element, isinstance(element, Text)).parts]
        return Text(tuple(parts))
    _only(None, method.function is str.format)
    for count, (literal, name, form, conversion) in enumerate(string.Formatter().parse(pattern)):
        parts.append(literal)
        if name is not None:
            number = count if not name else int(name)
            parts += text_of(args[number], conversion or "", form or "").parts
    return Text(tuple(parts))


def _percent(pattern: str, given: Any) -> Text:
    """What ``pattern % given`` makes, where all conversions are plain, and their number is known."""
    values = list(given) if type(given) is tuple else [given]
    conversions = list(_PERCENT.finditer(pattern))
    escaped = sum(one[1] is not None for one in conversions)
    _only(None, len(values) == len(conversions) - escaped and pattern.count("%") == len(conversions) + escaped)
    parts: list[str | Reading] = []
    end = 0
    for conversion in conversions:
        parts.append(pattern[end : conversion.start()] + (conversion[1] or ""))
        end = conversion.end()
        if conversion[1] is None:
            _, width, precision, kind = conversion.groups()
            is_text = kind in "sra"
            form = (">" if is_text and width else "") + width + (precision or "") + ("" if kind in "sradiu" else kind)
            parts += text_of(values.pop(0), kind if is_text else "", form).parts
    return Text((*parts, pattern[end:]))
