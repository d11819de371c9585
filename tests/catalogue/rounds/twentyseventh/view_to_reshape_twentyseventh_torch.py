"""A right pass of the twentyseventh round."""

import operator

import torch
import torch.fx

from ...rows import sound


def _is_size(value):
    """Return whether the value is surely a number; view also takes a dtype, which reshape does not."""
    if type(value) is int:
        return True
    if not isinstance(value, torch.fx.Node):
        return False
    if value.op == "call_method" and value.target == "size":
        return len(value.args) == 2 and not value.kwargs
    if value.op == "call_function" and value.target is operator.getitem and type(value.args[1]) is int:
        owner = value.args[0]
        if owner.op == "call_method" and owner.target == "size":
            return len(owner.args) == 1 and not owner.kwargs
        return owner.op == "call_function" and owner.target is getattr and owner.args[1:] == ("shape",)
    return False


@sound(27)
def view_to_reshape_twentyseventh(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """view becomes reshape, since a later layout pass may make its input non-contiguous."""
    for node in gm.graph.nodes:
        if node.op != "call_method" or node.target != "view" or node.kwargs or len(node.args) < 2:
            continue
        sizes = node.args[1:]
        if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
            sizes = sizes[0]
        if all(_is_size(size) for size in sizes):
            node.target = "reshape"
    gm.graph.lint()
    gm.recompile()
    return gm
