"""A right pass of the twentyninth round."""

import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F

from ...rows import sound
from .shared import _HOOKS


@sound(29)
def open_linear_twentyninth(gm: torch.fx.GraphModule):
    """Call F.linear on the parameters instead of nn.Linear, so that a graph of functions alone reaches the compiler."""
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op != "call_module":
            continue
        module = gm.get_submodule(node.target)
        if type(module) is not nn.Linear or "forward" in vars(module) or any(getattr(module, h, None) for h in _HOOKS):
            continue
        arguments = [*node.args, *node.kwargs.values()]
        if len(arguments) != 1 or set(node.kwargs) - {"input"}:
            continue
        with graph.inserting_before(node):
            weight = graph.get_attr(f"{node.target}.weight")
            bias = None if module.bias is None else graph.get_attr(f"{node.target}.bias")
            new = graph.call_function(F.linear, (arguments[0], weight, bias))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    gm.recompile()
    return gm
