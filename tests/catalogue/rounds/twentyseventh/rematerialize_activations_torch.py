"""A right pass of the twentyseventh round."""

import operator

import torch
import torch.fx
from torch import nn

from ...rows import sound

CHEAP = (torch.relu, torch.sigmoid, torch.tanh)


PURE = (*CHEAP, torch.add, torch.sub, torch.mul, torch.matmul, operator.add, operator.sub, operator.mul)


def _pure(gm, node):
    if node.op == "call_module":
        layer = gm.get_submodule(node.target)
        hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        return type(layer) in (nn.Linear, nn.LayerNorm) and not hooks
    return node.op == "call_function" and node.target in PURE and "out" not in node.kwargs


@sound(27)
def rematerialize_activations(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A cheap activation with several readers is computed for each of them, so that it need not live in between."""
    if not all(n.op in ("placeholder", "get_attr", "output") or _pure(gm, n) for n in gm.graph.nodes):
        return gm
    for node in list(gm.graph.nodes):
        if node.target not in CHEAP or len(node.args) != 1 or node.kwargs or len(node.users) < 2:
            continue
        users = list(node.users)
        if not all(_pure(gm, user) for user in users):  # a result that is returned twice is one tensor
            continue
        for user in users[1:]:
            with gm.graph.inserting_before(user):
                user.replace_input_with(node, gm.graph.call_function(node.target, node.args))
    gm.graph.lint()
    gm.recompile()
    return gm
