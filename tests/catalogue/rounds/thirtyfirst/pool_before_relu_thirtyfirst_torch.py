"""A right pass of the thirtyfirst round."""

import torch
import torch.fx
import torch.nn as nn

from ...rows import sound


def _hooked(layer):
    return layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks


def _layer(gm, node, kind):
    if not isinstance(node, torch.fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    layer = gm.get_submodule(node.target)
    return layer if type(layer) is kind and not _hooked(layer) else None


@sound(31)
def pool_before_relu_thirtyfirst(gm: torch.fx.GraphModule):
    """Exchange ReLU and the max pooling after it: ReLU then works on fewer elements."""
    for node in list(gm.graph.nodes):
        pool = _layer(gm, node, nn.MaxPool2d)
        if pool is None or pool.return_indices or pool.dilation not in (1, (1, 1)):
            continue
        active = node.args[0]
        relu = _layer(gm, active, nn.ReLU)
        if relu is None or relu.inplace or len(active.users) > 1:
            continue
        with gm.graph.inserting_before(active):
            pooled = gm.graph.call_module(node.target, active.args)
            result = gm.graph.call_module(active.target, (pooled,))
        node.replace_all_uses_with(result)
        gm.graph.erase_node(node)
        gm.graph.erase_node(active)
    gm.graph.lint()
    gm.recompile()
    return gm
