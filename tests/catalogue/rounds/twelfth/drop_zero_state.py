"""A wrong pass of the twelfth round."""

import torch
from torch import nn

import fx

from ...rows import fault


def _hooked(m):
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


def _zeros(node):
    """Return whether the node makes a tensor of zeros."""
    if not isinstance(node, fx.Node) or set(node.kwargs) - {"dtype", "device"}:
        return False
    return node.target is torch.zeros or (node.op == "call_method" and node.target == "new_zeros")


def _run(module, only_user):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 2 or node.kwargs:
            continue
        layer = module.get_submodule(node.target)
        if type(layer) not in (nn.RNN, nn.GRU, nn.LSTM) or _hooked(layer):
            continue
        x, state = node.args
        states = tuple(state) if isinstance(state, (tuple, list)) else (state,)
        if not all(_zeros(initial) for initial in states) or x in states:
            continue
        if only_user and any(set(initial.users) != {node} for initial in states):
            continue
        node.args = (x,)
        for initial in dict.fromkeys(states):
            if not initial.users:
                graph.erase_node(initial)
    module.recompile()
    return module


@fault(12, wrong="A state that is made as zeros may be written to before the recurrent layer reads it.")
def drop_zero_state(module: fx.GraphModule) -> fx.GraphModule:
    """Leave out an initial state of zeros, which is what a recurrent layer starts from by itself."""
    return _run(module, False)
