"""A wrong pass of the twentyfourth round."""

import operator

import torch
import torch.fx
from torch.nn import functional as F

from ...rows import fault

KEEP_INPUTS = (operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul, torch.matmul, F.linear)


KEEP_OUTPUT = (torch.tanh, torch.sigmoid, torch.exp, torch.softmax)


def _convert(gm, fresh):
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in (torch.relu, F.relu) or not node.args:
            continue
        value = node.args[0]
        # a new tensor that only this ReLU reads: no view of it and no second user can see the write
        if value.op != "call_function" or value.target not in fresh or len(value.users) != 1:
            continue
        if value.kwargs.get("out") is not None or value.type is not None:
            continue
        node.target = F.relu
        node.args = (value,)
        node.kwargs = {"inplace": True}
    gm.recompile()
    return gm


@fault(24, wrong="tanh, sigmoid, exp and softmax keep their result for backward; overwriting it makes backward raise.")
def inplace_relu_twentyfourth(gm: torch.fx.GraphModule):
    """Set inplace=True where the input is a fresh tensor without other users."""
    return _convert(gm, KEEP_INPUTS + KEEP_OUTPUT)
