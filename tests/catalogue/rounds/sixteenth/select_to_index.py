"""A wrong pass of the sixteenth round."""

import operator

import torch

from fx import GraphModule, Node

from ...rows import fault
from .shared import finish


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.select or node.kwargs or len(node.args) != 3:
            continue
        value, dim, index = node.args
        if type(dim) is not int or type(index) is not int or not isinstance(value, Node) or dim < -4:
            continue
        if dim >= 0:
            key = (slice(None),) * dim + (index,)
        elif careful:
            key = (Ellipsis, index) + (slice(None),) * (-dim - 1)
        else:
            key = (slice(None),) * (dim % 4) + (index,)
        with graph.inserting_before(node):
            indexed = graph.call_function(operator.getitem, (value, key))
        node.replace_all_uses_with(indexed)
        graph.erase_node(node)
    return finish(graph_module)


@fault(
    16,
    wrong="A negative dim is counted in a tensor of rank 4, the images that the pass was written for; other ranks select along another dim.",
)
def select_to_index(graph_module: GraphModule) -> GraphModule:
    """Writes torch.select with constant dim and index as plain indexing, which is the same view."""
    return _rewrite(graph_module, careful=False)
