"""A wrong pass of the twentyfifth round."""

import math
import operator

import torch
import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import writes

ADD, SCALE = (operator.add, torch.add), (operator.mul, operator.truediv, torch.mul, torch.div)


def called(node, targets):
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets and not node.kwargs


def is_softmax(node):
    return node.target == "softmax" if node.op == "call_method" else node.target in (torch.softmax, F.softmax)


def reorder(gm, is_mask):
    if writes(gm):
        return gm
    for scaled in list(gm.graph.nodes):
        if not called(scaled, SCALE) or not all(map(is_softmax, scaled.users)) or not scaled.users:
            continue
        added, factor = scaled.args
        # powers of two: scaling is exact, so that nothing is rounded otherwise than before
        if type(factor) is not float or factor <= 0 or math.frexp(factor)[0] != 0.5:
            continue
        if not called(added, ADD) or len(added.users) != 1:
            continue
        scores, mask = added.args
        if not called(scores, (torch.matmul, operator.matmul)) or not isinstance(mask, fx.Node):
            continue
        value = operator.attrgetter(mask.target)(gm) if mask.op == "get_attr" else None
        if value is None or value.dtype not in (torch.get_default_dtype(), torch.float64) or not is_mask(value):
            continue
        with gm.graph.inserting_before(added):
            small = gm.graph.call_function(scaled.target, (scores, factor))
        added.args = (small, mask)
        scaled.replace_all_uses_with(added)
        gm.graph.erase_node(scaled)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="It takes what is added to the scores for a mask of 0 and -inf; a position bias has to be scaled with them.",
)
def scale_before_mask(gm):
    """Scale attention scores before the mask is added, not after it: the order that fused attention kernels expect."""
    return reorder(gm, lambda value: True)
