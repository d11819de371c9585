"""A wrong pass of the twentyfifth round."""

import operator

import torch

import fx

from ...rows import fault
from .shared import writes

TARGETS = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div}


def is_expansion(node, other):
    return (
        isinstance(node, fx.Node)
        and node.op == "call_method"
        and node.target == "expand_as"
        and node.args[1:] == (other,)
        and not node.kwargs
    )


def drop(gm, accepts):
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in TARGETS or len(node.args) != 2 or node.kwargs:
            continue
        left, right = node.args
        if is_expansion(right, left) and accepts(right.args[0]):
            node.args, expanded = (left, right.args[0]), right
        elif is_expansion(left, right) and accepts(left.args[0]):
            node.args, expanded = (left.args[0], right), left
        else:
            continue
        if not expanded.users:
            gm.graph.erase_node(expanded)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="A tensor of no dimensions does not decide the dtype, its expansion does: float32 + expanded float64 is float64.",
)
def drop_expand(gm):
    """Arithmetic broadcasts on its own: drop an expand_as to the other operand's shape."""
    return drop(gm, lambda source: True)
