"""A wrong pass of the twentyninth round."""

import torch
import torch.nn as nn

from ...rows import fault
from .shared import _HOOKS


def _plain(gm, node, kind):
    if getattr(node, "op", None) != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    module = gm.get_submodule(node.target)
    return type(module) is kind and not any(getattr(module, hooks, None) for hooks in _HOOKS)


def _is_matrix(gm, node):
    """Return whether the value surely has two dimensions: flattened, then through Linear and ReLU only."""
    while _plain(gm, node, nn.Linear) or _plain(gm, node, nn.ReLU):
        node = node.args[0]
    flatten = (node.op, node.target) in (("call_method", "flatten"), ("call_function", torch.flatten))
    return flatten and node.args[1:] == (1,) and not node.kwargs


def _sole(gm, node):
    """Return whether the module is called here alone, and shares no parameter."""
    module = gm.get_submodule(node.target)
    calls = [n for n in gm.graph.nodes if n.op == "call_module" and gm.get_submodule(n.target) is module]
    mine = {id(p) for p in module.parameters()}
    names = [name for name, p in gm.named_parameters(remove_duplicate=False) if id(p) in mine]
    return len(calls) == 1 and len(names) == len(mine)


def _folded(linear, bn):
    with torch.no_grad():
        scale = torch.rsqrt(bn.running_var.double() + bn.eps)
        scale = scale if bn.weight is None else scale * bn.weight.double()
        bias = 0.0 if linear.bias is None else linear.bias.double()
        shift = (bias - bn.running_mean.double()) * scale
        shift = shift if bn.bias is None else shift + bn.bias.double()
        new = nn.Linear(linear.in_features, linear.out_features)
        new.weight = nn.Parameter((linear.weight.double() * scale[:, None]).to(linear.weight.dtype))
        new.bias = nn.Parameter(shift.to(linear.weight.dtype))
    return new.eval()


def _fold(gm, only_matrices):
    if any(n.op == "get_attr" or n.op == "call_method" and n.target.endswith("_") for n in gm.graph.nodes):
        return gm  # might write the statistics, or change dimensions
    for norm in list(gm.graph.nodes):
        if not _plain(gm, norm, nn.BatchNorm1d) or not _plain(gm, norm.args[0], nn.Linear):
            continue
        layer = norm.args[0]
        linear, bn = gm.get_submodule(layer.target), gm.get_submodule(norm.target)
        if (
            len(layer.users) != 1
            or not _sole(gm, layer)
            or not _sole(gm, norm)
            or bn.training
            or bn.running_mean is None
        ):
            continue
        if bn.running_var.dtype != linear.weight.dtype or bn.num_features != linear.out_features:
            continue
        if only_matrices and not _is_matrix(gm, layer.args[0]):
            continue
        name = f"{layer.name}_{norm.name}_folded"
        gm.add_submodule(name, _folded(linear, bn))
        gm.delete_submodule(layer.target)
        gm.delete_submodule(norm.target)
        layer.target = name
        norm.replace_all_uses_with(layer)
        gm.graph.erase_node(norm)
    gm.recompile()
    return gm


@fault(
    29,
    wrong="On a (batch, length, features) input the norm's channels are dimension 1, not the features that Linear makes.",
)
def fold_norm_into_linear_twentyninth(gm):
    """Fold BatchNorm1d into the Linear before it, for inference."""
    return _fold(gm, only_matrices=False)
