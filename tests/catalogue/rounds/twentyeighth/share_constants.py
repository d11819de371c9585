"""A wrong pass of the twentyeighth round."""

import operator

import torch

from ...rows import fault
from .shared import writes

MAKERS = {torch.zeros, torch.ones, torch.full, torch.arange}


READERS = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul}


def frozen(value):
    if isinstance(value, (list, tuple)):
        return tuple(frozen(item) for item in value)
    return value


def share(gm, name):
    if writes(gm):
        return gm
    first_of_key = {}
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in MAKERS:
            continue
        if not set(node.kwargs) <= {"dtype", "device", "fill_value", "size"}:
            continue
        # A constant that is only read by arithmetic, never handed out.
        if not all(user.op == "call_function" and user.target in READERS and not user.kwargs for user in node.users):
            continue
        key = node.target, name(node.args), tuple((k, name(node.kwargs[k])) for k in sorted(node.kwargs))
        first = first_of_key.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Compares the arguments by ==, so that torch.full of 1, of 1.0 and of True are one constant, of one dtype.",
)
def share_constants(gm):
    """Makes equal constants (zeros, ones, full, arange) once per program."""
    return share(gm, frozen)
