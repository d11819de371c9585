"""A wrong pass of the fifteenth round."""

from fx import GraphModule

from ...rows import fault


@fault(15, wrong="A roll without dims rolls the flattened tensor; the missing argument is taken for dimension 0.")
def compose_rolls(graph_module: GraphModule) -> GraphModule:
    """Write ``x.roll(a, d).roll(b, d)`` as one roll by a + b."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_method" or node.target != "roll" or node.kwargs or len(node.args) < 2:
            continue
        first = node.args[0]
        if (
            first.op != "call_method"
            or first.target != "roll"
            or first.kwargs
            or len(first.args) < 2
            or len(first.users) != 1
        ):
            continue
        first_dims = first.args[2] if len(first.args) > 2 else 0
        dims = node.args[2] if len(node.args) > 2 else 0
        if type(first_dims) is not type(dims) or first_dims != dims or not (dims is None or type(dims) is int):
            continue
        if type(first.args[1]) is not int or type(node.args[1]) is not int:
            continue
        first.args = (first.args[0], first.args[1] + node.args[1], *first.args[2:])
        node.replace_all_uses_with(first)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
