"""A right pass of the twentyfifth round."""

import torch
import torch.nn.functional as F

from ...rows import sound
from .shared import hooked


def probability(gm, node):
    """The probability, and what is dropped from, or None."""
    if node.op == "call_module":
        module = gm.get_submodule(node.target)
        if type(module) is torch.nn.Dropout and not hooked(module) and len(node.args) == 1:
            return module.p, node.args[0]
    if node.op == "call_function" and node.target is F.dropout and node.args:
        call = dict(zip(("input", "p"), node.args)) | node.kwargs
        return call.get("p", 0.5), call["input"]
    return None


@sound(25)
def drop_idle_dropout_twentyfifth(gm):
    """Remove dropout with a probability of 0, in training too."""
    for node in list(gm.graph.nodes):
        p_and_input = probability(gm, node)
        if p_and_input is None or type(p_and_input[0]) not in (int, float) or p_and_input[0] != 0:
            continue
        node.replace_all_uses_with(p_and_input[1])
        gm.graph.erase_node(node)
    gm.recompile()
    return gm
