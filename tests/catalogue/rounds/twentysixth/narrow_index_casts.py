"""A wrong pass of the twentysixth round."""

import operator

from torch import nn

import fx

from ...rows import fault
from .shared import _hooked

ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.mod)


def _table(gm, node):
    """A plain lookup, which takes indices of either width."""
    if node.op != "call_module" or len(node.args) != 1:
        return False
    table = gm.get_submodule(node.target)
    if type(table) is not nn.Embedding or _hooked(table):
        return False
    return table.max_norm is None and not table.sparse and not table.scale_grad_by_freq


def _only_indices(gm, node, through):
    """Return whether the node is only used as an index, directly or after calls of `through` with integers."""
    for user in node.users:
        if _table(gm, user):
            continue
        if user.op != "call_function" or user.target not in through or type(user.args[1]) is not int:
            return False
        if not user.users or not _only_indices(gm, user, through):
            return False
    return True


def _narrow(gm, through):
    for node in gm.graph.nodes:
        if node.op != "call_method" or node.target != "long" or len(node.args) != 1 or node.kwargs or not node.users:
            continue
        if _only_indices(gm, node, through):
            node.target = "int"
    gm.recompile()
    return gm


@fault(26, wrong="Narrows the arithmetic between the cast and the table too, where a hash of the ids passes 2**31.")
def narrow_index_casts(gm: fx.GraphModule):
    """Compute the indices of embedding tables in int32: the device has no fast int64."""
    return _narrow(gm, ARITHMETIC)
