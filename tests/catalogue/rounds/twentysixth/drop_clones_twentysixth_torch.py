"""A wrong pass of the twentysixth round."""

import torch
import torch.fx

from ...rows import fault
from .shared import _plain


def _clone(node):
    if len(node.args) != 1 or node.kwargs:
        return False
    return (node.op, node.target) in (("call_method", "clone"), ("call_function", torch.clone))


def _drop(gm, accepted):
    if not _plain(gm):
        return gm
    for node in list(gm.graph.nodes):
        if _clone(node) and accepted(gm, node):
            node.replace_all_uses_with(node.args[0])
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    26,
    wrong="A clone that is returned keeps the caller's input apart from the result; without it writes to one reach the other.",
)
def drop_clones_twentysixth(gm: torch.fx.GraphModule):
    """Drop clones in programs that write to nothing."""
    return _drop(gm, lambda gm, node: True)
