"""A wrong pass of the twentyninth round."""

import operator

import torch
import torch.fx

from ...rows import fault

CHEAP = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.neg,
    torch.add,
    torch.mul,
    torch.sub,
    torch.relu,
    torch.tanh,
    torch.sigmoid,
    torch.exp,
    torch.sin,
    torch.cos,
}


def _cheap(node):
    return node.op == "call_function" and node.target in CHEAP and node.kwargs.get("out") is None


def _sink(gm):
    for node in reversed(list(gm.graph.nodes)):
        if not _cheap(node) or not node.users:
            continue
        place = {other: i for i, other in enumerate(gm.graph.nodes)}
        first = min(node.users, key=place.__getitem__)
        if node.next is not first:
            first.prepend(node)
    gm.recompile()
    return gm


@fault(29, wrong="Moves a computation past an in-place write of what it reads.")
def sink_computations(gm: torch.fx.GraphModule):
    """Move each cheap computation down to right before its first use, so that fewer tensors are alive at a time."""
    return _sink(gm)
