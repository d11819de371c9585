"""A wrong pass of the twentysixth round."""

import torch
from torch import nn

import fx

from ...rows import fault
from .shared import _hooked


def _view(node):
    """h.view(...) to another shape, not to another dtype."""
    if node.op != "call_method" or node.target != "view" or node.kwargs:
        return False
    sizes = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
    return all(type(size) is int for size in sizes)


def _linear(gm, node):
    if node.op != "call_module":
        return False
    module = gm.get_submodule(node.target)
    return type(module) is nn.Linear and not _hooked(module)


def _rewrite(gm, whole_chain):
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target is not torch.relu or len(node.args) != 1 or node.kwargs:
            continue
        base = node.args[0]
        if len(base.users) != 1:
            continue
        read_once = True
        while _view(base):
            base = base.args[0]
            read_once = read_once and len(base.users) == 1
        if _linear(gm, base) and (read_once or not whole_chain):
            node.target = torch.relu_
    gm.recompile()
    return gm


@fault(26, wrong="Looks for other readers of the view only, not of the tensor that it is a view of.")
def reuse_activation_memory(gm: fx.GraphModule):
    """relu in place where it reads the result of a linear layer, or a view of it, for the last time."""
    return _rewrite(gm, False)
