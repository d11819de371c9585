"""A right pass of the twentyninth round."""

import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import sound
from .shared import _HOOKS

CHEAP = {operator.add, operator.sub, operator.mul, operator.neg, torch.relu, torch.tanh, torch.sigmoid}


LAYERS = {nn.Linear, nn.LayerNorm, nn.GELU}


def _cheap(node):
    return node.op == "call_function" and node.target in CHEAP and not node.kwargs


def _known(gm, node):
    if node.op == "call_module":
        module = gm.get_submodule(node.target)
        return type(module) in LAYERS and not any(getattr(module, hooks, None) for hooks in _HOOKS)
    return node.op in ("placeholder", "get_attr", "output") or _cheap(node)


@sound(29)
def compute_again_per_use(gm: torch.fx.GraphModule):
    """Compute cheap values again for each use instead of keeping them, the opposite of merging equal expressions."""
    if not all(_known(gm, node) for node in gm.graph.nodes):
        return gm
    for node in reversed(list(gm.graph.nodes)):
        if not _cheap(node) or any(_cheap(used) for used in node.all_input_nodes):
            continue  # of a chain the first alone, or programs would grow without bound
        for user in list(node.users)[1:]:
            if user.op == "output":
                continue  # what is returned twice stays one tensor
            with gm.graph.inserting_before(user):
                again = gm.graph.node_copy(node)
            user.replace_input_with(node, again)
    gm.recompile()
    return gm
