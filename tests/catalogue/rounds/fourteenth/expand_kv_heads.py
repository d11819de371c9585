"""A wrong pass of the fourteenth round."""

import torch

from fx import GraphModule

from ...rows import fault
from .shared import finish


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "repeat_interleave" or set(node.kwargs) - {"dim"}:
            continue
        if len(node.args) + len(node.kwargs) != 3:
            continue
        value, count = node.args[:2]
        dim = node.kwargs.get("dim", node.args[-1])
        if type(count) is not int or type(dim) is not int or count < 1 or dim < 0:
            continue
        with graph.inserting_before(node):
            if careful:
                copies = graph.call_function(torch.stack, ([value] * count, dim + 1))
                new = graph.call_method("flatten", (copies, dim, dim + 1))
            else:
                new = graph.call_function(torch.cat, ([value] * count, dim))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    return finish(graph_module)


@fault(14, wrong="A concatenation puts the heads in the order 0 1 0 1, not 0 0 1 1; right with one head only.")
def expand_kv_heads(graph_module: GraphModule) -> GraphModule:
    """Replace k.repeat_interleave(n, dim=d) by a concatenation of n copies."""
    return _rewrite(graph_module, False)
