"""A wrong pass of the twentyeighth round."""

import torch
import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import writes


def softmax_dim(node):
    """The axis of a log_softmax that has no other options, or None."""
    function = node.op == "call_function" and node.target in (F.log_softmax, torch.log_softmax)
    if not function and not (node.op == "call_method" and node.target == "log_softmax"):
        return None
    kwargs = dict(node.kwargs)
    kwargs.pop("_stacklevel", None)
    if kwargs.pop("dtype", None) is not None:
        return None
    dims = [*node.args[1:], *kwargs.values()]
    return dims[0] if set(kwargs) <= {"dim"} and len(dims) == 1 and node.args and type(dims[0]) is int else None


def fuse(gm, class_axes):
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.nll_loss or not node.args:
            continue
        log = node.args[0]
        if not isinstance(log, fx.Node) or softmax_dim(log) not in class_axes or len(log.users) != 1:
            continue
        if log in node.args[1:] or log in node.kwargs.values():
            continue
        # The two losses name and order the rest of their arguments alike.
        with gm.graph.inserting_before(node):
            loss = gm.graph.call_function(F.cross_entropy, (log.args[0], *node.args[1:]), dict(node.kwargs))
        node.replace_all_uses_with(loss)
        gm.graph.erase_node(node)
        gm.graph.erase_node(log)
    gm.recompile()
    return gm


@fault(
    28,
    wrong="Takes the last axis for the class axis, which cross_entropy and nll_loss have at 1: they are the same in two axes only.",
)
def nll_to_cross_entropy_twentyeighth(gm):
    """Fuses log_softmax and nll_loss into cross_entropy."""
    return fuse(gm, (1, -1))
