"""A wrong pass of the seventh round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


def rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        conv = module.get_submodule(node.target)
        if not plain(conv, nn.Conv2d) or not 1 < conv.groups <= 16 or not accepts(conv):
            continue
        with graph.inserting_before(node):

            def pieces(value, dim):
                chunks = graph.call_function(torch.chunk, (value, conv.groups), {"dim": dim})
                return [graph.call_function(operator.getitem, (chunks, i)) for i in range(conv.groups)]

            inputs = pieces(node.args[0], -3)
            weights = pieces(graph.get_attr(f"{node.target}.weight"), 0)
            biases = [None] * conv.groups
            if conv.bias is not None:
                biases = pieces(graph.get_attr(f"{node.target}.bias"), 0)
            results = [
                graph.call_function(F.conv2d, (x, w, b, conv.stride, conv.padding, conv.dilation))
                for x, w, b in zip(inputs, weights, biases)
            ]
            joined = graph.call_function(torch.cat, (results,), {"dim": -3})
        node.replace_all_uses_with(joined)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(7, wrong="padding_mode is not asked: conv2d pads with zeros where the module reflects, replicates or wraps.")
def split_grouped_conv(module: fx.GraphModule) -> fx.GraphModule:
    """Open a grouped `Conv2d` into chunks, one `conv2d` for each group and a `cat`, for engines without groups."""
    return rewrite(module, lambda conv: True)
