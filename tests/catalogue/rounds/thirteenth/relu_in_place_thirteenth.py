"""A wrong pass of the thirteenth round."""

import torch
import torch.nn.functional as F
from torch import nn

from fx import GraphModule

from ...rows import fault


def _plain(module: nn.Module, kind: type) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and "forward" not in vars(module) and not any(hooks)


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


LAYERS = (nn.Linear, nn.Conv2d)


VIEWS = ("reshape", "flatten")


def _makes_memory(gm: GraphModule, node, careful: bool) -> bool:
    """Return whether the value is a new tensor that autograd does not save."""
    if node.op == "call_module":
        return any(_plain(gm.get_submodule(node.target), layer) for layer in LAYERS)
    if node.op == "call_method" and not careful:
        return node.target in VIEWS
    return node.op == "call_function" and node.target in (F.linear, F.conv2d)


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in (F.relu, torch.relu):
            continue
        if len(node.args) != 1 or node.kwargs not in ({}, {"inplace": False}):
            continue
        source = node.args[0]
        if hasattr(source, "op") and len(source.users) == 1 and _makes_memory(gm, source, careful):
            node.target, node.kwargs = torch.relu_, {}
    return _finish(gm)


@fault(
    13,
    wrong="A reshape is counted among the operations that make a tensor of their own, but it is a view of its input where it can.",
)
def relu_in_place_thirteenth(graph_module: GraphModule) -> GraphModule:
    """Lets F.relu reuse the memory of an intermediate that nothing else uses."""
    return _rewrite(graph_module, careful=False)
