"""A right pass of the twelfth round."""

import operator

import torch
import torch.nn.functional as F

from ...rows import sound

FUNCTIONS = {
    operator.add, operator.sub, operator.mul, operator.truediv, operator.matmul, operator.neg, torch.add, torch.sub,
    torch.mul, torch.div, torch.matmul, torch.relu, torch.sigmoid, torch.tanh, torch.exp, torch.sum, torch.mean,
    torch.cat, torch.stack, torch.flatten, torch.softmax, F.gelu, F.softmax, F.linear, torch.abs,
}  # fmt: skip


METHODS = {
    "size",
    "dim",
    "view",
    "reshape",
    "permute",
    "transpose",
    "sum",
    "mean",
    "flatten",
    "sigmoid",
    "tanh",
    "relu",
}


def _pure(node):
    if node.op == "call_function":
        return node.target in FUNCTIONS and not {"out", "inplace"} & set(node.kwargs)
    if node.op == "call_method":
        return node.target in METHODS and "out" not in node.kwargs
    return node.op == "get_attr"


@sound(12)
def drop_dead_pure_code(module):
    """Drop computations that nothing uses and that have no effect."""
    for node in reversed(list(module.graph.nodes)):
        if not node.users and _pure(node):
            module.graph.erase_node(node)
    module.recompile()
    return module
