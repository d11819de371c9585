"""A wrong pass of the twentyseventh round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import _hooked

SWAPS = ((1, 2), (2, 1), (-1, -2), (-2, -1))


def transposed_linear(x, weight, bias, first=-2, second=-1):
    return F.linear(x.transpose(first, second), weight, bias)


def _follows(node, earlier):
    """Return whether there are only attribute reads between the two."""
    node = node.prev
    while node.op == "get_attr":
        node = node.prev
    return node is earlier


def _fuse(gm, dims_of):
    modules = dict(gm.named_modules())
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer, swap = modules[node.target], node.args[0]
        if type(layer) is not nn.Linear or _hooked(layer):
            continue
        if swap.op != "call_method" or swap.target != "transpose" or swap.kwargs or swap.args[1:] not in SWAPS:
            continue
        if len(swap.users) != 1 or not _follows(node, swap):
            continue
        with gm.graph.inserting_before(node):
            weight = gm.graph.get_attr(f"{node.target}.weight")
            bias = None if layer.bias is None else gm.graph.get_attr(f"{node.target}.bias")
            args = (swap.args[0], weight, bias, *dims_of(swap))
            fused = gm.graph.call_function(transposed_linear, args)
        node.replace_all_uses_with(fused)
        gm.graph.erase_node(node)
        gm.graph.erase_node(swap)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    27, wrong="transpose(1, 2) is taken for a swap of the last two dimensions, which it is only for inputs of three."
)
def fuse_transpose_linear(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A transpose before a linear layer is absorbed by one operator that takes the transposed operand."""
    return _fuse(gm, lambda swap: ())
