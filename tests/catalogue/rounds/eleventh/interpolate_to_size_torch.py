"""A wrong pass of the eleventh round."""

import operator

import torch
import torch.fx
import torch.nn.functional as F

from ...rows import fault

NAMES = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")


def _lower(module, whole_only):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.interpolate:
            continue
        arguments = {**dict(zip(NAMES, node.args)), **node.kwargs}
        scale = arguments.get("scale_factor")
        if arguments.get("size") is not None or type(scale) not in (int, float) or scale <= 0:
            continue
        if arguments.get("mode") not in ("bilinear", "bicubic") or arguments.get("recompute_scale_factor"):
            continue  # these modes take images only
        if whole_only and not float(scale).is_integer():
            continue
        x, (up, down) = arguments["input"], scale.as_integer_ratio()
        kwargs = {k: arguments[k] for k in ("mode", "align_corners", "antialias") if k in arguments}
        with graph.inserting_before(node):
            size = []
            for dim in (2, 3):
                length = graph.call_function(operator.mul, (graph.call_method("size", (x, dim)), up))
                size.append(length if down == 1 else graph.call_function(operator.floordiv, (length, down)))
            new = graph.call_function(F.interpolate, (x,), {"size": size, **kwargs})
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(
    11,
    wrong="F.interpolate with a fractional scale_factor maps coordinates by 1/scale, but with size by in/out: the pass does not ask whether the scale is whole.",
)
def interpolate_to_size(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Write F.interpolate(x, scale_factor=s) of images as F.interpolate(x, size=...), as TensorRT wants it. Exact."""
    return _lower(module, whole_only=False)
