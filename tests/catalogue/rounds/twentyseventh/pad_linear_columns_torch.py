"""A wrong pass of the twentyseventh round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import _hooked


def _pad(gm, finish):
    graph = gm.graph
    modules = dict(gm.named_modules())
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        layer = modules[node.target]
        if type(layer) is not nn.Linear or _hooked(layer) or layer.out_features % 8 == 0:
            continue
        missing = -layer.out_features % 8
        with graph.inserting_before(node):
            weight = graph.call_function(F.pad, (graph.get_attr(f"{node.target}.weight"), (0, 0, 0, missing)))
            bias = None
            if layer.bias is not None:
                bias = graph.call_function(F.pad, (graph.get_attr(f"{node.target}.bias"), (0, missing)))
            wide = graph.call_function(F.linear, (node.args[0], weight, bias))
            cut = graph.call_function(operator.getitem, (wide, (Ellipsis, slice(0, layer.out_features))))
            cut = finish(graph, cut)
        node.replace_all_uses_with(cut)
        graph.erase_node(node)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    27, wrong="What is left after the cut is not contiguous, as the result of a linear layer is: a later view fails."
)
def pad_linear_columns(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Linear layers compute a multiple of 8 columns, which the matrix unit is fast for, and cut the rest off."""
    return _pad(gm, lambda graph, cut: cut)
