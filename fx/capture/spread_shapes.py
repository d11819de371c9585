"""Shapes that a call spreads, as in ``x.view(*x.shape[:-1], 2, 3)``: the number of sizes is known only at run time."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from fx.checks.traced_values import outside_fx
from fx.errors import TraceError
from fx.node import Node
from fx.proxy import Proxy, TracerBase

_SIZES_FROM = {
    name: start
    for start, names in (
        (1, "expand flip new_empty new_ones new_zeros permute repeat reshape tile view"),
        (0, "empty ones rand randn zeros"),
    )
    for name in names.split()
}
"""Methods and functions that take sizes one by one or as a tuple, with the number of arguments before the sizes."""


class SpreadShape(Proxy):
    """A placeholder, among the arguments of a call, for all elements of a traced shape."""

    __slots__ = ("frame", "place", "refusal", "whole")

    def __init__(self, whole: Proxy, frame: FrameType, place: tuple[int, int], refusal: TraceError) -> None:
        """Create the placeholder.

        Args:
            whole: the traced shape.
            frame: the frame that makes the call.
            place: the first and last offset of the call in the frame's byte code.
            refusal: the error to raise if anything but that call reads the elements.
        """
        super().__init__(whole.node, whole.tracer)
        self.whole = whole
        self.frame = frame
        self.place = place
        self.refusal = refusal

    @property
    def node(self) -> Node:  # type: ignore[override]
        """Refuse: the placeholder is not a value of the program."""
        raise self.refused()

    @node.setter
    def node(self, _: Node) -> None:  # type: ignore[override]
        """Ignore the assignment."""

    def refused(self) -> TraceError:
        """Return the error to raise where anything else reads the elements. It ends the trace even if it is caught."""
        self.tracer._state.refused = self.refusal
        return self.refusal


def spread(
    tracer: TracerBase,
    pending: list[SpreadShape],
    kind: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with traced tuples in place of the placeholders for shapes.

    Raises:
        TraceError: this call does not spread the shapes, or it takes no tuple of sizes.
    """
    frame = outside_fx(sys._getframe(1))
    expected = [
        shape for shape in pending if shape.frame is frame and shape.place[0] <= frame.f_lasti <= shape.place[1]
    ]
    used: list[SpreadShape] = []

    def tuple_of(elements: Any) -> Any:
        shapes = [element for element in elements if type(element) is SpreadShape]
        if not shapes:
            return elements
        used.extend(shapes)
        return _joined(tracer, elements)

    # A function of the user may do anything with the elements: `counts(*x.shape)`.
    is_torch = kind == "call_method" or (kind == "call_function" and _is_of_torch(target))
    if not expected or not is_torch:
        return args, kwargs
    pending[:] = [shape for shape in pending if shape not in expected]
    start = _SIZES_FROM.get(target if kind == "call_method" else target.__name__)
    if any(type(argument) is SpreadShape for argument in args):
        if start is None or any(type(argument) is SpreadShape for argument in args[:start]):
            raise expected[0].refused()
        args = (*args[:start], tuple_of(args[start:]))
    args = tuple([tuple_of(argument) if type(argument) in (list, tuple) else argument for argument in args])
    kwargs = {
        name: tuple_of(argument) if type(argument) in (list, tuple) else argument for name, argument in kwargs.items()
    }
    # A call inside this one has taken some of the elements: `x.view(counts(*x.shape), -1)`.
    if len(used) != len(expected):
        raise expected[0].refused()
    return args, kwargs


def _joined(tracer: TracerBase, elements: Any) -> Any:
    """Return a traced tuple of the sizes: those of the spread shapes and the single sizes between them."""
    parts: list[Any] = []
    for element in elements:
        if type(element) is SpreadShape:
            parts.append(element.whole)
        elif parts and type(parts[-1]) is tuple:
            parts[-1] += (element,)
        else:
            parts.append((element,))
    joined = parts[0]
    for part in parts[1:]:
        joined = tracer.create_proxy("call_function", operator.add, (joined, part), {})
    return joined


def _is_of_torch(target: Callable[..., Any]) -> bool:
    home = str(getattr(target, "__module__", ""))
    return home == "torch" or home.startswith(("torch.nn.functional", "torch._C"))
