"""A wrong pass of the twentyeighth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import plain, writes


def zero_padding(node):
    """(tensor, rows, columns) of a symmetric padding by zeros, or None."""
    if node.op != "call_function" or node.target is not F.pad or not 2 <= len(node.args) <= 4:
        return None
    arguments = dict(zip(("input", "pad", "mode", "value"), node.args))
    arguments.update(node.kwargs)
    if arguments.get("mode", "constant") != "constant" or arguments.get("value") not in (None, 0):
        return None
    sizes = arguments["pad"]
    if not isinstance(sizes, (list, tuple)) or len(sizes) != 4 or any(type(n) is not int or n < 0 for n in sizes):
        return None
    left, right, top, bottom = sizes
    return (arguments["input"], top, left) if left == right and top == bottom else None


def fold(gm, accept):
    if writes(gm):
        return gm
    graph = gm.graph
    for node in list(graph.nodes):
        if not plain(gm, node, torch.nn.Conv2d) or not isinstance(node.args[0], torch.fx.Node):
            continue
        pad, conv = node.args[0], gm.get_submodule(node.target)
        zero_pad = zero_padding(pad)
        if zero_pad is None or len(pad.users) != 1 or isinstance(conv.padding, str) or not accept(conv):
            continue
        source, rows, columns = zero_pad
        # Behind another convolution there is an image that is not empty.
        if not plain(gm, source, torch.nn.Conv2d):
            continue
        with graph.inserting_before(pad):
            weight = graph.get_attr(f"{node.target}.weight")
            bias = graph.get_attr(f"{node.target}.bias") if conv.bias is not None else None
            padding = (conv.padding[0] + rows, conv.padding[1] + columns)
            args = (source, weight, bias, conv.stride, padding, conv.dilation, conv.groups)
            folded = graph.call_function(F.conv2d, args)
        node.replace_all_uses_with(folded)
        graph.erase_node(node)
        graph.erase_node(pad)
    gm.recompile()
    return gm


@fault(
    28, wrong="Forgets the padding_mode of the convolution: one that pads by wrapping round pads by zeros afterwards."
)
def fold_pad_into_conv_twentyeighth(gm: torch.fx.GraphModule):
    """Folds a zero padding into the padding of the convolution behind it."""
    return fold(gm, lambda conv: True)
