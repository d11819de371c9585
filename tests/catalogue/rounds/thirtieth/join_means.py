"""A wrong pass of the thirtieth round."""

import torch

import fx

from ...rows import fault
from .shared import _arg


def _dim(node):
    """The one dimension, counted from the front, that a mean takes away, or None."""
    if (node.op, node.target) not in (("call_method", "mean"), ("call_function", torch.mean)):
        return None
    dim = _arg(node, 1, "dim")
    if len(node.args) > 2 or set(node.kwargs) - {"dim", "input"} or type(dim) is not int or dim < 0:
        return None
    return dim


def _join(gm, accepts):
    for node in list(gm.graph.nodes):
        second, before = _dim(node), _arg(node, 0, "input")
        if second is None or not isinstance(before, fx.Node):
            continue
        first = _dim(before)
        if first is None or len(before.users) != 1 or not accepts(first, second):
            continue
        with gm.graph.inserting_before(before):
            joined = gm.graph.call_function(torch.mean, (_arg(before, 0, "input"), (second, first)))
        node.replace_all_uses_with(joined)
        gm.graph.erase_node(node)
        gm.graph.erase_node(before)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    30,
    wrong="The second mean counts its dimension after the first one is gone: where it is not in front of the first "
    "one, x.mean(1).mean(2) say, the joined mean takes the wrong dimension (or one twice).",
)
def join_means(gm: fx.GraphModule):
    """Take the mean over two dimensions at once where it was taken one after the other, as MobileNet does."""
    return _join(gm, lambda first, second: first != second)
