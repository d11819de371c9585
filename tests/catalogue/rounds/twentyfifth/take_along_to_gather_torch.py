"""A wrong pass of the twentyfifth round."""

import torch
import torch.fx

from ...rows import fault
from .shared import writes


def taken(node):
    """Input, indices and dim of a call of take_along_dim, or None."""
    if not (node.op == "call_method" and node.target == "take_along_dim" or node.target is torch.take_along_dim):
        return None
    if len(node.args) < 2 or len(node.args) > 3 or set(node.kwargs) - {"dim"}:
        return None
    dim = node.args[2] if len(node.args) == 3 else node.kwargs.get("dim")
    return (*node.args[:2], dim) if type(dim) is int else None


def lower(gm, accepts):
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        call = taken(node)
        if call is None or not accepts(call[1], call[0]):
            continue
        x, indices, dim = call
        with gm.graph.inserting_before(node):
            gathered = gm.graph.call_function(torch.gather, (x, dim, indices))
        node.replace_all_uses_with(gathered)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    25,
    wrong="take_along_dim broadcasts the indices with the input, gather does not: one index for all rows takes one row's.",
)
def take_along_to_gather(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Lower take_along_dim to gather, which every backend has."""
    return lower(gm, lambda indices, x: True)
