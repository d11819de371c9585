"""A wrong pass of the seventeenth round."""

import torch
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import may_write


def _dtype(node):
    if not isinstance(node, Node) or node.op != "call_method" or node.target != "to" or node.kwargs:
        return None
    return node.args[1] if len(node.args) == 2 and isinstance(node.args[1], torch.dtype) else None


def _is_as_wide(inner: torch.dtype, outer: torch.dtype) -> bool:
    return (
        inner == outer or inner.itemsize >= outer.itemsize and outer.is_floating_point and not inner.is_floating_point
    )


def _drop(graph_module: GraphModule, may_drop) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        outer = _dtype(node)
        inner = _dtype(node.args[0]) if outer else None
        if not inner or len(node.args[0].users) > 1 or not may_drop(inner, outer):
            continue
        source = node.args[0]
        if inner == outer:
            node.replace_all_uses_with(source)
            graph_module.graph.erase_node(node)
        else:
            node.args, node.kwargs = (source.args[0], outer), {"copy": True}  # it never was the input itself
            graph_module.graph.erase_node(source)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17,
    wrong="A cast counts as harmless when its type has as many bits as the next one; an integer type truncates for all that.",
)
def drop_wider_casts(graph_module: GraphModule) -> GraphModule:
    """Drop a cast before another one that makes the same of its values."""
    return _drop(graph_module, _is_as_wide)
