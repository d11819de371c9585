"""A right pass of the twentyninth round."""

import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import sound
from .shared import _HOOKS

IN_PLACE = {operator.mul: "mul_", operator.add: "add_", operator.sub: "sub_", operator.truediv: "div_"}


def _fresh(gm, node):
    if getattr(node, "op", None) != "call_module" or len(node.users) != 1:
        return False
    module = gm.get_submodule(node.target)
    is_layer = type(module) in (nn.Linear, nn.Conv1d, nn.Conv2d) and "forward" not in vars(module)
    return is_layer and not any(getattr(module, hooks, None) for hooks in _HOOKS)


@sound(29)
def scale_in_place(gm: torch.fx.GraphModule):
    """Multiply and shift what a layer made where it lies, to need one buffer less."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in IN_PLACE or len(node.args) != 2:
            continue
        value, number = node.args
        if not _fresh(gm, value) or type(number) not in (int, float):
            continue
        with gm.graph.inserting_before(node):
            new = gm.graph.call_method(IN_PLACE[node.target], (value, number))
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
