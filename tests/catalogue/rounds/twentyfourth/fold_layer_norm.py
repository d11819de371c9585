"""A wrong pass of the twentyfourth round."""

import torch
from torch import nn

import fx

from ...rows import fault


def _is(gm, node, kind):
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    m = gm.get_submodule(node.target)
    return type(m) is kind and not any(v for k, v in vars(m).items() if k.endswith("_hooks"))


def _uses(gm, target):
    return sum(n.op in ("call_module", "get_attr") and f"{n.target}.".startswith(f"{target}.") for n in gm.graph.nodes)


@torch.no_grad()
def _fold(gm, linear_once):
    for node in gm.graph.find_nodes(op="call_module"):
        if not _is(gm, node, nn.Linear) or not _is(gm, node.args[0], nn.LayerNorm):
            continue
        before = node.args[0]
        norm, linear = gm.get_submodule(before.target), gm.get_submodule(node.target)
        if len(before.users) != 1 or _uses(gm, before.target) != 1 or len(norm.normalized_shape) != 1:
            continue
        if norm.weight is None or norm.bias is None or (linear_once and _uses(gm, node.target) != 1):
            continue
        folded = nn.Linear(linear.in_features, linear.out_features, dtype=linear.weight.dtype)
        folded.weight.copy_(linear.weight * norm.weight)
        folded.bias.copy_(linear.weight @ norm.bias)
        if linear.bias is not None:
            folded.bias += linear.bias
        bare = nn.LayerNorm(norm.normalized_shape, norm.eps, elementwise_affine=False)
        gm.set_submodule(node.target, folded.train(linear.training))
        gm.set_submodule(before.target, bare.train(norm.training))
    gm.recompile()
    return gm


@fault(24, wrong="The Linear layer may be called at a second place, which gets the folded weights too.")
def fold_layer_norm(gm):
    """Leave bare norms and Linear layers that hold the scale and the shift."""
    return _fold(gm, linear_once=False)
