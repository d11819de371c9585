"""A wrong pass of the fifteenth round."""

import operator

from fx import GraphModule, Node

from ...rows import fault


def start_of(node):
    """Return the start of a slice ``x[start:]``, or None."""
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    index = node.args[1]
    if not isinstance(index, slice) or index.stop is not None or index.step is not None:
        return None
    return index.start if type(index.start) is int else None


@fault(15, wrong="A negative start counts from the end, so the sum of two starts is another place.")
def compose_slices_fifteenth(graph_module: GraphModule) -> GraphModule:
    """Write ``x[a:][b:]`` as ``x[a + b :]``."""
    for node in list(graph_module.graph.nodes):
        start = start_of(node)
        first = node.args[0] if start is not None else None
        first_start = start_of(first)
        if first_start is None or len(first.users) != 1:
            continue
        if start < 0:
            continue
        first.args = (first.args[0], slice(first_start + start, None, None))
        node.replace_all_uses_with(first)
        graph_module.graph.erase_node(node)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module
