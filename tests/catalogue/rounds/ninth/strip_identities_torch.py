"""A right pass of the ninth round."""

import torch
from torch import nn

from ...rows import sound


@sound(9)
def strip_identities(module):
    """Drop calls of nn.Identity."""
    graph = module.graph
    for node in list(graph.nodes):
        if (
            node.op != "call_module"
            or len(node.args) != 1
            or node.kwargs
            or not isinstance(node.args[0], torch.fx.Node)
        ):
            continue
        layer = module.get_submodule(node.target)
        hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
        if type(layer) is not nn.Identity or any(hooks) or "forward" in layer.__dict__:
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
