"""A right pass of the thirtyfirst round."""

import torch.nn as nn

import fx

from ...rows import sound


@sound(31)
def drop_void_dropouts(gm: fx.GraphModule):
    """Remove dropout layers that configurations switch off by a rate of zero."""
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
            continue
        layer = gm.get_submodule(node.target)
        if type(layer) is not nn.Dropout or layer.p != 0:
            continue
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
            continue
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
