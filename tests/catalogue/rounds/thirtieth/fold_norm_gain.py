"""A wrong pass of the thirtieth round."""

import operator

import torch
import torch.nn as nn
import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _plain


def _attribute(gm, name):
    value = gm
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _fold(gm, always):
    layers, graph = dict(gm.named_modules(remove_duplicate=False)), gm.graph
    read = {id(_attribute(gm, node.target)) for node in graph.nodes if node.op == "get_attr"}
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(layers[node.target], nn.LayerNorm) or len(node.args) != 1:
            continue
        norm, users = layers[node.target], list(node.users)
        if (
            norm.weight is None
            or len(norm.normalized_shape) != 1
            or {id(norm.weight), id(norm.bias)} - {id(None)} & read
        ):
            continue
        if not users or not all(user.op == "call_module" and _plain(layers[user.target], nn.Linear) for user in users):
            continue
        tensors = [norm.weight, norm.bias] + [t for user in users for t in layers[user.target].parameters()]
        if len({t.dtype for t in tensors if t is not None}) != 1 or not all(user.args == (node,) for user in users):
            continue
        with graph.inserting_before(node):
            bare = graph.call_function(F.layer_norm, (node.args[0], tuple(norm.normalized_shape), None, None, norm.eps))
        for user in users:
            linear = layers[user.target]
            with graph.inserting_before(user):
                weight = graph.get_attr(f"{user.target}.weight")
                bias = None if linear.bias is None else graph.get_attr(f"{user.target}.bias")
                if norm.bias is not None and (bias is not None or always):
                    shift = graph.call_function(torch.mv, (weight, graph.get_attr(f"{node.target}.bias")))
                    bias = shift if bias is None else graph.call_function(operator.add, (bias, shift))
                weight = graph.call_function(operator.mul, (weight, graph.get_attr(f"{node.target}.weight")))
                folded = graph.call_function(F.linear, (bare, weight, bias))
            user.replace_all_uses_with(folded)
            graph.erase_node(user)
        graph.erase_node(node)
    graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="The shift of the layer norm is added to the bias of the linear layer only where there is one: it is lost "
    "when the linear layer has bias=False (and the norm's bias is not zero; its gradient is lost always).",
)
def fold_norm_gain(gm: fx.GraphModule):
    """Fold gain and shift of a layer norm into the linear layers after it, as before rotating or smoothing weights."""
    return _fold(gm, False)
