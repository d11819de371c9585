"""A wrong pass of the thirtysecond round."""

from itertools import zip_longest

import torch.nn.functional as F

import fx

from ...rows import fault
from .shared import argument, calls, has_writes, replace


@fault(
    32,
    wrong='The modes reflect and circular do not add up: the second padding mirrors what the first one made. Shows in a model that pads by 1 with mode="reflect" twice; constant (with one value) and replicate are right.',
)
def merge_pads_thirtysecond(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Merge a padding of a padding, of the same mode and value, into one."""

    def widths_of(node):
        widths = argument(node, 1, "pad")
        if isinstance(widths, (tuple, list)) and all(type(width) is int and width >= 0 for width in widths):
            return tuple(widths)
        return None

    if has_writes(graph_module):
        return graph_module
    for outer in list(graph_module.graph.nodes):
        if not calls(outer, (F.pad,)) or not outer.args:
            continue
        inner = outer.args[0]
        if not calls(inner, (F.pad,)) or not inner.args or len(inner.users) != 1:
            continue
        widths, more = widths_of(inner), widths_of(outer)
        mode, value = argument(outer, 2, "mode", "constant"), argument(outer, 3, "value") or 0
        if widths is None or more is None or argument(inner, 2, "mode", "constant") != mode:
            continue
        if (argument(inner, 3, "value") or 0) != value or (mode != "constant" and len(widths) != len(more)):
            continue
        total = tuple(first + second for first, second in zip_longest(widths, more, fillvalue=0))
        options = {"mode": mode, "value": value} if mode == "constant" else {"mode": mode}
        with graph_module.graph.inserting_before(outer):
            merged = graph_module.graph.call_function(F.pad, (inner.args[0], total), options)
        replace(outer, merged)
        graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module
