"""A wrong pass of the thirtysecond round."""

import operator

import torch
from torch import nn

import fx

from ...rows import fault
from .shared import replace


@fault(
    32,
    wrong="Track_running_stats=True, with which the layer normalizes by its running statistics in eval mode, and updates them in training. Shows in a style-transfer model with InstanceNorm2d(8, track_running_stats=True) in eval mode.",
)
def decompose_instance_norm_thirtysecond(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Write instance norm layers as mean, variance and arithmetic, for runtimes that lack them."""
    ranks = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1:
            continue
        norm = graph_module.get_submodule(node.target)
        if type(norm) not in ranks:
            continue
        rank = ranks[type(norm)]
        dims, shape = list(range(-rank, 0)), (-1, *[1] * rank)
        x = node.args[0]
        with graph.inserting_before(node):
            mean = graph.call_method("mean", (x, dims), {"keepdim": True})
            variance = graph.call_method("var", (x, dims), {"correction": 0, "keepdim": True})
            centred = graph.call_function(operator.sub, (x, mean))
            deviation = graph.call_function(torch.sqrt, (graph.call_function(operator.add, (variance, norm.eps)),))
            result = graph.call_function(operator.truediv, (centred, deviation))
            if norm.affine:
                weight = graph.call_method("view", (graph.get_attr(f"{node.target}.weight"), *shape))
                bias = graph.call_method("view", (graph.get_attr(f"{node.target}.bias"), *shape))
                result = graph.call_function(operator.mul, (result, weight))
                result = graph.call_function(operator.add, (result, bias))
        replace(node, result)
    graph_module.recompile()
    return graph_module
