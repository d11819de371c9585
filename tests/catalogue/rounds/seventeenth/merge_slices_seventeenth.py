"""A wrong pass of the seventeenth round."""

import operator

from fx import GraphModule, Node

from ...rows import fault
from .shared import may_write


def _bounds(node) -> tuple[int, int] | None:
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    index = node.args[1]
    if not isinstance(index, slice) or index.step is not None or not isinstance(node.args[0], Node):
        return None
    start = 0 if index.start is None else index.start
    if type(start) is not int or type(index.stop) is not int or start < 0 or index.stop < 0:
        return None
    return start, index.stop


def _merge(graph_module: GraphModule, careful: bool) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        outer = _bounds(node)
        inner = _bounds(node.args[0]) if outer else None
        if not inner or len(node.args[0].users) > 1:
            continue
        start, stop = inner[0] + outer[0], inner[0] + outer[1]
        if careful:
            stop = min(stop, inner[1])
        source = node.args[0]
        node.args = (source.args[0], slice(start, stop))
        graph_module.graph.erase_node(source)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="The end of the inner slice is forgotten, so that the merged one runs past it.")
def merge_slices_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Make one slice of a slice of a slice."""
    return _merge(graph_module, careful=False)
