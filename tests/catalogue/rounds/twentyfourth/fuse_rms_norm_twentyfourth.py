"""A wrong pass of the twentyfourth round."""

import operator

import torch
from torch.nn import functional as F

import fx

from ...rows import fault


def _call(node, target, *rest):
    """The first argument of a call with these other ones, or None."""
    if not isinstance(node, fx.Node) or node.target != target or node.args[1:] != rest or len(node.users) > 2:
        return None
    return node.args[0]


def _source(scaled):
    """The normalized value and eps of x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps), or None."""
    if not isinstance(scaled, fx.Node) or scaled.target is not operator.mul or len(scaled.users) != 1:
        return None
    x, root = scaled.args
    shifted = _call(root, torch.rsqrt)
    if shifted is None or shifted.target is not operator.add or type(shifted.args[1]) is not float:
        return None
    mean = shifted.args[0]
    square = _call(mean, "mean", -1) if isinstance(mean, fx.Node) and mean.kwargs == {"keepdim": True} else None
    chain = (root, shifted, mean, square)
    if _call(square, "pow", 2) is not x or any(len(node.users) != 1 for node in chain):
        return None
    first, steps = square, [*chain, scaled]
    while first is not scaled:  # nothing in between that could write to x
        first = first.next
        if first not in steps and first.op != "get_attr":
            return None
    return x, shifted.args[1]


def _fuse(gm, fused):
    parameters = dict(gm.named_parameters(remove_duplicate=False))
    for node in gm.graph.find_nodes(op="call_function", target=operator.mul):
        for weight, scaled in (node.args, node.args[::-1]):
            source = _source(scaled)
            if source is None or not isinstance(weight, fx.Node) or weight.op != "get_attr":
                continue
            if weight.target in parameters and scaled.next in (weight, node):
                with gm.graph.inserting_before(node):
                    new = fused(gm.graph, *source, weight, tuple(parameters[weight.target].shape))
                node.replace_all_uses_with(new)
                gm.graph.erase_node(node)
                break
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


@fault(
    24, wrong="The weight's shape is taken for the normalized shape; a weight of two dimensions only broadcasts there."
)
def fuse_rms_norm_twentyfourth(gm):
    """Fuse the norm with its weight."""
    return _fuse(gm, lambda g, x, eps, weight, shape: g.call_function(F.rms_norm, (x, shape, weight, eps)))
