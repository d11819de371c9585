"""A wrong pass of the twentyfourth round."""

import torch.fx
from torch import nn
from torch.nn import functional as F

from ...rows import fault


def _remove(gm, function_is_off):
    if gm.training:
        return gm
    graph = gm.graph
    for node in [*graph.nodes]:
        if node.op == "call_module" and len(node.args) == 1:
            layer = gm.get_submodule(node.target)
            idle = type(layer) is nn.Dropout and not layer.training
            idle = idle and not any(v for k, v in vars(layer).items() if k.endswith("_hooks"))
        else:
            idle = node.op == "call_function" and node.target is F.dropout and node.args and function_is_off(node)
        if idle:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    24,
    wrong="F.dropout has its own argument training, which is True unless given (Monte-Carlo dropout); gm.training says nothing of it.",
)
def remove_dropout(gm: torch.fx.GraphModule):
    """Remove Dropout layers and calls of F.dropout in evaluation."""
    return _remove(gm, lambda node: True)
