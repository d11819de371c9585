"""A wrong pass of the twentythird round."""

import operator

import torch
import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _only_reads_between


def _tensor(gm, node):
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    value = gm
    for part in node.target.split("."):
        value = getattr(value, part)
    return value if isinstance(value, torch.Tensor) else None


def _rewrite(gm, fits):
    graph = gm.graph
    for mul in graph.find_nodes(op="call_function", target=operator.mul):
        conv, scale = mul.args
        weight = _tensor(gm, conv.args[1]) if isinstance(conv, fx.Node) and conv.target is F.conv_transpose2d else None
        factor = _tensor(gm, scale)
        if weight is None or factor is None or list(conv.users) != [mul] or len(conv.args) > 3:
            continue
        bias = conv.args[2] if len(conv.args) == 3 else None
        if set(conv.kwargs) - {"stride", "padding"} or not _only_reads_between(conv, mul):
            continue
        if (bias is not None and _tensor(gm, bias) is None) or factor.dtype != weight.dtype:
            continue
        channels = weight.shape[1]
        if factor.numel() != channels or not fits(factor, channels):
            continue
        with graph.inserting_before(mul):
            wide = graph.call_function(torch.reshape, (scale, (1, channels, 1, 1)))
            scaled = graph.call_function(torch.mul, (conv.args[1], wide))
            args = [conv.args[0], scaled]
            if bias is not None:
                flat = graph.call_function(torch.reshape, (scale, (channels,)))
                args.append(graph.call_function(torch.mul, (bias, flat)))
            folded = graph.call_function(F.conv_transpose2d, tuple(args), dict(conv.kwargs))
        mul.replace_all_uses_with(folded)
        graph.erase_node(mul)
        graph.erase_node(conv)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="Only the number of elements is compared with the channels: a scale of shape (C,) broadcasts along the width.",
)
def fold_channel_scale(gm):
    """Fold a layer scale (one number a channel) after a transposed convolution into its weight and bias."""
    return _rewrite(gm, lambda factor, channels: True)
