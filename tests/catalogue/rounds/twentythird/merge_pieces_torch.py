"""A right pass of the twentythird round."""

import operator

import torch
import torch.fx

from ...rows import sound

_TUPLES = {torch.chunk, torch.split, torch.unbind}


@sound(23)
def merge_pieces(gm: torch.fx.GraphModule):
    """Take each piece of a chunk, split or unbind once: the same position of the same tuple is the same tensor."""
    first_of_piece = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem or node.kwargs or len(node.args) != 2:
            continue
        pieces, place = node.args
        if type(place) is not int or not isinstance(pieces, torch.fx.Node):
            continue
        if pieces.op != "call_function" or pieces.target not in _TUPLES:
            continue
        first = first_of_piece.setdefault((pieces, place), node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm
