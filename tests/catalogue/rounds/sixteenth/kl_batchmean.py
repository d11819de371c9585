"""A wrong pass of the sixteenth round."""

import operator

import torch.nn.functional as F

from fx import GraphModule, Node

from ...rows import fault
from .shared import finish


def _size_of(node: object, value: Node, careful: bool) -> bool:
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "size" or node.kwargs:
        return False
    return len(node.args) == 2 and node.args[0] is value and (not careful or node.args[1] == 0)


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.truediv or node.kwargs:
            continue
        loss, count = node.args
        if not isinstance(loss, Node) or loss.op != "call_function" or loss.target is not F.kl_div:
            continue
        options = {key: value for key, value in loss.kwargs.items() if value is not None}
        if len(loss.args) != 2 or options.get("reduction") != "sum" or not set(options) <= {"reduction", "log_target"}:
            continue
        if loss.args[0] is loss.args[1] or not _size_of(count, loss.args[0], careful) or len(loss.users) != 1:
            continue
        if not ((node.prev is loss and loss.prev is count) or (node.prev is count and count.prev is loss)):
            continue
        loss.kwargs = {**loss.kwargs, "reduction": "batchmean"}
        node.replace_all_uses_with(loss)
        graph.erase_node(node)
    return finish(graph_module)


@fault(16, wrong="Which dim is divided by is not looked at: x.size(1) is taken for the batch size too.")
def kl_batchmean(graph_module: GraphModule) -> GraphModule:
    """Writes F.kl_div with reduction='sum' that is divided by the batch size as reduction='batchmean'."""
    return _rewrite(graph_module, careful=False)
