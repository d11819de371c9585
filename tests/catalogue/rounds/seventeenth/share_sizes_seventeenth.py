"""A right pass of the seventeenth round."""

from fx import GraphModule, Node

from ...rows import sound
from .shared import may_write


@sound(17)
def share_sizes_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Ask for a size of a value once."""
    if may_write(graph_module):
        return graph_module
    first_of_size: dict[tuple, Node] = {}
    for node in list(graph_module.graph.nodes):
        if node.op != "call_method" or node.target != "size" or node.kwargs or len(node.args) != 2:
            continue
        if not isinstance(node.args[0], Node) or type(node.args[1]) is not int:
            continue
        first = first_of_size.setdefault(node.args, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
