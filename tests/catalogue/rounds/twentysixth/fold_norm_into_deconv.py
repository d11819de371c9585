"""A wrong pass of the twentysixth round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault
from .shared import _hooked


def _foldable(deconv, norm):
    if type(deconv) is not nn.ConvTranspose2d or type(norm) is not nn.BatchNorm2d or _hooked(deconv) or _hooked(norm):
        return False
    if norm.training or not norm.affine or norm.running_mean is None or norm.running_var is None:
        return False
    dtypes = {t.dtype for t in (deconv.weight, norm.weight, norm.running_mean, norm.running_var)}
    return dtypes in ({torch.float32}, {torch.float64})


def _fold(gm, groups_matter):
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        before = node.args[0]
        if before.op != "call_module" or len(before.users) != 1 or len(before.args) != 1 or before.kwargs:
            continue
        deconv, norm = gm.get_submodule(before.target), gm.get_submodule(node.target)
        if not _foldable(deconv, norm) or (groups_matter and deconv.groups != 1):
            continue
        with graph.inserting_before(before):
            names = ("weight", "bias", "running_mean", "running_var")
            gain, shift, mean, var = (graph.get_attr(f"{node.target}.{name}") for name in names)
            inverse = graph.call_function(torch.rsqrt, (graph.call_function(operator.add, (var, norm.eps)),))
            scale = graph.call_function(operator.mul, (gain, inverse))
            if deconv.bias is None:
                bias = graph.call_function(operator.neg, (mean,))
            else:
                bias = graph.call_function(operator.sub, (graph.get_attr(f"{before.target}.bias"), mean))
            bias = graph.call_function(operator.add, (graph.call_function(operator.mul, (bias, scale)), shift))
            weight = graph.get_attr(f"{before.target}.weight")
            weight = graph.call_function(operator.mul, (weight, graph.call_method("view", (scale, 1, -1, 1, 1))))
            sizes = (deconv.stride, deconv.padding, deconv.output_padding, deconv.groups, deconv.dilation)
            folded = graph.call_function(F.conv_transpose2d, (before.args[0], weight, bias, *sizes))
        node.replace_all_uses_with(folded)
        graph.erase_node(node)
        graph.erase_node(before)
    gm.recompile()
    return gm


@fault(26, wrong="Scales the second axis of the weight, which is that of the output channels only where groups is 1.")
def fold_norm_into_deconv(gm: fx.GraphModule):
    """Fold a batch norm into the weights of the transposed convolution before it, with the parameters kept trainable."""
    return _fold(gm, False)
