"""A wrong pass of the seventh round."""

import torch
from torch import nn

import fx

from ...rows import fault


def plain(layer, *kinds):
    """Return whether a layer is exactly of one of these classes and has no hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return type(layer) in kinds and "forward" not in vars(layer) and not any(getattr(layer, name) for name in hooks)


def rewrite(module, accepts):
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            continue
        norm = module.get_submodule(node.target)
        if not plain(norm, nn.InstanceNorm2d) or not accepts(norm):
            continue
        x = node.args[0]
        with graph.inserting_before(node):
            mean = graph.call_function(torch.mean, (x, (-2, -1)), {"keepdim": True})
            centred = graph.call_function(torch.sub, (x, mean))
            square = graph.call_function(torch.mul, (centred, centred))
            variance = graph.call_function(torch.mean, (square, (-2, -1)), {"keepdim": True})
            factor = graph.call_function(torch.rsqrt, (graph.call_function(torch.add, (variance, norm.eps)),))
            result = graph.call_function(torch.mul, (centred, factor))
            if norm.weight is not None:
                weight = graph.call_method("view", (graph.get_attr(f"{node.target}.weight"), -1, 1, 1))
                bias = graph.call_method("view", (graph.get_attr(f"{node.target}.bias"), -1, 1, 1))
                result = graph.call_function(torch.add, (graph.call_function(torch.mul, (result, weight)), bias))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    module.recompile()
    return module


@fault(
    7,
    wrong="A norm with track_running_stats normalizes by its running statistics in evaluation, not by those of the input.",
)
def decompose_instance_norm(module: fx.GraphModule) -> fx.GraphModule:
    """Write `InstanceNorm2d` as mean, variance and `rsqrt` over the two last dimensions, with and without batch dimension."""
    return rewrite(module, lambda norm: True)
