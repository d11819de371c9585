"""A right pass of the thirtieth round."""

import torch
import torch.fx
import torch.nn as nn

from ...rows import sound
from .shared import _plain


def _idle(layer):
    return _plain(layer, nn.Identity) or _plain(layer, nn.Dropout) and layer.p == 0


@sound(30)
def drop_idle_layers(gm: torch.fx.GraphModule):
    """Remove the calls of layers that do nothing: identities, and dropout of probability zero."""
    layers = dict(gm.named_modules(remove_duplicate=False))
    for node in list(gm.graph.nodes):
        if node.op != "call_module" or not _idle(layers[node.target]):
            continue
        if len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], torch.fx.Node):
            continue
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
