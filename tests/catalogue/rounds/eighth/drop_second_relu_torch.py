"""A right pass of the eighth round."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from ...rows import sound

_FUNCTIONS = (torch.relu, F.relu, F.relu6, torch.sigmoid)


_MODULES = (nn.ReLU, nn.ReLU6, nn.Sigmoid)


def _called(module, node, functions, methods, modules):
    """Return whether the node is one of these operations, on one value, as torch defines it."""
    if not isinstance(node, Node) or len(node.args) != 1 or set(node.kwargs) - {"inplace"}:
        return False
    if node.op == "call_module":
        layer = module.get_submodule(node.target)
        hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
        return type(layer) in modules and not hooked and "forward" not in vars(layer)
    if node.op == "call_method":
        return node.target in methods
    return node.op == "call_function" and any(node.target is function for function in functions)


def _writes(module, node):
    """Return whether the operation writes to its argument, which may have other readers."""
    if node.op == "call_module":
        return bool(getattr(module.get_submodule(node.target), "inplace", False))
    return bool(node.kwargs.get("inplace", False))


@sound(8)
def drop_second_relu(module: GraphModule) -> GraphModule:
    """Drop a ReLU directly behind another one, behind ReLU6 or behind a sigmoid."""
    graph = module.graph
    for node in list(graph.nodes):
        if not _called(module, node, (torch.relu, F.relu), ("relu",), (nn.ReLU,)):
            continue
        before = node.args[0]
        if not _called(module, before, _FUNCTIONS, ("relu", "sigmoid"), _MODULES) or _writes(module, before):
            continue
        if node.prev is not before or len(before.users) != 1:
            continue
        node.replace_all_uses_with(before)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
