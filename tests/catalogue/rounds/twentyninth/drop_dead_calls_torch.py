"""A wrong pass of the twentyninth round."""

import operator

import torch
import torch.fx
import torch.nn as nn
import torch.nn.functional as F

from ...rows import fault
from .shared import _HOOKS

PURE = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.matmul,
    torch.exp,
}


LAYERS = {nn.Linear, nn.LayerNorm, nn.GELU, nn.Conv1d, nn.Conv2d}


RANDOM = {torch.rand_like, torch.randn_like, torch.bernoulli, F.dropout}


RANDOM_LAYERS = {nn.Dropout}


def _removable(gm, node, functions, layers):
    if node.op == "call_function":
        writes = node.kwargs.get("out") is not None or node.kwargs.get("inplace") or len(node.args) > 2
        return node.target in functions and not writes
    if node.op == "call_module":
        module = gm.get_submodule(node.target)
        hooked = any(getattr(module, hooks, None) for hooks in _HOOKS)
        return type(module) in layers and not hooked and not getattr(module, "inplace", False)
    return node.op == "get_attr"


def _drop(gm, functions, layers):
    for node in reversed(list(gm.graph.nodes)):
        if not node.users and _removable(gm, node, functions, layers):
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    29,
    wrong="A dead call that draws random numbers moves the generator on, and the draws after it are others without it.",
)
def drop_dead_calls(gm: torch.fx.GraphModule):
    """Remove calls whose result nobody uses."""
    return _drop(gm, PURE | RANDOM, LAYERS | RANDOM_LAYERS)
