"""A wrong pass of the twentyninth round."""

import operator

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _HOOKS

PURE = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    torch.add,
    torch.sub,
    torch.mul,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.exp,
    torch.sin,
    torch.cos,
}


LAYERS = {nn.Linear, nn.LayerNorm, nn.GELU}


def _pure(node):
    if node.op != "call_function" or node.target not in PURE or node.kwargs:
        return False
    return all(isinstance(a, torch.fx.Node) or type(a) in (int, float, bool) for a in node.args)


def _known(gm, node):
    """Return whether the node writes nothing and makes no view."""
    if node.op == "call_module":
        module = gm.get_submodule(node.target)
        return type(module) in LAYERS and not any(getattr(module, hooks, None) for hooks in _HOOKS)
    return node.op in ("placeholder", "get_attr", "output") or _pure(node)


def _merge(gm, key_of):
    if not all(_known(gm, node) for node in gm.graph.nodes):
        return gm
    first_of_key = {}
    for node in list(gm.graph.nodes):
        if node.op == "get_attr":
            key = (node.op, node.target)
        elif _pure(node):
            key = (node.op, node.target, key_of(node.args))
        else:
            continue
        if key not in first_of_key:
            first_of_key[key] = node
        elif not any(user.op == "output" for user in node.users):  # two results must not be one tensor
            node.replace_all_uses_with(first_of_key[key])
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    29,
    wrong="Finds expressions in a dict, where 2, 2.0 and True are one key, but x * 2 and x * 2.0 are of different types.",
)
def common_subexpressions_twentyninth(gm: torch.fx.GraphModule):
    """Compute equal expressions once."""
    return _merge(gm, lambda args: args)
