"""A wrong pass of the sixteenth round."""

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

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
        if node.op != "call_function" or node.target is not torch.mean or len(node.args) != 2:
            continue
        value, dims = node.args
        if not isinstance(dims, (tuple, list)) or tuple(dims) not in ((-2, -1), (-1, -2)):
            continue
        if node.kwargs.get("keepdim") is not True or "out" in node.kwargs or "input" in node.kwargs:
            continue
        if careful and set(node.kwargs) != {"keepdim"}:
            continue
        if not isinstance(value, Node) or value.op != "call_module" or not _plain(modules[value.target], nn.Conv2d):
            continue
        if modules[value.target].weight.dtype not in (torch.float32, torch.float64):
            continue
        with graph.inserting_before(node):
            pooled = graph.call_function(F.adaptive_avg_pool2d, (value, 1))
        node.replace_all_uses_with(pooled)
        graph.erase_node(node)
    return finish(graph_module)


@fault(16, wrong="The dtype argument of torch.mean is not looked at.")
def mean_to_pool(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Writes the mean over the last two dims of a convolution's output, kept, as adaptive average pooling."""
    return _rewrite(graph_module, careful=False)
