"""A right pass of the thirtyfirst round."""

import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F

from ...rows import sound


def _plain(layer):
    if type(layer) is not nn.Linear or set(layer._parameters) != {"weight", "bias"}:
        return False
    if any(name in layer.__dict__ for name in ("weight", "bias", "forward")):
        return False
    return not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


@sound(31)
def linear_to_function_thirtyfirst(gm: torch.fx.GraphModule):
    """Lower nn.Linear layers to F.linear on their parameters."""
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or not _plain(gm.get_submodule(node.target)):
            continue
        values = (*node.args, *node.kwargs.values())
        if len(values) != 1 or set(node.kwargs) - {"input"}:
            continue
        layer = gm.get_submodule(node.target)
        with gm.graph.inserting_before(node):
            weight = gm.graph.get_attr(node.target + ".weight")
            bias = gm.graph.get_attr(node.target + ".bias") if layer.bias is not None else None
            result = gm.graph.call_function(F.linear, (values[0], weight, bias))
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
