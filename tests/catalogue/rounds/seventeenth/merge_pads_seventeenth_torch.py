"""A wrong pass of the seventeenth round."""

import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import may_write


def _padding(node) -> tuple[list[int], object] | None:
    """Widths and value of a pad with a constant whose arguments are all known."""
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not F.pad:
        return None
    names = dict(zip(("input", "pad", "mode", "value"), node.args)) | dict(node.kwargs)
    widths, value = names.get("pad"), names.get("value")
    if names.get("mode", "constant") != "constant" or not isinstance(names.get("input"), Node):
        return None
    if not isinstance(widths, (tuple, list)) or not all(type(w) is int and w >= 0 for w in widths):
        return None
    if type(value) not in (type(None), int, float) or value != value or len(widths) % 2:
        return None
    return list(widths), value


def _merge(graph_module: GraphModule, add) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        outer = _padding(node)
        source = node.args[0] if outer and node.args else None
        inner = _padding(source) if outer else None
        if not inner or not source.args or len(source.users) > 1 or (inner[1] or 0) != (outer[1] or 0):
            continue
        if type(inner[1]) is not type(outer[1]):
            continue
        with graph_module.graph.inserting_before(node):
            merged = graph_module.graph.call_function(
                F.pad, (source.args[0], add(inner[0], outer[0])), {"value": outer[1]}
            )
        node.replace_all_uses_with(merged)
        graph_module.graph.erase_node(node)
        graph_module.graph.erase_node(source)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17,
    wrong="Pads of different length are added up to the end of the shorter one, so dimensions that only one of them pads are lost.",
)
def merge_pads_seventeenth(graph_module: GraphModule) -> GraphModule:
    """Make one pad of two that pad with the same constant."""
    return _merge(graph_module, lambda inner, outer: [a + b for a, b in zip(inner, outer)])
