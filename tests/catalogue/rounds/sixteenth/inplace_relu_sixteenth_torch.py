"""A wrong pass of the sixteenth round."""

import torch
import torch.fx
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


_FRESH_MODULES = (nn.Linear, nn.Conv1d, nn.Conv2d)


_FRESH_FUNCTIONS = (torch.sigmoid, torch.tanh, torch.exp, torch.softmax)


def _makes_its_own(node: Node, modules: dict, careful: bool) -> bool:
    if node.op == "call_module":
        return any(_plain(modules[node.target], kind) for kind in _FRESH_MODULES)
    return not careful and node.op == "call_function" and node.target in _FRESH_FUNCTIONS and "out" not in node.kwargs


def _rewrite(graph_module: torch.fx.GraphModule, careful: bool) -> torch.fx.GraphModule:
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not torch.relu or len(node.args) != 1 or node.kwargs:
            continue
        value = node.args[0]
        if not isinstance(value, Node) or len(value.users) != 1 or not _makes_its_own(value, modules, careful):
            continue
        if node.prev is value:
            node.target = torch.relu_
    return finish(graph_module)


@fault(16, wrong="Autograd reads it too: sigmoid, tanh, exp and softmax save their result for the backward pass.")
def inplace_relu_sixteenth(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Runs torch.relu in place where nothing else reads the tensor that it is applied to."""
    return _rewrite(graph_module, careful=False)
