"""A wrong pass of the sixteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

from ...rows import fault
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


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op != "call_module" or not _plain(modules[node.target], nn.RMSNorm):
            continue
        if len(node.args) != 1 or node.kwargs:
            continue
        norm = modules[node.target]
        eps = norm.eps
        if eps is None and not careful:
            eps = torch.finfo(torch.float32).eps
        with graph.inserting_before(node):
            weight = None if norm.weight is None else graph.get_attr(f"{node.target}.weight")
            inlined = graph.call_function(F.rms_norm, (node.args[0], tuple(norm.normalized_shape), weight, eps))
        node.replace_all_uses_with(inlined)
        graph.erase_node(node)
    return finish(graph_module)


@fault(16, wrong="eps=None is replaced by the epsilon of float32; it should depend on the dtype of the input.")
def inline_rms_norm_sixteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Writes nn.RMSNorm modules as F.rms_norm with the weight read by get_attr."""
    return _rewrite(graph_module, careful=False)
