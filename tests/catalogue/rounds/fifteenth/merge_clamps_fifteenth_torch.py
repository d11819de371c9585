"""A wrong pass of the fifteenth round."""

import torch
import torch.fx
from torch.fx import Node

from ...rows import fault


def bounds(node):
    """The two bounds of a clamp, if they are ordinary numbers of one type, else None."""
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "clamp" or node.kwargs:
        return None
    limits = node.args[1:]
    if len(limits) != 2 or type(limits[0]) not in (int, float) or type(limits[0]) is not type(limits[1]):
        return None
    return limits if all(0 <= bound <= 100 for bound in limits) and limits[0] <= limits[1] else None


@fault(
    15,
    wrong="Ranges that do not overlap: the merged range has its bounds in the wrong order, and clamp then returns the upper one.",
)
def merge_clamps_fifteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merge two ``clamp`` in a row into one with the narrower range."""
    for node in list(graph_module.graph.nodes):
        outer, inner = bounds(node), bounds(node.args[0]) if node.args else None
        if outer is None or inner is None or type(outer[0]) is not type(inner[0]) or len(node.args[0].users) != 1:
            continue
        low, high = max(outer[0], inner[0]), min(outer[1], inner[1])
        first = node.args[0]
        first.args = (first.args[0], low, high)
        node.replace_all_uses_with(first)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
