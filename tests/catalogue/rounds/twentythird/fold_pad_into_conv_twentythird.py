"""A wrong pass of the twentythird round."""

import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _only_reads_between


def _bound(conv):
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    return dict(zip(names, conv.args, strict=False)) | dict(conv.kwargs)


def _rewrite(gm, merged):
    for conv in gm.graph.find_nodes(op="call_function", target=F.conv2d):
        bound = _bound(conv)
        pad, own = bound["input"], bound.get("padding", 0)
        own = (own, own) if type(own) is int else own
        if not isinstance(pad, fx.Node) or pad.target is not F.pad or len(pad.args) != 2 or list(pad.users) != [conv]:
            continue
        if pad.kwargs.get("mode", "constant") != "constant" or pad.kwargs.get("value") not in (None, 0, 0.0):
            continue
        sides = pad.args[1]
        if len(sides) != 4 or not all(type(side) is int and side >= 0 for side in sides):
            continue
        if sides[0] != sides[1] or sides[2] != sides[3] or not isinstance(own, (tuple, list)) or len(own) != 2:
            continue
        if not all(type(side) is int for side in own) or not _only_reads_between(pad, conv):
            continue
        bound["input"], bound["padding"] = pad.args[0], merged(own, sides)
        conv.args, conv.kwargs = (bound.pop("input"), bound.pop("weight")), bound
        gm.graph.erase_node(pad)
    gm.recompile()
    return gm


@fault(
    23,
    wrong="`F.pad` lists the last dimension first, the convolution's padding the first: height and width are swapped.",
)
def fold_pad_into_conv_twentythird(gm):
    """Fold a zero padding (`F.pad`) into the padding of the convolution that follows, which saves a copy of the activation."""
    return _rewrite(gm, lambda own, sides: (own[0] + sides[0], own[1] + sides[2]))
