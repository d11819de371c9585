"""A wrong pass of the thirtyfirst round."""

import operator

import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F

from ...rows import fault


def _linear(gm, node):
    """The layer that node calls if it is a plain nn.Linear without hooks."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], torch.fx.Node):
        return None
    layer = gm.get_submodule(node.target)
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return None
    return layer if type(layer) is nn.Linear else None


def _alike(first, second):
    same = (first.bias is None) == (second.bias is None) and first.weight.dtype == second.weight.dtype
    trained = {p.requires_grad for layer in (first, second) for p in layer.parameters()}
    return same and len(trained) == 1 and first.weight.device == second.weight.device


def _merge(gm, bounds):
    graph = gm.graph
    for start in list(graph.nodes):
        if start not in list(graph.nodes) or _linear(gm, start) is None:
            continue
        group, first = [start], _linear(gm, start)
        while (layer := _linear(gm, group[-1].next)) and group[-1].next.args == start.args and _alike(first, layer):
            group.append(group[-1].next)
        if len(group) < 2:
            continue
        ends = bounds([_linear(gm, node).out_features for node in group])
        with graph.inserting_before(start):
            weight = graph.call_function(torch.cat, ([graph.get_attr(node.target + ".weight") for node in group],))
            bias = None
            if first.bias is not None:
                bias = graph.call_function(torch.cat, ([graph.get_attr(node.target + ".bias") for node in group],))
            product = graph.call_function(F.linear, (start.args[0], weight, bias))
            for index, node in enumerate(group):
                part = graph.call_function(operator.getitem, (product, (..., slice(ends[index], ends[index + 1]))))
                # a tensor of its own, as the layer's result was
                own = graph.call_method("clone", (part,), {"memory_format": torch.contiguous_format})
                node.replace_all_uses_with(own)
        for node in group:
            graph.erase_node(node)
    graph.lint()
    gm.recompile()
    return gm


def _equal(widths):
    return [sum(widths) // len(widths) * index for index in range(len(widths) + 1)]


@fault(
    31,
    wrong="Linear layers of one input become one product whose result is cut into equal chunks; layers of different "
    "widths, as the keys of grouped-query attention, get the wrong columns.",
)
def merge_projections_thirtyfirst(gm: torch.fx.GraphModule):
    """Compute linear layers of the same input (queries, keys, values) by one product."""
    return _merge(gm, _equal)
