"""A wrong pass of the twentyninth round."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from ...rows import fault
from .shared import _HOOKS


def _plain(gm, node, kinds):
    if getattr(node, "op", None) != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    module = gm.get_submodule(node.target)
    return type(module) in kinds and not any(getattr(module, hooks, None) for hooks in _HOOKS)


def _activation(gm, node):
    if _plain(gm, node, {nn.ReLU}):
        return True
    function = node.op == "call_function" and node.target in (F.relu, torch.relu) and len(node.args) == 1
    return function and not node.kwargs.get("inplace", False) and set(node.kwargs) <= {"inplace"}


def _reuse(gm, producers):
    for node in list(gm.graph.nodes):
        if not _activation(gm, node) or not _plain(gm, node.args[0], producers) or len(node.args[0].users) != 1:
            continue
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(F.relu, (node.args[0],), {"inplace": True})
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    29, wrong="Tanh, Sigmoid and Softmax keep their result for the backward pass, which fails once it is written over."
)
def activations_in_place(gm):
    """Let a ReLU write over what the layer before it made, to save memory in training."""
    return _reuse(gm, {nn.Linear, nn.Conv1d, nn.Conv2d, nn.Tanh, nn.Sigmoid, nn.Softmax})
