"""A wrong pass of the seventeenth round."""

import torch
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import may_write


def _quantize(node) -> tuple | None:
    """Scale, zero point and type of a quantization whose parameters are known."""
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not torch.quantize_per_tensor:
        return None
    scale, zero, dtype = node.args[1:] if len(node.args) == 4 and not node.kwargs else (None, None, None)
    if type(scale) is not float or type(zero) is not int or dtype not in (torch.quint8, torch.qint8):
        return None
    return (scale, zero, dtype) if 1e-6 < scale < 1e6 else None


def _drop(graph_module: GraphModule, careful: bool) -> GraphModule:
    if may_write(graph_module):
        return graph_module
    for node in list(graph_module.graph.nodes):
        outer = _quantize(node)
        floats = node.args[0] if outer else None
        if not isinstance(floats, Node) or floats.op != "call_method" or floats.target != "dequantize":
            continue
        first = floats.args[0] if len(floats.args) == 1 else None
        inner = _quantize(first)
        if not inner or (inner != outer if careful else inner[::2] != outer[::2]) or len(first.users) > 1:
            continue
        node.replace_all_uses_with(first)
        graph_module.graph.erase_node(node)
        if not floats.users:
            graph_module.graph.erase_node(floats)
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    17, wrong="Only the scale and the type are compared; a different zero point makes other codes and another range."
)
def drop_requantize(graph_module: GraphModule) -> GraphModule:
    """Drop a dequantization and the quantization after it where they cancel."""
    return _drop(graph_module, careful=False)
