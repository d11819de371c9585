"""A pass of the twentyseventh round that its author took for a right one."""

import torch
import torch.nn.functional as F
from torch import nn

from ...rows import fault
from .shared import _hooked


@fault(
    27,
    wrong="A write to the pooled result, which the activation now gives and needs, makes the program raise in backward.",
)
def pool_before_relu_twentyseventh(gm):
    """conv, relu, max-pool becomes conv, max-pool, relu: the activation then runs on a quarter of the elements."""
    modules = dict(gm.named_modules())

    def layer_of(node, kind):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return None
        layer = modules[node.target]
        return layer if type(layer) is kind and not _hooked(layer) else None

    def is_relu(node):
        if node.op == "call_function" and node.target in (F.relu, torch.relu):
            return len(node.args) == 1 and not any(node.kwargs.values())  # inplace=False
        relu = layer_of(node, nn.ReLU)
        return relu is not None and not relu.inplace

    for node in list(gm.graph.nodes):
        pool = layer_of(node, nn.MaxPool2d)
        if pool is None or pool.return_indices or pool.dilation not in (1, (1, 1)):
            continue
        relu = node.args[0]
        if not is_relu(relu) or len(relu.users) != 1 or node.prev is not relu:
            continue
        source = relu.args[0]
        if layer_of(source, nn.Conv2d) is None:  # whose result is dense, so that the layout of the result stays
            continue
        node.replace_all_uses_with(relu)
        node.args = (source,)
        relu.args = (node,)
        node.append(relu)
    gm.recompile()
    return gm
