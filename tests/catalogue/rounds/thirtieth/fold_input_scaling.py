"""A wrong pass of the thirtieth round."""

import math
import operator

import torch.nn as nn
import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _plain


def _number(value):
    return type(value) in (int, float) and math.isfinite(value) and value != 0


def _fold(gm, accepts):
    layers = dict(gm.named_modules(remove_duplicate=False))
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(layers[node.target], nn.Conv2d) or len(node.args) != 1:
            continue
        conv, scaled = layers[node.target], node.args[0]
        if conv.padding_mode != "zeros" or not accepts(conv.padding) or not isinstance(scaled, fx.Node):
            continue
        if scaled.target not in (operator.mul, operator.truediv):
            continue
        shifted, scale = scaled.args
        if not isinstance(shifted, fx.Node) or shifted.target is not operator.sub or not _number(scale):
            continue
        image, mean = shifted.args
        if not isinstance(image, fx.Node) or type(mean) is not float or not math.isfinite(mean):
            continue
        if len(shifted.users) != 1 or len(scaled.users) != 1 or shifted.next is not scaled or scaled.next is not node:
            continue
        factor = scale if scaled.target is operator.mul else 1 / scale
        if not _number(factor):
            continue
        with graph.inserting_before(node):
            weight = graph.call_function(operator.mul, (graph.get_attr(f"{node.target}.weight"), factor))
            total = graph.call_method("sum", (weight, (1, 2, 3)))
            bias = graph.call_function(operator.mul, (total, -mean))
            if conv.bias is not None:
                bias = graph.call_function(operator.add, (graph.get_attr(f"{node.target}.bias"), bias))
            cast = graph.call_method("type_as", (image, weight))
            folded = graph.call_function(
                F.conv2d, (cast, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)
            )
        node.replace_all_uses_with(folded)
        for dead in (node, scaled, shifted):
            graph.erase_node(dead)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="The mean moves into the bias of the convolution though the convolution pads: the zeros of the padding "
    "are now pixels of value zero, not of the mean, so the borders are wrong when the first convolution has "
    "padding.",
)
def fold_input_scaling(gm: fx.GraphModule):
    """Fold the normalization of the image, (x - mean) / std, into the first convolution, so that raw pixels go in."""
    return _fold(gm, lambda padding: True)
