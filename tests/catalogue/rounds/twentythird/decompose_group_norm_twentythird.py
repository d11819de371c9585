"""A wrong pass of the twentythird round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import fault


def _images(graph, value, node):
    wide = (1, -1, 1, 1)
    if node.kwargs.get("weight") is not None:
        value = graph.call_function(
            torch.mul, (value, graph.call_function(torch.reshape, (node.kwargs["weight"], wide)))
        )
    if node.kwargs.get("bias") is not None:
        value = graph.call_function(torch.add, (value, graph.call_function(torch.reshape, (node.kwargs["bias"], wide))))
    return value


def _rewrite(gm, affine):
    graph = gm.graph
    for node in graph.find_nodes(op="call_function", target=F.group_norm):
        if len(node.args) != 2 or type(node.args[1]) is not int or not isinstance(node.args[0], fx.Node):
            continue
        x, groups = node.args
        with graph.inserting_before(node):
            split = graph.call_function(torch.unflatten, (x, 1, (groups, -1)))
            rows = graph.call_function(torch.flatten, (split, 2))
            mean = graph.call_function(torch.mean, (rows, -1), {"keepdim": True})
            var = graph.call_function(torch.var, (rows, -1), {"correction": 0, "keepdim": True})
            spread = graph.call_function(
                torch.rsqrt, (graph.call_function(torch.add, (var, node.kwargs.get("eps", 1e-5))),)
            )
            centred = graph.call_function(torch.sub, (rows, mean))
            normal = graph.call_method("reshape_as", (graph.call_function(torch.mul, (centred, spread)), x))
            result = affine(graph, normal, node)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="The affine part is reshaped to (1, C, 1, 1), which fits images only: with (N, C, L) it broadcasts to another shape.",
)
def decompose_group_norm_twentythird(gm):
    """Decompose `F.group_norm` into reshapes, means and arithmetic for a backend without it."""
    return _rewrite(gm, _images)
