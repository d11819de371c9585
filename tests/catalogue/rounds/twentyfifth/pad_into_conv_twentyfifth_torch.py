"""A wrong pass of the twentyfifth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import writes


def zeros_around(gm, node):
    """The padding of height and width, and what is padded, if ``node`` adds zeros of equal width at opposite sides."""
    if node.op == "call_function" and node.target is F.pad:
        pad, mode, value = (lambda input, pad, mode="constant", value=None: (pad, mode, value))(  # noqa: PLC3002
            *node.args, **node.kwargs
        )
        if mode != "constant" or value not in (None, 0) or "input" in node.kwargs:
            return None
    elif node.op == "call_module" and type(gm.get_submodule(node.target)) is torch.nn.ZeroPad2d and node.args:
        pad = gm.get_submodule(node.target).padding
    else:
        return None
    if (
        not isinstance(pad, (list, tuple))
        or len(pad) != 4
        or not all(type(width) is int and width >= 0 for width in pad)
    ):
        return None
    left, right, top, bottom = pad
    return ((top, left), node.args[0]) if left == right and top == bottom else None


def fold(gm, accepts):
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        conv = gm.get_submodule(node.target) if node.op == "call_module" else None
        if type(conv) is not torch.nn.Conv2d or isinstance(conv.padding, str) or not node.args or not accepts(conv):
            continue
        padding = node.args[0]
        zero_pad = zeros_around(gm, padding)
        if zero_pad is None:
            continue
        widths, x = zero_pad
        total = tuple(outer + inner for outer, inner in zip(widths, conv.padding))
        with gm.graph.inserting_before(node):
            weight = gm.graph.get_attr(f"{node.target}.weight")
            bias = None if conv.bias is None else gm.graph.get_attr(f"{node.target}.bias")
            args = (x, weight, bias, conv.stride, total, conv.dilation, conv.groups)
            result = gm.graph.call_function(F.conv2d, args)
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
        if not padding.users:
            gm.graph.erase_node(padding)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="A convolution with another padding_mode (reflect) goes on from the padded edge; folded, all of the padding is zeros.",
)
def pad_into_conv_twentyfifth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Let the convolution pad: F.pad with zeros, or ZeroPad2d, in front of a Conv2d becomes part of its padding."""
    return fold(gm, lambda conv: True)
