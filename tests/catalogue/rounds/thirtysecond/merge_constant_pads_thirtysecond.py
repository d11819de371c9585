"""A right pass of the thirtysecond round."""

from itertools import zip_longest

import torch.nn.functional as F

import fx

from ...rows import sound
from .shared import argument, calls, follows_at_once, replace


# Only for the constant mode with the same value, its sign included. The widths crop nothing, and no operation
# runs in between. Tuples of different lengths are completed with zeros. A first padding with other users is
# kept.
@sound(32)
def merge_constant_pads_thirtysecond(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Merge a constant padding of a constant padding into one."""

    def parts(node):
        if not calls(node, (F.pad,)) or not node.args or "input" in node.kwargs:
            return None
        widths, mode = argument(node, 1, "pad"), argument(node, 2, "mode", "constant")
        value = argument(node, 3, "value")
        if mode != "constant" or not (value is None or type(value) in (int, float)):
            return None
        if type(value) is int and abs(value) > 2**53:
            return None
        if not isinstance(widths, (tuple, list)) or len(widths) % 2 or not all(type(each) is int for each in widths):
            return None
        if any(each < 0 for each in widths):
            return None
        return tuple(widths), 0.0 if value is None else float(value), value

    for outer in list(graph_module.graph.nodes):
        second = parts(outer)
        first = parts(outer.args[0]) if second else None
        if not first or repr(first[1]) != repr(second[1]) or not follows_at_once(outer, outer.args[0]):
            continue
        inner = outer.args[0]
        total = tuple(width + further for width, further in zip_longest(first[0], second[0], fillvalue=0))
        with graph_module.graph.inserting_before(outer):
            merged = graph_module.graph.call_function(F.pad, (inner.args[0], total), {"value": second[2]})
        replace(outer, merged)
        if not inner.users:
            graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module
