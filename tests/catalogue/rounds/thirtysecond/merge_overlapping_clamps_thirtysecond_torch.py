"""A right pass of the thirtysecond round."""

import torch
import torch.fx

from ...rows import sound
from .shared import argument, calls, follows_at_once, replace


# Only if all bounds are finite floats, since integers promote in another way. Each interval is in order, both
# overlap, and no operation runs in between. A first clamp with other users is kept.
@sound(32)
def merge_overlapping_clamps_thirtysecond(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merge a clamp of a clamp to an overlapping interval into one clamp to the intersection."""

    def bounds(node):
        if not calls(node, (torch.clamp, torch.clip), ("clamp", "clip")):
            return None
        if not 1 <= len(node.args) <= 3 or not set(node.kwargs) <= {"min", "max"}:
            return None
        lower, upper = argument(node, 1, "min"), argument(node, 2, "max")
        if type(lower) is not float or type(upper) is not float or not float("-inf") < lower <= upper < float("inf"):
            return None
        return lower, upper

    for outer in list(graph_module.graph.nodes):
        second = bounds(outer)
        first = bounds(outer.args[0]) if second else None
        if not first or not follows_at_once(outer, outer.args[0]):
            continue
        inner = outer.args[0]
        lower, upper = max(first[0], second[0]), min(first[1], second[1])
        if lower >= upper:
            continue
        with graph_module.graph.inserting_before(outer):
            merged = graph_module.graph.call_function(torch.clamp, (inner.args[0], lower, upper))
        replace(outer, merged)
        if not inner.users:
            graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module
