"""A right pass of the sixteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import sound
from .shared import finish


def _plain(module: nn.Module, kind: type) -> bool:
    """Exactly of this class and without hooks."""
    return type(module) is kind and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _rewrite(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(modules[node.target], nn.Upsample):
            continue
        if len(node.args) != 1 or node.kwargs:
            continue
        layer = modules[node.target]
        settings = {
            "size": layer.size,
            "scale_factor": layer.scale_factor,
            "mode": layer.mode,
            "align_corners": layer.align_corners,
            "recompute_scale_factor": layer.recompute_scale_factor,
        }
        with graph.inserting_before(node):
            inlined = graph.call_function(F.interpolate, (node.args[0],), settings)
        node.replace_all_uses_with(inlined)
        graph.erase_node(node)
    return finish(graph_module)


@sound(16)
def inline_upsample(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Writes nn.Upsample modules as F.interpolate."""
    return _rewrite(graph_module)
