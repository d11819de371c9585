"""A wrong pass of the sixteenth round."""

import operator

import torch
import torch.fx
from torch.fx import Node

from ...rows import fault
from .shared import finish


def _bounds(node: Node) -> tuple[int, int | None] | None:
    if node.op != "call_function" or node.target is not operator.getitem or type(node.args[1]) is not slice:
        return None
    start, stop, step = node.args[1].start, node.args[1].stop, node.args[1].step
    start = 0 if start is None else start
    if step is not None or type(start) is not int or start < 0:
        return None
    return (start, stop) if stop is None or (type(stop) is int and stop >= 0) else None


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _bounds(node)
        inner_node = node.args[0] if outer else None
        if not isinstance(inner_node, Node) or node.prev is not inner_node or len(inner_node.users) != 1:
            continue
        inner = _bounds(inner_node)
        if inner is None:
            continue
        start = inner[0] + outer[0]
        stop = inner[1] if outer[1] is None else inner[0] + outer[1]
        if careful and stop is not None and inner[1] is not None:
            stop = min(stop, inner[1])
        node.args = (inner_node.args[0], slice(start, stop))
        graph.erase_node(inner_node)
    return finish(graph_module)


@fault(
    16,
    wrong="The end of the outer slice is moved by the start of the inner one, but not cut at the end of the inner one.",
)
def merge_slices_sixteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merges two slices along the first dim that follow each other into one."""
    return _rewrite(graph_module, careful=False)
