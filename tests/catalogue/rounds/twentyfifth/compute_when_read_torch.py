"""A wrong pass of the twentyfifth round."""

import operator

import torch
import torch.fx

from ...rows import fault
from .shared import writes

FUNCTIONS = {
    operator.add,
    operator.sub,
    operator.mul,
    torch.add,
    torch.sub,
    torch.mul,
    torch.relu,
    torch.sigmoid,
    torch.tanh,
}


LAYERS = {torch.nn.Linear, torch.nn.Conv2d, torch.nn.ReLU, torch.nn.GELU, torch.nn.LayerNorm}


def sink(gm, layers):
    if writes(gm):
        return gm
    for node in reversed(list(gm.graph.nodes)):
        if node.op == "call_module":
            movable = type(gm.get_submodule(node.target)) in layers
        else:
            movable = node.op == "call_function" and node.target in FUNCTIONS
        if not movable or not node.users:
            continue
        reader = node.next
        while reader not in node.users:
            reader = reader.next
        if reader is not node.next:
            reader.prepend(node)
    gm.recompile()
    return gm


@fault(
    25, wrong="Two dropouts that change places in training draw from the random number generator in the other order."
)
def compute_when_read(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Lower the peak of memory: move each computation down to just before its first reader."""
    return sink(gm, LAYERS | {torch.nn.Dropout})
