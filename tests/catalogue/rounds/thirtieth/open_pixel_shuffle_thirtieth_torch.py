"""A wrong pass of the thirtieth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import _arg


def _open(gm, block_first):
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.pixel_shuffle:
            continue
        image, factor = _arg(node, 0, "input"), _arg(node, 1, "upscale_factor")
        if not isinstance(image, torch.fx.Node) or type(factor) is not int or factor < 2:
            continue
        height, width = -2, -1
        if block_first:
            split, (down, across, channel) = (factor, factor, -1), (-5, -4, -3)
        else:
            split, (channel, down, across) = (-1, factor, factor), (-5, -4, -3)
        with gm.graph.inserting_before(node):
            blocks = gm.graph.call_method("unflatten", (image, -3, split))
            moved = gm.graph.call_method(
                "movedim", (blocks, (channel, height, down, width, across), (-5, -4, -3, -2, -1))
            )
            copied = gm.graph.call_method("clone", (moved,), {"memory_format": torch.contiguous_format})
            wide = gm.graph.call_method("flatten", (copied, -2, -1))
            whole = gm.graph.call_method("flatten", (wide, -3, -2))
        node.replace_all_uses_with(whole)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="The channels are split as depth-to-space in blocks first (DCR) where pixel_shuffle has the channel first "
    "(CRD): wrong as soon as the result has more than one channel.",
)
def open_pixel_shuffle_thirtieth(gm: torch.fx.GraphModule):
    """Spell pixel_shuffle with reshapes and a transposition, for targets without depth-to-space."""
    return _open(gm, True)
