"""A wrong pass of the thirtysecond round."""

import math
import operator

import torch.fx
import torch.nn.functional as F

from ...rows import fault
from .shared import calls, is_number, replace


@fault(
    32,
    wrong="With a scale factor, the coordinates are computed from that factor, with a size from the ratio of the rounded sizes. Shows if the product is fractional: 5 pixels by 1.5 in mode bilinear (not for 4 pixels, nor with align_corners).",
)
def interpolate_by_size(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Give interpolate its output size in place of a scale factor, for exporters that want sizes."""
    ranks = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not calls(node, (F.interpolate,)) or len(node.args) != 1 or node.kwargs.get("size") is not None:
            continue
        factor, mode = node.kwargs.get("scale_factor"), node.kwargs.get("mode", "nearest")
        if is_number(factor) and mode in ranks:
            factors = [factor] * ranks[mode]
        elif isinstance(factor, (tuple, list)) and factor and all(is_number(each) for each in factor):
            factors = list(factor)
        else:
            continue
        x = node.args[0]
        with graph.inserting_before(node):
            sizes = []
            for position, each in enumerate(factors):
                size = graph.call_method("size", (x, position + 2))
                product = graph.call_function(operator.mul, (size, float(each)))
                sizes.append(graph.call_function(math.floor, (product,)))
            options = {name: node.kwargs[name] for name in ("align_corners", "antialias") if name in node.kwargs}
            sized = graph.call_function(F.interpolate, (x,), {"size": tuple(sizes), "mode": mode, **options})
        replace(node, sized)
    graph_module.recompile()
    return graph_module
