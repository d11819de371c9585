"""A right pass of the sixteenth round."""

import torch
import torch.fx
from torch.fx import Node

from ...rows import sound
from .shared import finish


def _dtype(node: object) -> torch.dtype | None:
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "to":
        return None
    if node.kwargs or len(node.args) != 2 or not isinstance(node.args[1], torch.dtype):
        return None
    return node.args[1]


def _rewrite(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        dtype = _dtype(node)
        if dtype is None or _dtype(node.args[0]) is not dtype or node.prev is not node.args[0]:
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    return finish(graph_module)


@sound(16)
def drop_repeated_cast(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Drops a cast to a dtype that directly follows a cast to the same dtype."""
    return _rewrite(graph_module)
