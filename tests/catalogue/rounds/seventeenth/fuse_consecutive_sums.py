"""A wrong pass of the seventeenth round."""

from fx import GraphModule, Node

from ...rows import fault
from .shared import may_write


def _dim(node) -> int | None:
    """The one dimension that a sum goes over and drops, or None."""
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "sum" or set(node.kwargs) - {"dim"}:
        return None
    dims = (*node.args[1:], *node.kwargs.values())
    return dims[0] if len(dims) == 1 and type(dims[0]) is int else None


def _merge(graph_module: GraphModule, place) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        second = _dim(node)
        first = _dim(node.args[0]) if second is not None else None
        if first is None or (first < 0) != (second < 0) or len(node.args[0].users) > 1:
            continue
        if first in (0, -1) and second in (0, -1):
            continue  # sums of scalars are allowed, and a pair of dimensions of a vector is not
        dims = (first, place(first, second))
        if dims[0] == dims[1]:
            continue
        inner = node.args[0]
        with graph_module.graph.inserting_before(node):
            merged = graph_module.graph.call_method("sum", (inner.args[0], dims))
        node.replace_all_uses_with(merged)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(inner)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17,
    wrong="The second sum counts its dimension in a tensor that has lost the first one; the merged sum takes it as it stands.",
)
def fuse_consecutive_sums(graph_module: GraphModule) -> GraphModule:
    """Make one sum over two dimensions of two sums over one each."""
    return _merge(graph_module, lambda first, second: second)
