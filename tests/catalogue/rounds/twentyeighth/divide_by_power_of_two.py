"""A right pass of the twentyeighth round."""

import math
import operator

import torch

import fx

from ...rows import sound


def power_of_two(value):
    if type(value) not in (int, float) or not 0 < value <= 256:
        return False
    return value >= 1 / 256 and math.frexp(value)[0] == 0.5


@sound(28)
def divide_by_power_of_two(gm):
    """Writes a division by a power of two as a multiplication."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or len(node.args) != 2 or node.kwargs:
            continue
        if node.target not in (operator.truediv, torch.div) or not isinstance(node.args[0], fx.Node):
            continue
        if power_of_two(node.args[1]):
            node.target = operator.mul if node.target is operator.truediv else torch.mul
            node.args = (node.args[0], 1.0 / node.args[1])
    gm.recompile()
    return gm
