"""A right pass of the sixteenth round."""

import operator

from fx import GraphModule, Node

from ...rows import sound
from .shared import finish


def _start(node: object) -> int | None:
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    key = node.args[1] if len(node.args) == 2 else None
    if type(key) is not slice or key.stop is not None or key.step is not None:
        return None
    return key.start if type(key.start) is int and key.start >= 0 else None


def _rewrite(graph_module: GraphModule) -> GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _start(node)
        first = node.args[0] if outer is not None else None
        inner = _start(first)
        if inner is None or node.prev is not first or len(first.users) != 1 or inner + outer >= 2**31:
            continue
        node.args = (first.args[0], slice(inner + outer, None))
        graph.erase_node(first)
    return finish(graph_module)


@sound(16)
def merge_open_slices(graph_module: GraphModule) -> GraphModule:
    """Merges two slices along the first dim that have a start only."""
    return _rewrite(graph_module)
