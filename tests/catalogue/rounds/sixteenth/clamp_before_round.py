"""A wrong pass of the sixteenth round."""

import torch

from fx import GraphModule, Node

from ...rows import fault
from .shared import finish


def _rewrite(graph_module: GraphModule, careful: bool) -> GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.clamp or node.kwargs or len(node.args) != 3:
            continue
        rounded, low, high = node.args
        if not isinstance(rounded, Node) or rounded.op != "call_function" or rounded.target is not torch.round:
            continue
        if rounded.kwargs or len(rounded.args) != 1 or len(rounded.users) != 1 or node.prev is not rounded:
            continue
        kinds = (int,) if careful else (int, float)
        if type(low) not in kinds or type(high) not in kinds or not -256 <= low <= high <= 256:
            continue
        with graph.inserting_before(node):
            clamped = graph.call_function(torch.clamp, (rounded.args[0], low, high))
            result = graph.call_function(torch.round, (clamped,))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(rounded)
    return finish(graph_module)


@fault(16, wrong="That holds for bounds that are integers only; a bound such as 127.5 is rounded afterwards.")
def clamp_before_round(graph_module: GraphModule) -> GraphModule:
    """Clamps before rounding instead of after it, as quantizers of hardware do, so that what is rounded is in range."""
    return _rewrite(graph_module, careful=False)
