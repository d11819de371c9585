"""A wrong pass of the sixteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch.fx import Node

from ...rows import fault
from .shared import finish


def _zeros(pad: Node) -> bool:
    options = {"mode": "constant", "value": None, **pad.kwargs}
    value = options.pop("value")
    return options == {"mode": "constant"} and (value is None or (type(value) is int and value == 0))


def _amounts(node: Node) -> tuple | None:
    if node.op != "call_function" or node.target is not F.pad or not _zeros(node) or len(node.args) != 2:
        return None
    amounts = node.args[1]
    if not isinstance(amounts, (tuple, list)) or not all(type(amount) is int for amount in amounts) or len(amounts) % 2:
        return None
    return tuple(amounts)


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _amounts(node)
        inner_node = node.args[0] if outer else None
        if not isinstance(inner_node, Node) or node.prev is not inner_node or len(inner_node.users) != 1:
            continue
        inner = _amounts(inner_node)
        if not inner or (careful and min(inner + outer) < 0):
            continue
        length = max(len(inner), len(outer))
        inner, outer = (amounts + (0,) * (length - len(amounts)) for amounts in (inner, outer))
        node.args = (inner_node.args[0], tuple(a + b for a, b in zip(inner, outer)))
        graph.erase_node(inner_node)
    return finish(graph_module)


@fault(
    16,
    wrong="A negative amount crops what the padding before or after it added: cropping first and padding then does not cancel.",
)
def merge_pads_sixteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merges two paddings by zeros that follow each other into one with the summed amounts."""
    return _rewrite(graph_module, careful=False)
