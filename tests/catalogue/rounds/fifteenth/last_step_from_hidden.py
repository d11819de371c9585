"""A wrong pass of the fifteenth round."""

import operator

from torch import nn

from fx import GraphModule, Node

from ...rows import fault
from .shared import plain


def rank_of(node):
    """The rank of the value, if the node itself says it, else None."""
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "permute" or node.kwargs:
        return None
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (list, tuple)):
        dims = dims[0]
    return len(dims) if all(type(dim) is int for dim in dims) else None


@fault(
    15,
    wrong="A bidirectional GRU has two directions side by side in its outputs, and the final state of the backward one is that of step 0.",
)
def last_step_from_hidden(graph_module: GraphModule) -> GraphModule:
    """Take the last time step of a ``GRU`` from its final hidden state instead of from all outputs."""
    for node in list(graph_module.graph.nodes):
        gru = plain(graph_module, node, nn.GRU)
        if gru is None or not gru.batch_first or rank_of(node.args[0]) != 3:
            continue
        parts = list(node.users)
        if len(parts) != 1 or parts[0].target is not operator.getitem or parts[0].args[1] != 0:
            continue
        steps = list(parts[0].users)
        if len(steps) != 1 or steps[0].target is not operator.getitem or steps[0].args[1] != (slice(None), -1):
            continue
        with graph_module.graph.inserting_before(parts[0]):
            hidden = graph_module.graph.call_function(operator.getitem, (node, 1))
        with graph_module.graph.inserting_before(steps[0]):
            last = graph_module.graph.call_function(operator.getitem, (hidden, -1))
        steps[0].replace_all_uses_with(last)
        graph_module.graph.erase_node(steps[0])
        graph_module.graph.erase_node(parts[0])
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
