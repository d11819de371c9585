"""A right pass of the sixteenth round."""

import torch.nn.functional as F

from fx import GraphModule, Node

from ...rows import sound
from .shared import finish


def _rewrite(graph_module: GraphModule) -> GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.dropout or len(node.args) != 1:
            continue
        p = node.kwargs.get("p", 0.5)
        if node.kwargs.get("training", True) is not False or not set(node.kwargs) <= {"p", "training", "inplace"}:
            continue
        if type(p) not in (int, float) or not 0 <= p <= 1 or not isinstance(node.args[0], Node):
            continue
        if isinstance(node.kwargs.get("inplace", False), Node):
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    return finish(graph_module)


@sound(16)
def drop_inactive_dropout(graph_module: GraphModule) -> GraphModule:
    """Drops calls of F.dropout that are inactive."""
    return _rewrite(graph_module)
