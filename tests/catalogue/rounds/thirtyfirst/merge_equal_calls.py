"""A wrong pass of the thirtyfirst round."""

import operator

import torch
import torch.nn as nn
import torch.nn.functional as F

import fx

from ...rows import fault

PURE = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    operator.gt,
    operator.lt,
    operator.ge,
    torch.add,
    torch.sub,
    torch.mul,
    torch.exp,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.sin,
    torch.cos,
    torch.abs,
    torch.mean,
    torch.sum,
    torch.softmax,
    torch.where,
    torch.cat,
    torch.stack,
    torch.matmul,
    F.gelu,
    F.silu,
    F.softmax,
}


METHODS = {
    "sum",
    "mean",
    "exp",
    "tanh",
    "sigmoid",
    "view",
    "reshape",
    "transpose",
    "permute",
    "flatten",
    "size",
    "unsqueeze",
}


LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU)


def _reads_only(gm, node):
    if node.op in ("placeholder", "output"):
        return True
    if node.op == "get_attr":
        return node.target in dict(gm.named_parameters(remove_duplicate=False))
    if node.op == "call_module":
        layer = gm.get_submodule(node.target)
        hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        return type(layer) in LAYERS and not hooks
    if node.op == "call_method":
        return node.target in METHODS
    return node.target in PURE and node.kwargs.get("out") is None


def _loose(value):
    return tuple(map(_loose, value)) if isinstance(value, (tuple, list)) else value


def _merge(gm, freeze):
    if not all(_reads_only(gm, node) for node in gm.graph.nodes):
        return gm
    first_of_key = {}
    for node in list(gm.graph.nodes):
        # what the caller gets must stay tensors of its own: only values that other functions read are merged
        if node.op != "call_function" or not all(user.op == "call_function" for user in node.users):
            continue
        key = (node.target, freeze(node.args), tuple((k, freeze(v)) for k, v in sorted(node.kwargs.items())))
        try:
            first = first_of_key.setdefault(key, node)
        except TypeError:
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    31,
    wrong="The key of a call compares its constants by ==, and 1 == 1.0 == True: `n * 2` and `n * 2.0` become one, "
    "which gives the wrong dtype where n is an integer tensor.",
)
def merge_equal_calls(gm: fx.GraphModule):
    """Common subexpression elimination over calls of pure functions."""
    return _merge(gm, _loose)
