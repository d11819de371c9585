"""A right pass of the seventeenth round."""

from fx import GraphModule, Node

from ...rows import sound


def _swap(node) -> bool:
    return (
        isinstance(node, Node)
        and node.op == "call_method"
        and node.target == "transpose"
        and not node.kwargs
        and node.args[1:] in ((-1, -2), (-2, -1))
    )


@sound(17)
def cancel_transposes_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Make a transpose that does nothing of two that cancel, which costs no change of layout."""
    for node in list(graph_module.graph.nodes):
        if _swap(node) and _swap(node.args[0]) and len(node.args[0].users) == 1:
            inner = node.args[0]
            node.args = (inner.args[0], -2, -2)  # needs two dimensions, as the pair does
            graph_module.graph.erase_node(inner)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
