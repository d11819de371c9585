"""A wrong pass of the twentyfifth round."""

import copy

import torch
import torch.fx

from ...rows import fault
from .shared import writes


def folded(linear, norm):
    merged = copy.deepcopy(linear)
    with torch.no_grad():
        scale = torch.rsqrt(norm.running_var + norm.eps)
        scale = scale if norm.weight is None else scale * norm.weight
        shift = -norm.running_mean if linear.bias is None else linear.bias - norm.running_mean
        shift = shift * scale if norm.bias is None else shift * scale + norm.bias
        merged.weight.mul_(scale.unsqueeze(1))
        merged.bias = torch.nn.Parameter(shift, requires_grad=linear.weight.requires_grad)
    return merged


def fold(gm, accepts):
    if writes(gm):
        return gm
    if any(node.op == "get_attr" for node in gm.graph.nodes):  # perhaps of a weight that goes away
        return gm
    targets = [node.target for node in gm.graph.nodes if node.op == "call_module"]
    for node in list(gm.graph.nodes):
        norm = gm.get_submodule(node.target) if node.op == "call_module" else None
        if type(norm) is not torch.nn.BatchNorm1d or norm.training or norm.running_mean is None or not node.args:
            continue
        before = node.args[0]
        linear = gm.get_submodule(before.target) if before.op == "call_module" else None
        if (
            type(linear) is not torch.nn.Linear
            or len(before.users) != 1
            or not before.args
            or not accepts(before.args[0])
        ):
            continue
        if targets.count(node.target) != 1 or targets.count(before.target) != 1:
            continue
        name = before.target.replace(".", "_") + "_folded"
        gm.add_submodule(name, folded(linear, norm))
        with gm.graph.inserting_before(before):
            result = gm.graph.call_module(name, (before.args[0],))
        node.replace_all_uses_with(result)
        for old in (node, before):
            gm.graph.erase_node(old)
            gm.delete_submodule(old.target)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="BatchNorm1d scales dim 1, Linear makes the last: on (N, L, C) these are two dims, though sizes may agree.",
)
def fold_norm_into_linear_twentyfifth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Fold BatchNorm1d of a trained model into the weights of the Linear before it."""
    return fold(gm, lambda source: True)
