"""A wrong pass of the twentyfifth round."""

import operator

import torch
import torch.fx

from ...rows import fault
from .shared import writes


def reads_values(node):
    if node.op != "call_function":
        return False
    return node.target is operator.getitem and node.args[1] == 0 or node.target is getattr and node.args[1] == "values"


def maximum_along(node):
    """Input, dim and keepdim of a call of max along a dim, or None."""
    if not (node.op == "call_method" and node.target == "max" or node.target is torch.max):
        return None
    if not node.args or set(node.kwargs) - {"dim", "keepdim"}:
        return None
    call = dict(zip(("input", "dim", "keepdim"), node.args)) | node.kwargs
    return (call["input"], call["dim"], call.get("keepdim", False)) if type(call.get("dim")) is int else None


def rewrite(gm, accepts):
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        call = maximum_along(node)
        if call is None or not node.users or not all(map(reads_values, node.users)) or not accepts(call[0]):
            continue
        with gm.graph.inserting_before(node):
            values = gm.graph.call_function(torch.amax, call)
        for user in list(node.users):
            user.replace_all_uses_with(values)
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(25, wrong="Among equal maxima max(dim) gives the gradient to one element, amax shares it out.")
def max_to_amax(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compute a maximum along a dim by amax, without indices, if only its values are read."""
    return rewrite(gm, lambda x: True)
