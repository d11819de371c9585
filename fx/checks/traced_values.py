"""Traced values: their base class, their readings in messages, and the classes and lengths that their nodes imply."""

from __future__ import annotations

import inspect
import operator
import re
import sys
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from fx.assertions import KINDS, READ_ATTRIBUTES
from fx.frames import is_ours, user_location
from fx.node import Node
from fx.operators.families import find_operator, is_one_of
from fx.operators.python import COMPARISONS
from fx.operators.tensor_queries import ATTRIBUTES, METHODS
from fx.provenance import SourceLocation

_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.neg})


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
        literals = [literal.replace("{", "{{").replace("}", "}}") for literal in MARK.split(text)[::2]]
        used = [self[int(number)] for number in MARK.findall(text)]
        if not used:
            return MessageTemplate(text)
        values = list(dict.fromkeys(node for node, _ in used))
        fields = [f"{{{values.index(node)}{field}}}" for node, field in used]
        parts = [part for pair in zip(literals, [*fields, ""], strict=True) for part in pair]
        return MessageTemplate("".join(parts), tuple(values))


MARK = re.compile(r"⟦fx (\d+)⟧")
"""The place of a value in a text: the number of its entry in :class:`Marks`."""


class Reading:
    """A value that a message reads from a traced value. Its text is a mark."""

    def __init__(self, node: Node, marks: Marks, steps: str = "") -> None:
        """Create a reading for a text; ``steps`` is the path from the node's value, as in a template: ``.shape[1]``."""
        self.node, self._marks, self._steps = node, marks, steps

    def then(self, step: str) -> Reading:
        """Return the reading one step further."""
        return Reading(self.node, self._marks, self._steps + step)

    def mark(self, conversion: str = "", form: str = "") -> str:
        """Return the mark for its text, with the conversion (``s`` or ``r``) and format of a template's field.

        Raises:
            LookupError: the format depends on a traced value.
        """
        if MARK.search(form):
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


class TracedValue:
    """A placeholder for a value while a program is captured. :class:`fx.Proxy` adds the recording of operations."""

    __slots__ = ()

    node: Node
    """The node that computes the value."""
    tracer: Any
    """The tracer that records the operations."""

    def _reading(self, marks: Marks) -> Reading:
        """Return the reading of the value for a message with these marks.

        Raises:
            LookupError: no message can read it.
        """
        return Reading(self.node, marks)


def outside_fx(frame: FrameType) -> FrameType:
    """Return the nearest frame that is not this package's."""
    while is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


STANDING_IN: set[CodeType] = set()
"""The code of our functions that replace Python's ``getattr``, ``isinstance`` and so on in traced code."""


def asker(frame: FrameType) -> FrameType:
    """Return the frame that calls such a function if ``frame`` runs one, else ``frame``."""
    while is_ours(frame) and frame.f_code in STANDING_IN and frame.f_back is not None:
        frame = frame.f_back
    return frame


def caller_location(tracer: Any, frame: FrameType | None = None) -> SourceLocation | None:
    """Return the user's line that uses a traced value; the last line of the program if it has returned."""
    state = tracer._state
    location = user_location(frame or sys._getframe(1), state.locations)
    if location is not None or state.returned_by is None:
        return location
    code = getattr(inspect.unwrap(state.returned_by), "__code__", None)
    return None if code is None else SourceLocation(code, len(code.co_code) - 2)


def kind_of(node: Node) -> tuple[type, bool]:
    """Return the class of a traced value, and whether it is certain; a tensor if nothing else is known.

    >>> import fx
    >>> shape = fx.symbolic_trace(lambda x: x.shape).graph.find_nodes(op="call_function", target=getattr)[0]
    >>> kind_of(shape)
    (<class 'torch.Size'>, True)
    """
    if node.op == "placeholder":
        return _kind_of_input(node)
    if node.op == "call_method":
        return _kind_of_method(str(node.target), node)
    if node.op == "get_attr" and str(node.target).rpartition(".")[2] == "training":
        return bool, True
    if node.op != "call_function":
        return torch.Tensor, False
    target: Any = node.target
    if target is getattr:
        row = ATTRIBUTES.get(str(node.args[1]))
        return (torch.Tensor, False) if row is None or row.result is object else (row.result, True)
    if target is operator.getitem:
        return _kind_of_element(node)
    if target in (int, float, list, tuple) or target is len:
        return (int if target is len else target), True
    # If an operand is a tensor, so is the result. Booleans count as integers, as in Python.
    kinds = [kind_of(arg)[0] if isinstance(arg, Node) else type(arg) for arg in node.args]
    if kinds and all(issubclass(kind, int) for kind in kinds):
        if target in _ARITHMETIC:
            return int, True
        if target is operator.truediv:
            return float, True
        if target in COMPARISONS:
            return bool, True
    return (tuple, False) if is_one_of(getattr(target, "__name__", None), "split") else (torch.Tensor, False)


def _kind_of_input(node: Node) -> tuple[type, bool]:
    name = str(node.target)
    if name.startswith("*"):
        return (dict if name.startswith("**") else tuple), True
    kind = node.type if isinstance(node.type, type) else None
    if kind is None and node.args and node.args[0] is not None:
        kind = type(node.args[0])
    return (kind if kind in KINDS.values() else torch.Tensor), False  # type: ignore[return-value]


def _kind_of_method(name: str, node: Node) -> tuple[type, bool]:
    if name == "size":
        return (torch.Size if len(node.args) == 1 and not node.kwargs else int), True
    if name in METHODS and METHODS[name].result is int:
        return int, True
    return (tuple, False) if is_one_of(name, "split") else (torch.Tensor, False)


def _kind_of_element(node: Node) -> tuple[type, bool]:
    whole, index = node.args[0], node.args[1]
    if isinstance(whole, Node) and kind_of(whole)[0] is torch.Size:
        return (torch.Size if isinstance(index, slice) else int), True
    return torch.Tensor, False


def count_of(node: Node) -> tuple[int, bool] | None:
    """Return the number of elements of a traced value, and whether it is certain; None if its node does not imply it.

    >>> import fx
    >>> halves = fx.symbolic_trace(lambda x: x.chunk(2)).graph.find_nodes(op="call_method", target="chunk")[0]
    >>> count_of(halves)
    (2, False)
    """
    if node.target is operator.getitem and isinstance(index := node.args[1], slice):
        whole = node.args[0]
        if isinstance(whole, Node) and kind_of(whole)[0] is torch.Size and kind_of(whole)[1]:
            return _count_of_slice(index)
        return None
    row = find_operator(node.target)
    if row is None or not row.parts:
        return None
    if node.args and isinstance(node.args[0], Node) and kind_of(node.args[0])[0] is not torch.Tensor:
        return None
    argument = (
        node.args[1]
        if len(node.args) > 1
        else next((node.kwargs[key] for key in row.parts if key in node.kwargs), None)
    )
    # sizes of the parts; else their number, or the indices at which they begin
    has_sizes = row.parts[0].startswith("split_size")
    if isinstance(argument, (list, tuple)):
        return len(argument) + (not has_sizes), True
    if type(argument) is int and not has_sizes:
        return argument, row.parts != ("chunks",)
    return None


def _count_of_slice(index: slice) -> tuple[int, bool] | None:
    """Return the number of elements of a slice of a shape that has enough dimensions."""
    start, stop = index.start or 0, index.stop
    if type(start) is not int or type(stop) not in (int, type(None)) or index.step not in (None, 1):
        return None
    if start < 0 and stop is None:
        return -start, False
    if stop is not None and (start < 0) == (stop < 0) and stop > start:
        return stop - start, False
    return None
