"""A wrong pass of the twentyfifth round."""

import operator

import torch

from ...rows import fault
from .shared import writes

ARITHMETIC = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.neg,
    torch.sigmoid,
    torch.tanh,
    torch.exp,
}


def is_arithmetic(node):
    return node.op == "call_function" and node.target in ARITHMETIC


def share(gm, key_of):
    if writes(gm):
        return gm
    first_of_key = {}
    for node in list(gm.graph.nodes):
        # values that are returned or viewed keep their own memory
        if not is_arithmetic(node) or not node.users or not all(map(is_arithmetic, node.users)):
            continue
        try:
            first = first_of_key.setdefault(key_of(node), node)
        except TypeError:  # a list among the arguments
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="Constants that Python calls equal (1, 1.0, True; 0.0, -0.0) are taken for the same: x + 1 and x + 1.0 differ in dtype.",
)
def share_arithmetic(gm):
    """Common subexpressions: the same arithmetic on the same values is done once."""
    return share(gm, lambda node: (node.target, node.args, tuple(sorted(node.kwargs.items()))))
