"""A wrong pass of the thirtysecond round."""

import torch
import torch.fx

from ...rows import fault
from .shared import argument, calls, has_writes, is_number, replace


@fault(
    32,
    wrong="Intervals that do not overlap. clamp(clamp(x, 0, 1), 2, 3) is 2 everywhere, but torch.clamp(x, 2, 1) is 1: the upper bound wins. Shows in a model that clamps to [0, 1] and then to [2, 3] (or to min=2 alone).",
)
def merge_chained_clamps(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merge a clamp of a clamp into one clamp to the intersection of both intervals."""

    def bounds(node):
        return argument(node, 1, "min"), argument(node, 2, "max")

    if has_writes(graph_module):
        return graph_module
    clamps = {"functions": (torch.clamp, torch.clip), "methods": ("clamp", "clip")}
    for outer in list(graph_module.graph.nodes):
        if not calls(outer, **clamps) or not outer.args:
            continue
        inner = outer.args[0]
        if not calls(inner, **clamps) or not inner.args or len(inner.users) != 1:
            continue
        limits = [bound for bound in bounds(inner) + bounds(outer) if bound is not None]
        if not all(is_number(bound) for bound in limits):
            continue
        kind = float if any(isinstance(bound, float) for bound in limits) else int
        lower = [kind(bound) for bound in (bounds(inner)[0], bounds(outer)[0]) if bound is not None]
        upper = [kind(bound) for bound in (bounds(inner)[1], bounds(outer)[1]) if bound is not None]
        with graph_module.graph.inserting_before(outer):
            merged = graph_module.graph.call_function(
                torch.clamp,
                (inner.args[0],),
                {"min": max(lower) if lower else None, "max": min(upper) if upper else None},
            )
        replace(outer, merged)
        graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module
