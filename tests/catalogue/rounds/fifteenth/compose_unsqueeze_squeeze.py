"""A right pass of the fifteenth round."""

from fx import GraphModule

from ...rows import sound


@sound(15)
def compose_unsqueeze_squeeze(graph_module: GraphModule) -> GraphModule:
    """Drop a ``squeeze`` of the dimension that the ``unsqueeze`` before it has just made, and look at the value as a view."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_method" or node.target != "squeeze" or node.kwargs or len(node.args) != 2:
            continue
        first = node.args[0]
        if first.op != "call_method" or first.target != "unsqueeze" or first.kwargs or len(first.args) != 2:
            continue
        if len(first.users) != 1 or first.args[1] not in (0, -1) or first.args[1] != node.args[1]:
            continue
        with graph_module.graph.inserting_before(first):
            new = graph_module.graph.call_method("view_as", (first.args[0], first.args[0]))
        node.replace_all_uses_with(new)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(first)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
