"""A wrong pass of the twentyeighth round."""

import operator

import torch
import torch.fx

from ...rows import fault
from .shared import writes

POINTWISE = {torch.relu, torch.tanh, torch.sigmoid, torch.exp}


def slices_of(items):
    """(function, unbind, numbers) if all items are one pointwise function of slices of one unbind, or None."""
    functions, sources, numbers = set(), set(), []
    for item in items:
        if not isinstance(item, torch.fx.Node) or item.op != "call_function" or item.target not in POINTWISE:
            return None
        piece = item.args[0] if len(item.args) == 1 and not item.kwargs else None
        if (
            not isinstance(piece, torch.fx.Node)
            or piece.target is not operator.getitem
            or type(piece.args[1]) is not int
        ):
            return None
        functions.add(item.target)
        sources.add(piece.args[0])
        numbers.append(piece.args[1])
    return (*functions, *sources, numbers) if len(functions) == len(sources) == 1 else None


def rows(unbind):
    """Return the number of slices if the view or reshape before the unbind fixes it, else None."""
    if unbind.op != "call_method" or unbind.target != "unbind" or unbind.args[1:] not in ((), (0,)) or unbind.kwargs:
        return None
    shaped = unbind.args[0]
    if shaped.op != "call_method" or shaped.target not in ("view", "reshape") or shaped.kwargs or len(shaped.args) < 2:
        return None
    first = shaped.args[1][0] if isinstance(shaped.args[1], (list, tuple)) else shaped.args[1]
    return first if type(first) is int and first > 0 else None


def fuse(gm, in_order):
    if writes(gm):
        return gm
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not torch.stack or node.args[1:] not in ((), (0,)):
            continue
        if node.kwargs not in ({}, {"dim": 0}) or not node.args or not isinstance(node.args[0], (list, tuple)):
            continue
        slices = slices_of(node.args[0]) if node.args[0] else None
        if slices is None:
            continue
        function, unbind, numbers = slices
        count = rows(unbind)
        if count is None or (numbers if in_order else sorted(numbers)) != list(range(count)):
            continue
        with gm.graph.inserting_before(node):
            mapped = gm.graph.call_function(function, (unbind.args[0],))
            dense = gm.graph.call_method("clone", (mapped,), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(dense)
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    28, wrong="Looks whether each slice is there once, not whether they are stacked in the order in which they came."
)
def unbind_stack_pointwise(gm: torch.fx.GraphModule):
    """Applies a pointwise function once to a whole tensor, where it is unbound, mapped slice by slice and stacked again."""
    return fuse(gm, in_order=False)
