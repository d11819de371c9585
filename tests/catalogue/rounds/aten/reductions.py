"""Reductions, sorted values, and places of extremes."""

import operator

import torch

from ...rows import fault, replace, sound
from . import ROUND, argument, aten, calls, decomposed, done, is_call, value


def _open_variance(gm, correction_of):
    for node in calls(gm.graph, aten.var.correction):
        x, dims = node.args[0], argument(node, 1, "dim")
        sizes = [value(x).shape[dim] for dim in dims] if dims else []
        if not sizes or not all(type(size) is int for size in sizes) or not value(x).is_floating_point():
            continue
        count = 1
        for size in sizes:
            count *= size
        correction = correction_of(node)
        if count - correction <= 0:
            continue
        with gm.graph.inserting_before(node):
            mean = gm.graph.call_function(aten.mean.dim, (x, dims, True))
            centered = gm.graph.call_function(aten.sub.Tensor, (x, mean))
            squares = gm.graph.call_function(aten.mul.Tensor, (centered, centered))
            total = gm.graph.call_function(aten.sum.dim_IntList, (squares, dims, node.kwargs.get("keepdim", False)))
        replace(node, aten.div.Tensor, total, count - correction)
    return done(gm)


@fault(ROUND, "dropped keyword", wrong="The variance of a whole population has a correction of 0.")
@decomposed
def open_variances(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The accelerator has no variance: the squares of what is centered, over the count less 1."""
    return _open_variance(gm, lambda node: 1)


@sound(ROUND)
@decomposed
def open_variances_with_correction(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A variance is the sum of squares of what is centered, over the count less the correction, by default 1."""
    return _open_variance(gm, lambda node: 1 if node.kwargs.get("correction") is None else node.kwargs["correction"])


@fault(ROUND, "ties", wrong="Equal values keep their order in a sort, and a flip turns it round.")
@decomposed
def descending_as_flipped(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A descending sort is an ascending one in the other direction."""
    for node in calls(gm.graph, aten.sort.default, aten.sort.stable):
        x, *rest = node.args
        is_stable = node.target is aten.sort.stable
        dim = argument(node, 1, "dim", -1)
        if not argument(node, 2, "descending", False):
            continue
        with gm.graph.inserting_before(node):
            how = {"stable": True, "dim": dim} if is_stable else {"dim": dim}
            ascending = gm.graph.call_function(node.target, (x,), how)
        for part in list(node.users):
            with gm.graph.inserting_before(part):
                each = gm.graph.call_function(operator.getitem, (ascending, part.args[1]))
            replace(part, aten.flip.default, each, [dim])
    return done(gm)


@fault(ROUND, "default", wrong="Without a dimension the place counts in the flattened tensor.")
@decomposed
def argmax_as_max(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The place of the largest value is the second result of a maximum along a dimension."""
    for node in calls(gm.graph, aten.argmax.default):
        x, dim, keepdim = node.args[0], argument(node, 1, "dim"), argument(node, 2, "keepdim", False)
        with gm.graph.inserting_before(node):
            largest = gm.graph.call_function(aten.max.dim, (x, -1 if dim is None else dim, keepdim))
        replace(node, operator.getitem, largest, 1)
    return done(gm)


@fault(ROUND, "gradients", wrong="No gradient flows through a detached value.")
def drop_detaches(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Detached values are the values."""
    for node in calls(gm.graph, aten.detach.default, aten.detach_.default):
        replace(node, aten.alias.default, node.args[0])
    return done(gm)


@fault(ROUND, "min above max", wrong="A clamp whose bounds are in the wrong order returns the upper one.")
@decomposed
def clamp_upper_bound_first(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A clamp with two bounds: first the upper, then the lower one."""
    for node in calls(gm.graph, aten.clamp.default):
        x, low, high = node.args[0], argument(node, 1, "min"), argument(node, 2, "max")
        if low is not None and high is not None:
            with gm.graph.inserting_before(node):
                below = gm.graph.call_function(aten.clamp_max.default, (x, high))
            replace(node, aten.clamp_min.default, below, low)
    return done(gm)


@sound(ROUND)
@decomposed
def clamp_lower_bound_first(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A clamp with two bounds: first the lower, then the upper one."""
    for node in calls(gm.graph, aten.clamp.default):
        x, low, high = node.args[0], argument(node, 1, "min"), argument(node, 2, "max")
        if low is not None and high is not None:
            with gm.graph.inserting_before(node):
                above = gm.graph.call_function(aten.clamp_min.default, (x, low))
            replace(node, aten.clamp_max.default, above, high)
    return done(gm)


@fault(
    ROUND,
    "gradients",
    wrong="The inner choice keeps the root of a negative number out of the backward pass: 0 times NaN.",
)
@decomposed
def drop_inner_choices(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A value that was chosen by a condition, and is chosen by it again after an elementwise function."""
    for node in calls(gm.graph, aten.where.self):
        condition, function, other = node.args
        if not is_call(function, aten.sqrt.default, aten.log.default, aten.reciprocal.default):
            continue
        inner = function.args[0]
        if is_call(inner, aten.where.self) and inner.args[0] is condition and len(function.users) == 1:
            if value(inner.args[1]).shape == value(inner).shape and value(inner.args[1]).dtype == value(inner).dtype:
                function.args = (inner.args[1],)
    return done(gm)


@fault(ROUND, "order", wrong="The rows of rows are found by the first indices at the second ones.")
@decomposed
def compose_lookups(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Rows of rows are looked up once."""
    for node in calls(gm.graph, aten.index_select.default):
        inner, dim, second = node.args
        if is_call(inner, aten.index_select.default) and inner.args[1] == dim:
            with gm.graph.inserting_before(node):
                both = gm.graph.call_function(aten.index_select.default, (second, 0, inner.args[2]))
            node.args = (inner.args[0], dim, both)
    return done(gm)


@sound(ROUND)
@decomposed
def compose_lookups_in_order(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Rows of rows are looked up once, by the first indices at the second ones."""
    for node in calls(gm.graph, aten.index_select.default):
        inner, dim, second = node.args
        if is_call(inner, aten.index_select.default) and inner.args[1] == dim:
            with gm.graph.inserting_before(node):
                both = gm.graph.call_function(aten.index_select.default, (inner.args[2], 0, second))
            node.args = (inner.args[0], dim, both)
    return done(gm)
