"""A wrong pass of the sixteenth round."""

import torch
import torch.fx
from torch.fx import Node

from ...rows import fault
from .shared import finish


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.softmax or node.kwargs or len(node.args) != 2:
            continue
        turned, dim = node.args
        if not isinstance(turned, Node) or turned.op != "call_function" or turned.target is not torch.transpose:
            continue
        if turned.kwargs or len(turned.args) != 3 or len(turned.users) != 1 or node.prev is not turned:
            continue
        value, first, second = turned.args
        if not all(type(d) is int for d in (dim, first, second)):
            continue
        if careful and len({d < 0 for d in (dim, first, second)}) > 1:
            continue
        moved = {first: second, second: first}.get(dim, dim)
        with graph.inserting_before(node):
            weights = graph.call_function(torch.softmax, (value, moved))
            result = graph.call_function(torch.transpose, (weights, first, second))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(turned)
    return finish(graph_module)


@fault(16, wrong="The dims are compared as they are written: dim=-1 is not recognized as one of transpose(1, 2).")
def softmax_before_transpose(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Moves a transpose behind the softmax that follows it, where it can meet other transposes, and renames the softmax's dim."""
    return _rewrite(graph_module, careful=False)
