"""A right pass of the thirtysecond round."""

import torch.fx
import torch.nn.functional as F

from ...rows import sound
from .shared import calls, follows_at_once, replace


# Only for the mode nearest with integer powers of two as factors: the rounding of the coordinates is exact
# then. There are no sizes or flags, and no operation runs in between. A first upsampling with other users is
# kept.
@sound(32)
def merge_nearest_upsampling(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Merge two nearest upsamplings by powers of two into one."""

    def factor_of(node):
        if not calls(node, (F.interpolate,)) or len(node.args) != 1 or "input" in node.kwargs:
            return None
        options = dict(node.kwargs)
        factor = options.pop("scale_factor", None)
        if options.pop("mode", "nearest") != "nearest" or any(options.values()):
            return None
        if any(value is not None and value is not False for value in options.values()):
            return None
        if type(factor) not in (int, float) or factor not in (2, 4, 8, 16):
            return None
        return factor

    for outer in list(graph_module.graph.nodes):
        second = factor_of(outer)
        first = factor_of(outer.args[0]) if second else None
        if not first or not follows_at_once(outer, outer.args[0]):
            continue
        inner = outer.args[0]
        with graph_module.graph.inserting_before(outer):
            merged = graph_module.graph.call_function(
                F.interpolate, (inner.args[0],), {"scale_factor": float(first * second), "mode": "nearest"}
            )
        replace(outer, merged)
        if not inner.users:
            graph_module.graph.erase_node(inner)
    graph_module.recompile()
    return graph_module
