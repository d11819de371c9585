"""A wrong pass of the twentysixth round."""

import operator

import torch
import torch.fx
from torch import nn

from ...rows import fault
from .shared import _hooked


def _suits(conv, norm):
    if type(conv) is not nn.Conv2d or type(norm) is not nn.BatchNorm2d or _hooked(conv) or _hooked(norm):
        return False
    if not norm.affine or norm.running_mean is None or norm.running_var is None:
        return False
    dtypes = {t.dtype for t in (conv.weight, norm.weight, norm.running_mean, norm.running_var)}
    return dtypes in ({torch.float32}, {torch.float64})


def _rewrite(gm, trains):
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or node.args[0].op != "call_module":
            continue
        norm = gm.get_submodule(node.target)
        if not _suits(gm.get_submodule(node.args[0].target), norm) or trains(gm, norm):
            continue
        with graph.inserting_before(node):
            names = ("weight", "bias", "running_mean", "running_var")
            weight, bias, mean, var = (graph.get_attr(f"{node.target}.{name}") for name in names)
            inverse = graph.call_function(torch.rsqrt, (graph.call_function(operator.add, (var, norm.eps)),))
            scale = graph.call_function(operator.mul, (weight, inverse))
            shift = graph.call_function(operator.sub, (bias, graph.call_function(operator.mul, (mean, scale))))
            scale = graph.call_method("view", (scale, -1, 1, 1))
            shift = graph.call_method("view", (shift, -1, 1, 1))
            scaled = graph.call_function(operator.mul, (node.args[0], scale))
            result = graph.call_function(operator.add, (scaled, shift))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    26,
    wrong="Asks the program whether it trains, not the batch norm, which can be in another mode (test-time adaptation).",
)
def norm_to_affine_twentysixth(gm: torch.fx.GraphModule):
    """For inference: the batch norm behind a convolution becomes a multiplication and an addition."""
    return _rewrite(gm, lambda gm, norm: gm.training)
