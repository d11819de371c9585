"""A wrong pass of the twentyfifth round."""

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import writes


def logits_of(node, dims):
    """Return the logits of a log softmax over one of ``dims``, or None."""
    if not isinstance(node, torch.fx.Node) or node.op != "call_function":
        return None
    if (
        node.target not in (F.log_softmax, torch.log_softmax)
        or len(node.args) > 2
        or node.kwargs.get("dtype") is not None
    ):
        return None
    call = dict(zip(("input", "dim"), node.args)) | node.kwargs
    return call["input"] if type(call.get("dim")) is int and call["dim"] in dims else None


def fuse(gm, dims):
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not F.nll_loss or not node.args:
            continue
        logarithms = node.args[0]
        logits = logits_of(logarithms, dims)
        if logits is None:
            continue
        with gm.graph.inserting_before(node):
            loss = gm.graph.call_function(F.cross_entropy, (logits, *node.args[1:]), dict(node.kwargs))
        node.replace_all_uses_with(loss)
        gm.graph.erase_node(node)
        if not logarithms.users:
            gm.graph.erase_node(logarithms)
    gm.recompile()
    return gm


@fault(
    25, wrong="It takes dim=-1 for the dim of the classes; with more than two dims (N, C, L) the classes are at dim 1."
)
def fuse_cross_entropy_twentyfifth(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Fuse log_softmax and nll_loss into cross_entropy."""
    return fuse(gm, (1, -1))
