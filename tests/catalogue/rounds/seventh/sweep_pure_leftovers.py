"""A right pass of the seventh round."""

import operator

import torch
import torch.nn.functional as F

import fx

from ...rows import sound

FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    operator.matmul,
    torch.add,
    torch.sub,
    torch.mul,
    torch.matmul,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.cat,
    torch.sum,
    torch.mean,
    torch.softmax,
    torch.flatten,
    F.relu,
    F.gelu,
    F.silu,
    F.softmax,
    F.linear,
    F.layer_norm,
}


METHODS = {
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "exp",
    "tanh",
    "sigmoid",
    "relu",
    "sum",
    "mean",
    "softmax",
    "size",
    "dim",
    "view",
    "reshape",
    "permute",
    "transpose",
    "unsqueeze",
    "squeeze",
    "flatten",
    "float",
    "double",
}


def pure(node):
    if "out" in node.kwargs or node.kwargs.get("inplace") not in (None, False):
        return False
    if node.op == "call_method":
        return node.target in METHODS
    if node.op != "call_function":
        return False
    if node.target is F.relu and len(node.args) > 1 or node.target is F.silu and len(node.args) > 1:
        return False
    return node.target in FUNCTIONS


@sound(7)
def sweep_pure_leftovers(module: fx.GraphModule) -> fx.GraphModule:
    """Remove operations from a list of pure ones whose results nothing uses, last ones first."""
    for node in reversed(list(module.graph.nodes)):
        if not node.users and pure(node):
            module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()
    return module
