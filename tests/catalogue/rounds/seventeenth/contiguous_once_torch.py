"""A right pass of the seventeenth round."""

from torch.fx import GraphModule, Node

from ...rows import sound
from .shared import may_write


def _contiguous(node) -> bool:
    return (
        isinstance(node, Node)
        and node.op == "call_method"
        and node.target == "contiguous"
        and len(node.args) == 1
        and not node.kwargs
    )


@sound(17)
def contiguous_once(graph_module: GraphModule) -> GraphModule:
    """Drop contiguous() of the result of contiguous()."""
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        if _contiguous(node) and _contiguous(node.args[0]):
            node.replace_all_uses_with(node.args[0])
            graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
