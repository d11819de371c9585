"""Views: shapes, orders of dimensions, and dimensions of size one."""

import torch

from ...rows import fault, replace, sound
from . import ROUND, aten, calls, decomposed, done, is_call, value


@fault(
    ROUND,
    "specialization",
    "batch sizes",
    "other sizes",
    "contract",
    wrong="The sizes in the metadata are those of one batch; whole numbers fix them.",
)
@decomposed
def merge_views_by_sizes(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Of two views behind each other the last one is enough."""
    for node in calls(gm.graph, aten.view.default):
        inner = node.args[0]
        if is_call(inner, aten.view.default):
            node.args = (inner.args[0], [int(size) for size in value(node).shape])
    return done(gm)


@sound(ROUND)
@decomposed
def merge_views_by_arguments(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Of two views behind each other the last one is enough, with its own arguments."""
    for node in calls(gm.graph, aten.view.default):
        inner = node.args[0]
        if is_call(inner, aten.view.default):
            node.args = (inner.args[0], node.args[1])
    return done(gm)


@fault(ROUND, "order", wrong="The second order is looked up in the first one, not the first one in the second.")
@decomposed
def compose_orders(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Two permutations behind each other are one."""
    for node in calls(gm.graph, aten.permute.default):
        inner = node.args[0]
        if is_call(inner, aten.permute.default):
            first, second = inner.args[1], node.args[1]
            node.args = (inner.args[0], [second[dim] for dim in first])
    return done(gm)


@fault(ROUND, "size", wrong="A dimension of another size than one is not squeezed, and one is added all the same.")
@decomposed
def cancel_squeezes_of_any_size(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A dimension that is squeezed and added again at the same place."""
    for node in calls(gm.graph, aten.unsqueeze.default):
        inner = node.args[0]
        if is_call(inner, aten.squeeze.dims) and list(inner.args[1]) == [node.args[1]]:
            replace(node, aten.alias.default, inner.args[0])
        elif is_call(inner, aten.squeeze.dim) and inner.args[1] == node.args[1]:
            replace(node, aten.alias.default, inner.args[0])
    return done(gm)


@sound(ROUND)
@decomposed
def cancel_squeezes_of_ones(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A dimension of size one that is squeezed and added again at the same place."""
    for node in calls(gm.graph, aten.unsqueeze.default):
        inner = node.args[0]
        if not is_call(inner, aten.squeeze.dims, aten.squeeze.dim):
            continue
        dims = inner.args[1] if isinstance(inner.args[1], (list, tuple)) else [inner.args[1]]
        size = value(inner.args[0]).shape[dims[0]] if len(dims) == 1 and value(inner.args[0]).dim() else None
        if type(size) is int and size == 1 and dims[0] == node.args[1]:
            replace(node, aten.alias.default, inner.args[0])
    return done(gm)


@fault(ROUND, "strides", wrong="A tensor whose elements are in another order in memory has no view of that shape.")
def reshapes_as_views(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The runtime has no reshape: a view, which copies nothing."""
    for node in calls(gm.graph, aten.reshape.default):
        node.target = aten.view.default
    return done(gm)


@fault(
    ROUND,
    "stale metadata",
    wrong="The new permutation gets the metadata of its input, whose sizes are in another order.",
)
@decomposed
def sink_orders_then_open_means(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Permutations go behind activations; then means become sums and quotients."""
    for node in calls(gm.graph, aten.relu.default, aten.sigmoid.default, aten.tanh.default):
        order = node.args[0]
        if not is_call(order, aten.permute.default):
            continue
        with gm.graph.inserting_before(node):
            active = gm.graph.call_function(node.target, (order.args[0],))
        active.meta = dict(order.args[0].meta)
        moved = replace(node, aten.permute.default, active, order.args[1])
        moved.meta = dict(order.args[0].meta)
    for node in calls(gm.graph, aten.mean.dim):
        x, dims = node.args[:2]
        count = 1
        for dim in dims:
            count = count * value(x).shape[dim]
        if type(count) is int and len(node.args) == 2 and not node.kwargs:
            with gm.graph.inserting_before(node):
                total = gm.graph.call_function(aten.sum.dim_IntList, (x, dims))
            replace(node, aten.div.Tensor, total, count)
    return done(gm)
