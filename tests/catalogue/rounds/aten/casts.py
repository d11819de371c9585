"""Copies to another dtype, and chains of them."""

import torch

from ...rows import fault, replace, sound, substitute
from . import ROUND, aten, calls, decomposed, done, is_call, value


@fault(ROUND, "copies", "aliasing", "inputs untouched", wrong="A copy to the dtype that it has is still a new tensor.")
@decomposed
def drop_same_dtype_copies(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A cast to the dtype that a value has does nothing."""
    for node in calls(gm.graph, aten._to_copy.default):
        if node.kwargs.get("dtype") == value(node.args[0]).dtype and len(node.kwargs) == 1:
            substitute(node, node.args[0])
    return done(gm)


def _shorten(gm, is_lossless):
    for node in calls(gm.graph, aten._to_copy.default):
        inner = node.args[0]
        if not is_call(inner, aten._to_copy.default) or set(node.kwargs) != {"dtype"} or set(inner.kwargs) != {"dtype"}:
            continue
        source, middle = value(inner.args[0]).dtype, inner.kwargs["dtype"]
        if source.is_floating_point and middle.is_floating_point and is_lossless(source, middle):
            node.args = (inner.args[0],)
    return done(gm)


@fault(ROUND, "narrowing", wrong="bfloat16 has the range of float32 and covers float16's, but fewer digits than both.")
@decomposed
def shorten_casts_by_range(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Casts through a dtype of at least the source's range lose nothing."""
    return _shorten(gm, lambda source, middle: torch.finfo(middle).max >= torch.finfo(source).max)


@sound(ROUND)
@decomposed
def shorten_casts_by_range_and_digits(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Casts through a floating dtype that holds every value of the source lose nothing."""

    def holds(source, middle):
        inner, outer = torch.finfo(source), torch.finfo(middle)
        return outer.max >= inner.max and outer.eps <= inner.eps and outer.tiny <= inner.tiny

    return _shorten(gm, holds)


@fault(
    ROUND, "narrowing", wrong="The round trip through an integer dtype truncates, which the source dtype does not show."
)
@decomposed
def cancel_round_trips(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Cast there and back again: the value of before."""
    for node in calls(gm.graph, aten._to_copy.default):
        inner = node.args[0]
        if not is_call(inner, aten._to_copy.default):
            continue
        source, back = inner.args[0], node.kwargs.get("dtype")
        wide_enough = inner.kwargs.get("dtype", torch.float16).itemsize >= value(source).dtype.itemsize
        if back == value(source).dtype and wide_enough:
            replace(node, aten.clone.default, source)
    return done(gm)


@fault(ROUND, "narrowing", wrong="Truncated elements have another sum than the truncated sum.")
@decomposed
def casts_before_sums(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Read less memory: a cast of a sum to a dtype that is no wider becomes a cast of its elements."""
    for node in calls(gm.graph, aten._to_copy.default):
        total, dtype = node.args[0], node.kwargs.get("dtype")
        if not is_call(total, aten.sum.default, aten.sum.dim_IntList) or total.kwargs or dtype is None:
            continue
        x = total.args[0]
        if dtype.itemsize <= value(x).dtype.itemsize and value(x).is_floating_point():
            with gm.graph.inserting_before(node):
                cast = gm.graph.call_function(aten._to_copy.default, (x,), {"dtype": dtype})
            replace(node, total.target, cast, *total.args[1:], dtype=dtype)
    return done(gm)
