"""A wrong pass of the seventeenth round."""

from fx import GraphModule, Node

from ...rows import fault


def _dim(node, method: str):
    """The dimension given, "all" for none, or None for something else."""
    if not isinstance(node, Node) or node.op != "call_method" or node.target != method or set(node.kwargs) - {"dim"}:
        return None
    dims = (*node.args[1:], *node.kwargs.values())
    if not dims and method == "squeeze":
        return "all"
    return dims[0] if len(dims) == 1 and dims[0] in (0, -1) and type(dims[0]) is int else None


def _cancel(graph_module: GraphModule, careful: bool) -> GraphModule:
    for node in list(graph_module.graph.nodes):
        dropped = _dim(node, "squeeze")
        added = _dim(node.args[0], "unsqueeze") if dropped is not None else None
        if added is None or dropped != added and (careful or dropped != "all") or len(node.args[0].users) > 1:
            continue
        source = node.args[0]
        node.target, node.kwargs = "view_as", {}  # still a view, of the same shape
        node.args = (source.args[0], source.args[0])
        graph_module.graph.erase_node(source)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17,
    wrong="A squeeze without a dimension drops every dimension of size 1, not only the one that the unsqueeze added.",
)
def cancel_unsqueeze_squeeze_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Drop an unsqueeze that a squeeze undoes."""
    return _cancel(graph_module, careful=False)
