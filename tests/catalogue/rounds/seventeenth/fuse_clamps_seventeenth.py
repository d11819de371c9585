"""A wrong pass of the seventeenth round."""

from fx import GraphModule, Node

from ...rows import fault
from .shared import may_write


def _range(node) -> tuple | None:
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "clamp":
        return None
    names = dict(zip(("self", "min", "max"), node.args)) | dict(node.kwargs)
    low, high = names.get("min"), names.get("max")
    if type(low) is not type(high) or type(low) not in (int, float) or not low <= high or not node.args:
        return None
    if type(low) is int and not 0 <= low <= high <= 127 or abs(low) > 6e4 or abs(high) > 6e4:
        return None  # bounds that some dtypes cannot hold
    return low, high


def _fuse(graph_module: GraphModule, careful: bool) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        outer = _range(node)
        inner = _range(node.args[0]) if outer else None
        if not inner or type(inner[0]) is not type(outer[0]) or len(node.args[0].users) > 1:
            continue
        low, high = max(inner[0], outer[0]), min(inner[1], outer[1])
        if careful and low > high:
            continue
        source = node.args[0]
        node.args, node.kwargs = (source.args[0], low, high), {}
        graph_module.graph.erase_node(source)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17, wrong="Ranges that do not overlap are intersected like any others, and the empty range gives the wrong bound."
)
def fuse_clamps_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Make one clamp of two in a row."""
    return _fuse(graph_module, careful=False)
