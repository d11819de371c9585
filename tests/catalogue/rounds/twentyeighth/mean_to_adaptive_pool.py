"""A wrong pass of the twentyeighth round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import fault


def averaged(node):
    """The tensor that the node averages over axes 2 and 3, if that is all it does."""
    if node.op == "call_method" and node.target == "mean" or node.op == "call_function" and node.target is torch.mean:
        if len(node.args) in (1, 2) and set(node.kwargs) <= {"dim"} and isinstance(node.args[0], fx.Node):
            dims = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
            if isinstance(dims, (list, tuple)) and list(dims) == [2, 3]:
                return node.args[0]
    return None


def rewrite(gm, accept):
    for node in list(gm.graph.nodes):
        source = averaged(node)
        if source is None or not accept(gm, source):
            continue
        with gm.graph.inserting_before(node):
            pooled = gm.graph.call_function(F.adaptive_avg_pool2d, (source, 1))
            flat = gm.graph.call_function(torch.flatten, (pooled, 1))
        node.replace_all_uses_with(flat)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Takes axes 2 and 3 for the last two: a video tensor of five axes has a mean over (2, 3) too, and no such pool.",
)
def mean_to_adaptive_pool(gm):
    """Turns a mean over the image axes into an adaptive average pool, which the accelerator has."""
    return rewrite(gm, lambda gm, source: True)
