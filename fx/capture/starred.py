"""Shapes that a call spreads, as ``x.view(*x.shape[:-1], 2, 3)``: how many sizes there are, the program finds."""

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
"""Methods and functions that take sizes one by one or as a tuple, with the number of arguments before them."""


class Starred(Proxy):
    """Stands among the arguments of a call for all elements of a traced shape."""

    __slots__ = ("frame", "place", "refusal", "whole")

    def __init__(self, whole: Proxy, frame: FrameType, place: tuple[int, int], refusal: TraceError) -> None:
        """``place`` is where the call stands; ``refusal`` is raised where something else gets the elements."""
        super().__init__(whole.node, whole.tracer)
        self.whole = whole
        self.frame = frame
        self.place = place
        self.refusal = refusal

    @property
    def node(self) -> Node:  # type: ignore[override]
        """Refuse: it is not a value of the program."""
        raise self.refused()

    @node.setter
    def node(self, _: Node) -> None:  # type: ignore[override]
        """Keep nothing."""

    def refused(self) -> TraceError:
        """Return what to raise where something else gets the elements: it ends the trace, caught or not."""
        self.tracer._state.refused = self.refusal
        return self.refusal


def spread(
    tracer: TracerBase, pending: list[Starred], kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with what stands for shapes among them replaced by traced tuples.

    Raises:
        TraceError: it is not the call that the shapes are spread in, or takes no tuple of sizes.
    """
    frame = outside_fx(sys._getframe(1))
    here = [one for one in pending if one.frame is frame and one.place[0] <= frame.f_lasti <= one.place[1]]
    used: list[Starred] = []

    def tuple_of(elements: Any) -> Any:
        found = [one for one in elements if type(one) is Starred]
        if not found:
            return elements
        used.extend(found)
        return _joined(tracer, elements)

    # A function of the user may do with the elements what it likes: `counts(*x.shape)`.
    is_torch = kind == "call_method" or (kind == "call_function" and _is_of_torch(target))
    if not here or not is_torch:
        return args, kwargs
    pending[:] = [one for one in pending if one not in here]
    start = _SIZES_FROM.get(target if kind == "call_method" else target.__name__)
    if any(type(one) is Starred for one in args):
        if start is None or any(type(one) is Starred for one in args[:start]):
            raise here[0].refused()
        args = (*args[:start], tuple_of(args[start:]))
    args = tuple([tuple_of(one) if type(one) in (list, tuple) else one for one in args])
    kwargs = {name: tuple_of(one) if type(one) in (list, tuple) else one for name, one in kwargs.items()}
    # Something inside of the call has taken others: `x.view(counts(*x.shape), -1)`.
    if len(used) != len(here):
        raise here[0].refused()
    return args, kwargs


def _joined(tracer: TracerBase, elements: Any) -> Any:
    """A traced tuple of sizes: those of the shapes, and what stands between them."""
    parts: list[Any] = []
    for one in elements:
        if type(one) is Starred:
            parts.append(one.whole)
        elif parts and type(parts[-1]) is tuple:
            parts[-1] += (one,)
        else:
            parts.append((one,))
    joined = parts[0]
    for part in parts[1:]:
        joined = tracer.create_proxy("call_function", operator.add, (joined, part), {})
    return joined


def _is_of_torch(target: Callable[..., Any]) -> bool:
    home = str(getattr(target, "__module__", ""))
    return home == "torch" or home.startswith(("torch.nn.functional", "torch._C"))
