"""A wrong pass of the twentyfifth round."""

import operator

import torch

import fx

from ...rows import fault
from .shared import IN_PLACE

ADDS = {torch.add, operator.add}


CURVES = {torch.sigmoid, torch.tanh, torch.exp}


def overwrite(gm, producers):
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in IN_PLACE or len(node.args) != 1 or node.kwargs:
            continue
        source = node.args[0]
        if not isinstance(source, fx.Node) or source.op != "call_function" or source.target not in producers:
            continue
        # fresh, of one reader, so that nobody else sees the write
        if len(source.users) == 1 and source.kwargs.get("out") is None:
            node.target = IN_PLACE[node.target]
    gm.recompile()
    return gm


@fault(25, wrong="Backward of sigmoid, tanh and exp needs their output, which is overwritten: backward raises.")
def reuse_memory(gm):
    """Plan memory: an activation lets its last reader write over it, where the tensor was made fresh just for that."""
    return overwrite(gm, ADDS | CURVES)
