"""A wrong pass of the thirtyfirst round."""

import torch.nn as nn
import torch.nn.functional as F

import fx

from ...rows import fault


def _zero_margins(node):
    """(vertical, horizontal) where node pads the last two dimensions evenly with zeros."""
    if not isinstance(node, fx.Node) or node.target is not F.pad or len(node.args) != 2:
        return None
    if node.kwargs.get("mode", "constant") != "constant" or node.kwargs.get("value") not in (None, 0):
        return None
    margins = node.args[1]
    if (
        not isinstance(margins, (tuple, list))
        or len(margins) != 4
        or not all(type(m) is int and m >= 0 for m in margins)
    ):
        return None
    left, right, top, bottom = margins
    return (top, left) if left == right and top == bottom else None


def _absorb(gm, modes):
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        conv, pad = gm.get_submodule(node.target), node.args[0]
        margins = _zero_margins(pad)
        if type(conv) is not nn.Conv2d or margins is None or len(pad.users) > 1 or node.prev is not pad:
            continue
        if isinstance(conv.padding, str) or conv.padding_mode not in modes:
            continue
        if conv._forward_hooks or conv._forward_pre_hooks or conv._backward_hooks or conv._backward_pre_hooks:
            continue
        padding = (conv.padding[0] + margins[0], conv.padding[1] + margins[1])
        with graph.inserting_before(node):
            weight = graph.get_attr(node.target + ".weight")
            bias = None if conv.bias is None else graph.get_attr(node.target + ".bias")
            args = (pad.args[0], weight, bias, conv.stride, padding, conv.dilation, conv.groups)
            result = graph.call_function(F.conv2d, args)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(pad)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    31,
    wrong="Zero padding before a convolution is added to the convolution's own padding without a look at its "
    "padding_mode: with reflect, and with circular or replicate where they reach beyond the zeros, the wide "
    "border is then all zeros.",
)
def absorb_padding_thirtyfirst(gm: fx.GraphModule):
    """Let a convolution do the zero padding that stands before it."""
    return _absorb(gm, ("zeros", "reflect", "replicate", "circular"))
