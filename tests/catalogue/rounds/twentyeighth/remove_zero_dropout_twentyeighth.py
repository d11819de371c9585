"""A right pass of the twentyeighth round."""

import torch

import fx

from ...rows import sound
from .shared import plain


@sound(28)
def remove_zero_dropout_twentyeighth(gm):
    """Removes dropouts of probability zero."""
    for node in list(gm.graph.nodes):
        if plain(gm, node, torch.nn.Dropout) and gm.get_submodule(node.target).p == 0:
            source = node.args[0]
            if isinstance(source, fx.Node):
                node.replace_all_uses_with(source)
                gm.graph.erase_node(node)
    gm.recompile()
    return gm
