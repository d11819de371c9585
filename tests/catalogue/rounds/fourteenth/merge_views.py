"""A wrong pass of the fourteenth round."""

import fx
from fx import GraphModule

from ...rows import fault
from .shared import finish, follows


def _ints(sizes):
    return bool(sizes) and all(type(size) is int for size in sizes)


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    first_names = ("view",) if careful else ("view", "reshape")
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "view" or node.kwargs or not _ints(node.args[1:]):
            continue
        first = node.args[0]
        if not isinstance(first, fx.Node) or first.op != "call_method" or first.target not in first_names:
            continue
        if first.kwargs or not _ints(first.args[1:]) or len(first.users) != 1 or not follows(node, first):
            continue
        node.update_arg(0, first.args[0])
        graph.erase_node(first)
    return finish(graph_module)


@fault(14, wrong="A reshape may copy: the view after it is then not one of the value before.")
def merge_views(graph_module: GraphModule) -> GraphModule:
    """Replace x.view(...).view(...) and x.reshape(...).view(...) by x.view(...)."""
    return _rewrite(graph_module, False)
