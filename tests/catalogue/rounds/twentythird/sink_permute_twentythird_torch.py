"""A wrong pass of the twentythird round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import _only_reads_between

_POINTWISE = {torch.relu, F.relu, torch.sigmoid, torch.tanh, F.gelu, F.silu, torch.exp, F.hardswish}


def _rewrite(gm, pointwise):
    graph = gm.graph
    for node in list(graph.nodes):
        permute = node.args[0] if node.op == "call_function" and node.target in pointwise and node.args else None
        if not isinstance(permute, torch.fx.Node) or permute.op != "call_method" or permute.target != "permute":
            continue
        if permute.kwargs or not all(type(dim) is int for dim in permute.args[1:]) or len(permute.args) < 2:
            continue
        if list(permute.users) != [node] or node.kwargs.get("inplace") or not _only_reads_between(permute, node):
            continue
        with graph.inserting_before(node):
            first = graph.call_function(node.target, (permute.args[0], *node.args[1:]), dict(node.kwargs))
            sunk = graph.call_method("permute", (first, *permute.args[1:]))
        node.replace_all_uses_with(sunk)
        graph.erase_node(node)
        graph.erase_node(permute)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    23, wrong="PReLU has one slope for each channel of dimension 1: below the permute another dimension stands there."
)
def sink_permute_twentythird(gm: torch.fx.GraphModule):
    """Sink a permute below the element-wise operation that follows, so that pairs of permutes meet and cancel."""
    return _rewrite(gm, _POINTWISE | {F.prelu})
