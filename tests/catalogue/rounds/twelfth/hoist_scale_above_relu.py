"""A wrong pass of the twelfth round."""

import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault


def _is_relu(module, node):
    if not isinstance(node, fx.Node) or node.kwargs.get("inplace") or len(node.args) != 1:
        return False
    if node.op == "call_module":
        layer = module.get_submodule(node.target)
        hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        return type(layer) is nn.ReLU and not layer.inplace and not hooked
    return node.target in (torch.relu, F.relu) or (node.op == "call_method" and node.target == "relu")


def _scaled(node):
    """The tensor, the factor and the operator of a product with a number, or of a quotient."""
    if node.op not in ("call_function", "call_method") or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if node.target in (operator.mul, torch.mul, "mul"):
        if isinstance(left, float):
            left, right = right, left
        return (left, right, operator.mul) if isinstance(right, float) else None
    if node.target in (operator.truediv, torch.div, "div") and isinstance(right, float):
        return left, right, operator.truediv
    return None


def _run(module, positive):
    graph = module.graph
    for node in list(graph.nodes):
        match = _scaled(node)
        if match is None or node.prev is not match[0] or not _is_relu(module, match[0]) or len(match[0].users) != 1:
            continue
        relu, factor, scale = match
        if not math.isfinite(factor) or factor == 0 or (positive and factor < 0):
            continue
        with graph.inserting_before(relu):
            scaled = graph.call_function(scale, (relu.args[0], factor))
        relu.args = (scaled,)
        node.replace_all_uses_with(relu)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(12, wrong="The sign of the factor is not asked; only a positive one commutes with the ReLU.")
def hoist_scale_above_relu(module: fx.GraphModule) -> fx.GraphModule:
    """Move the product with a number in front of a ReLU, so that it can be folded into the layer before."""
    return _run(module, False)
