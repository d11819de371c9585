"""A wrong pass of the thirteenth round."""

import torch
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish


def _bounds(node):
    """(min, max) of x.clamp or torch.clamp with literal numbers."""
    method = node.op == "call_method" and node.target == "clamp"
    if not (method or node.op == "call_function" and node.target is torch.clamp) or not node.args:
        return None
    bounds = dict(zip(("min", "max"), node.args[1:])) | dict(node.kwargs)
    if not set(bounds) <= {"min", "max"} or len(node.args) > 3:
        return None
    return bounds.get("min"), bounds.get("max")


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in list(gm.graph.nodes):
        inner = node.prev
        second, first = _bounds(node), _bounds(inner)
        if first is None or second is None or node.args[0] is not inner or len(inner.users) != 1:
            continue
        low, high = first[0], second[1]
        if (
            first[1] is not None
            or second[0] is not None
            or type(low) is not type(high)
            or type(low) not in (int, float)
        ):
            continue
        if not 0 <= low <= high <= 100:
            continue
        bounds = {"min": low, "max": high} if careful else {k: v for k, v in (("min", low), ("max", high)) if v}
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(torch.clamp, (inner.args[0],), bounds or {"min": low})
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
        gm.graph.erase_node(inner)
    return finish(gm)


@fault(13, wrong="A bound of zero counts as no bound, because it is tested by its truth.")
def merge_clamps_thirteenth(graph_module: GraphModule) -> GraphModule:
    """Makes one clamp of a lower and an upper one in a row, as in the clipping of boxes."""
    return _rewrite(graph_module, careful=False)
