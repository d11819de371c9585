"""A wrong pass of the seventeenth round."""

from fx import GraphModule, Node

from ...rows import fault


def _dims(node) -> list[int] | None:
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "permute" or node.kwargs:
        return None
    dims = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    if not dims or not all(type(d) is int and -len(dims) <= d < len(dims) for d in dims):
        return None
    dims = [d % len(dims) for d in dims]
    return dims if sorted(dims) == list(range(len(dims))) else None


def _fuse(graph_module: GraphModule, compose) -> GraphModule:
    for node in list(graph_module.graph.nodes):
        outer = _dims(node)
        inner = _dims(node.args[0]) if outer else None
        if not inner or len(inner) != len(outer) or len(node.args[0].users) > 1:
            continue
        source = node.args[0]
        node.args = (source.args[0], *compose(inner, outer))
        graph_module.graph.erase_node(source)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="The two permutations are composed in the wrong order, which shows where they do not commute.")
def fuse_permutes(graph_module: GraphModule) -> GraphModule:
    """Make one permute of two in a row."""
    return _fuse(graph_module, lambda inner, outer: [outer[d] for d in inner])
