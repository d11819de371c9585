"""A right pass of the twelfth round."""

import torch
from torch import nn

from ...rows import sound


def _plain(m):
    hooked = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    return type(m) is nn.Identity and not hooked and "forward" not in vars(m)


@sound(12)
def drop_identity_modules(module):
    """Drop calls of nn.Identity, which stand where a model was built without a layer."""
    mods = dict(module.named_modules(remove_duplicate=False))
    for node in list(module.graph.nodes):
        if node.op != "call_module" or not _plain(mods[node.target]):
            continue
        arguments = [*node.args, *node.kwargs.values()]
        if len(arguments) != 1 or not isinstance(arguments[0], torch.fx.Node):
            continue
        node.replace_all_uses_with(arguments[0])
        module.graph.erase_node(node)
    module.recompile()
    return module
