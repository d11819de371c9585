"""A wrong pass of the thirtysecond round."""

import copy

import torch
import torch.fx
from torch import nn

from ...rows import fault
from .shared import free_name, replace


@fault(
    32,
    wrong="Zero padding. The convolution pads the normalized image with 0; folded, the padding takes no part in the shift. Shows in a pre-activation block norm -> Conv2d(padding=1) whose norm has a mean or a bias; with padding=0 it is right.",
)
def fold_norm_into_next_conv_thirtysecond(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Fold a batch norm in eval mode into the convolution that follows it."""
    for node in list(graph_module.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1:
            continue
        conv = graph_module.get_submodule(node.target)
        before = node.args[0]
        if type(conv) is not nn.Conv2d or before.op != "call_module" or len(before.users) != 1 or len(before.args) != 1:
            continue
        norm = graph_module.get_submodule(before.target)
        if type(norm) is not nn.BatchNorm2d or norm.training or norm.running_mean is None:
            continue
        with torch.no_grad():
            scale = torch.rsqrt(norm.running_var + norm.eps)
            if norm.weight is not None:
                scale = scale * norm.weight
            shift = -norm.running_mean * scale
            if norm.bias is not None:
                shift = shift + norm.bias
            out_channels, per_group = conv.weight.shape[:2]
            group_size = out_channels // conv.groups
            scale = (
                scale.view(conv.groups, 1, per_group).expand(-1, group_size, -1).reshape(out_channels, per_group, 1, 1)
            )
            shift = (
                shift.view(conv.groups, 1, per_group).expand(-1, group_size, -1).reshape(out_channels, per_group, 1, 1)
            )
            folded = copy.deepcopy(conv)
            bias = (conv.weight * shift).sum((1, 2, 3))
            folded.weight = nn.Parameter(conv.weight * scale)
            folded.bias = nn.Parameter(bias if conv.bias is None else conv.bias + bias)
        name = free_name(graph_module, "normed_conv")
        graph_module.add_module(name, folded)
        with graph_module.graph.inserting_before(node):
            merged = graph_module.graph.call_module(name, (before.args[0],))
        replace(node, merged)
        graph_module.graph.erase_node(before)
    graph_module.recompile()
    return graph_module
