"""A right pass of the twentyninth round."""

import operator

import torch
import torch.nn as nn

from ...rows import sound
from .shared import _HOOKS


@sound(29)
def decompose_prelu(gm):
    """Write nn.PReLU with one slope as selections and a product, for a device that has no kernel for it."""
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        module = gm.get_submodule(node.target)
        if type(module) is not nn.PReLU or module.weight.numel() != 1 or any(getattr(module, h, None) for h in _HOOKS):
            continue
        with graph.inserting_before(node):
            slope = graph.call_method("reshape", (graph.get_attr(f"{node.target}.weight"), ()))
            positive = graph.call_function(operator.gt, (node.args[0], 0))
            above = graph.call_function(torch.where, (positive, node.args[0], 0))
            below = graph.call_function(torch.where, (positive, 0, node.args[0]))
            new = graph.call_function(torch.add, (above, graph.call_function(torch.mul, (slope, below))))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    gm.recompile()
    return gm
