"""A right pass of the ninth round."""

import operator

import torch
import torch.nn.functional as F

from ...rows import sound

_PURE = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    operator.matmul,
    operator.getitem,
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.neg,
    torch.exp,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.abs,
    torch.sqrt,
    torch.matmul,
    torch.cat,
    torch.stack,
    torch.sum,
    torch.mean,
    torch.softmax,
    torch.transpose,
    torch.flatten,
    torch.reshape,
    torch.unsqueeze,
    torch.squeeze,
    F.softmax,
    F.log_softmax,
    F.gelu,
    F.linear,
}


@sound(9)
def drop_unused_functions(module):
    """Drop calls of pure functions whose results nothing uses, and what only they used."""
    graph = module.graph
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and node.target in _PURE and not node.users and "out" not in node.kwargs:
            graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
