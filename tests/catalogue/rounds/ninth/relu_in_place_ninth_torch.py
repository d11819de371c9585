"""A wrong pass of the ninth round."""

import torch
import torch.nn.functional as F
from torch import nn

from ...rows import fault

_FRESH = {nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d}


_ALSO = {nn.Dropout, nn.Dropout2d}


def _run(module, right):
    graph = module.graph
    fresh = _FRESH if right else _FRESH | _ALSO
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (F.relu, torch.relu) or len(node.args) != 1:
            continue
        if node.kwargs.get("inplace") or set(node.kwargs) - {"inplace"}:
            continue
        value = node.args[0]
        if not isinstance(value, torch.fx.Node) or value.op != "call_module" or list(value.users) != [node]:
            continue
        layer = module.get_submodule(value.target)
        if (
            type(layer) not in fresh
            or layer._forward_hooks
            or layer._backward_hooks
            or layer._backward_pre_hooks
            or "forward" in layer.__dict__
        ):
            continue
        node.target, node.args, node.kwargs = torch.relu_, (value,), {}
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Takes the result of dropout as memory of its own, but outside of training it is the input itself.")
def relu_in_place_ninth(module):
    """Let a ReLU write over the result of the layer before it, where nothing else uses that."""
    return _run(module, False)
