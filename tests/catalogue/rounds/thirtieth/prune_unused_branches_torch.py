"""A wrong pass of the thirtieth round."""

import torch
import torch.fx
import torch.nn as nn

from ...rows import fault
from .shared import _plain

LAYERS = (nn.Linear, nn.Conv2d, nn.ReLU, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Flatten, nn.BatchNorm2d)


FUNCTIONS = (torch.relu, torch.sigmoid, torch.flatten)


METHODS = ("flatten", "view", "size", "relu", "sigmoid", "mean")


def _prune(gm, removable):
    layers = dict(gm.named_modules(remove_duplicate=False))
    for node in reversed(list(gm.graph.nodes)):
        if node.users:
            continue
        if node.op == "call_module":
            layer = layers[node.target]
            dead = (
                any(_plain(layer, kind) for kind in LAYERS)
                and not getattr(layer, "inplace", False)
                and removable(layer)
            )
        elif node.op == "call_function":
            dead = node.target in FUNCTIONS and "out" not in node.kwargs
        else:
            dead = node.op == "call_method" and node.target in METHODS
        if dead:
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="A batch norm whose result is not used still updates its running statistics in training mode: pruned, the "
    "state of auxiliary branches no longer moves.",
)
def prune_unused_branches(gm: torch.fx.GraphModule):
    """Remove branches whose result nobody uses, such as auxiliary heads; the layers stay, for the checkpoint."""
    return _prune(gm, lambda layer: True)
