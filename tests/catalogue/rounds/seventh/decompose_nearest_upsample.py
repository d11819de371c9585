"""A wrong pass of the seventh round."""

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ...rows import fault


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


NAMES = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")


def rewrite(module, scales):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is F.interpolate:
            bound = dict(zip(NAMES, node.args)) | dict(node.kwargs)
        elif node.op == "call_module" and plain(module.get_submodule(node.target), nn.Upsample, nn.UpsamplingNearest2d):
            layer = module.get_submodule(node.target)
            bound = {"size": layer.size, "scale_factor": layer.scale_factor, "mode": layer.mode}
            bound["input"] = node.args[0] if node.args else node.kwargs["input"]
        else:
            continue
        if bound.get("mode", "nearest") != "nearest" or bound.get("size") is not None or bound.get("antialias"):
            continue
        if bound.get("align_corners") is not None:
            continue
        pair = scales(bound.get("scale_factor"))
        if pair is None or any(type(scale) not in (int, float) or scale not in (2, 4) for scale in pair):
            continue
        with graph.inserting_before(node):
            rows = graph.call_function(torch.repeat_interleave, (bound["input"], int(pair[0])), {"dim": -2})
            both = graph.call_function(torch.repeat_interleave, (rows, int(pair[1])), {"dim": -1})
        node.replace_all_uses_with(both)
        graph.erase_node(node)
    module.recompile()
    return module


def listed(scale):
    return tuple(scale) if isinstance(scale, (tuple, list)) and len(scale) == 2 else None


@fault(
    7,
    wrong="One number as scale is taken for rows and columns without asking that the input is four-dimensional: a sequence (N, C, L) gets its channels repeated.",
)
def decompose_nearest_upsample(module: fx.GraphModule) -> fx.GraphModule:
    """Write `interpolate`/`Upsample` by 2 or 4, mode nearest, as two `repeat_interleave`, for devices without a resize."""
    return rewrite(module, lambda scale: (scale, scale) if type(scale) in (int, float) else listed(scale))
