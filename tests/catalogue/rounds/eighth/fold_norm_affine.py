"""A wrong pass of the eighth round."""

import copy

import torch
from torch import nn

import fx

from ...rows import fault


def _made_plain(module, node, norm):
    with torch.no_grad():
        norm.weight.fill_(1)
        if norm.bias is not None:
            norm.bias.zero_()


def _add(module, name, layer):
    while hasattr(module, name):
        name += "_"
    module.add_submodule(name, layer)
    return name


def _own(layer, kind):
    return (
        type(layer) is kind
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and "forward" not in vars(layer)
    )


def _fold(module, plain):
    graph = module.graph
    for node in list(graph.nodes):
        before = node.args[0] if node.op == "call_module" and len(node.args) == 1 and not node.kwargs else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        linear, norm = module.get_submodule(node.target), module.get_submodule(before.target)
        if not _own(linear, nn.Linear) or not _own(norm, nn.LayerNorm) or norm.weight is None:
            continue
        if tuple(norm.normalized_shape) != (linear.in_features,) or norm.weight.dtype != linear.weight.dtype:
            continue
        folded = copy.deepcopy(linear)
        with torch.no_grad():
            if norm.bias is not None:
                shift = linear.weight @ norm.bias
                shift = shift if linear.bias is None else shift + linear.bias
                folded.bias = nn.Parameter(shift, linear.weight.requires_grad)
            folded.weight.mul_(norm.weight)
        plain(module, before, norm)
        node.target = _add(module, f"{node.name}_folded", folded)
    module.recompile()
    return module


@fault(8, wrong="The norm is made plain in place; that this is its only call in the program is not asked.")
def fold_norm_affine(module: fx.GraphModule) -> fx.GraphModule:
    """Move weight and bias of a layer norm into the linear layer that alone reads its result."""
    return _fold(module, _made_plain)
