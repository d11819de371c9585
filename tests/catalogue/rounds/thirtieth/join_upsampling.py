"""A right pass of the thirtieth round."""

import torch.nn.functional as F

import fx

from ...rows import sound
from .shared import _arg


def _factor(node):
    """The factor of a nearest upsampling by a power of two, or None."""
    if node.op != "call_function" or node.target is not F.interpolate or _arg(node, 1, "size") is not None:
        return None
    scale = _arg(node, 2, "scale_factor")
    if type(scale) not in (int, float) or scale not in (2, 4, 8):
        return None
    if _arg(node, 3, "mode", "nearest") != "nearest" or _arg(node, 4, "align_corners") is not None:
        return None
    if _arg(node, 5, "recompute_scale_factor") is not None or _arg(node, 6, "antialias", False) is not False:
        return None
    return int(scale)


@sound(30)
def join_upsampling(gm: fx.GraphModule):
    """Upsample once where nearest upsampling follows nearest upsampling."""
    for node in list(gm.graph.nodes):
        second, before = _factor(node), _arg(node, 0, "input")
        if second is None or not isinstance(before, fx.Node):
            continue
        first = _factor(before)
        if first is None or len(before.users) != 1 or first * second > 8:
            continue
        with gm.graph.inserting_before(before):
            joined = gm.graph.call_function(
                F.interpolate, (_arg(before, 0, "input"),), {"scale_factor": first * second, "mode": "nearest"}
            )
        node.replace_all_uses_with(joined)
        gm.graph.erase_node(node)
        gm.graph.erase_node(before)
    gm.graph.lint()
    gm.recompile()
    return gm
