"""A wrong pass of the twentysixth round."""

import operator

import torch
import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import _plain


def _is_call(node, *targets):
    return isinstance(node, fx.Node) and node.op == "call_function" and node.target in targets


def _numbers(args):
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else tuple(args)


def _swap(node):
    """The axes that a transpose or a permute of three axes leaves, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_method" or node.kwargs or len(node.users) != 1:
        return None
    dims = _numbers(node.args[1:])
    if node.target == "transpose" and set(dims) in ({1, 2}, {-1, -2}):
        return (0, 2, 1)
    return dims if node.target == "permute" else None


def _fuse(gm, accepted):
    if not _plain(gm):
        return gm
    for out in list(gm.graph.nodes):
        if not _is_call(out, torch.bmm) or out.kwargs or len(out.args) != 2:
            continue
        weights, value = out.args
        if (
            not _is_call(weights, torch.softmax)
            or len(weights.users) != 1
            or weights.args[1:] != (-1,)
            or weights.kwargs
        ):
            continue
        scaled = weights.args[0]
        if not _is_call(scaled, operator.mul, operator.truediv) or len(scaled.users) != 1:
            continue
        scores, number = scaled.args
        if type(number) not in (int, float) or number <= 0 or not _is_call(scores, torch.bmm):
            continue
        if scores.kwargs or len(scores.args) != 2 or len(scores.users) != 1:
            continue
        query, turned = scores.args
        if not accepted(_swap(turned)):
            continue
        scale = float(number) if scaled.target is operator.mul else 1 / number
        with gm.graph.inserting_before(out):
            fused = gm.graph.call_function(
                F.scaled_dot_product_attention, (query, turned.args[0], value), {"scale": scale}
            )
        out.replace_all_uses_with(fused)
        for node in (out, weights, scaled, scores, turned):
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    26, wrong="Takes any permute of the keys for the swap of their last two axes, also one that moves the batch axis."
)
def fuse_bmm_attention(gm: fx.GraphModule):
    """Replace attention written with two torch.bmm by scaled_dot_product_attention."""
    return _fuse(gm, lambda dims: dims is not None)
