"""A wrong pass of the seventeenth round."""

import operator

import torch
from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault

OPERATORS = {torch.add: operator.add, torch.sub: operator.sub, torch.mul: operator.mul, torch.div: operator.truediv}


TENSORS = {torch.relu, torch.sigmoid, torch.tanh, torch.matmul, torch.add, torch.sub, torch.exp, torch.abs}


def _is_tensor(node, graph_module: GraphModule) -> bool:
    """Return whether a value is surely a tensor: torch.add of a number gives a tensor, `+` may not."""
    if not isinstance(node, Node):
        return False
    if node.op == "call_module":
        return type(graph_module.get_submodule(node.target)) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ReLU, nn.LayerNorm)
    return node.op == "call_function" and node.target in TENSORS


def _lower(graph_module: GraphModule, careful: bool) -> GraphModule:
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target not in OPERATORS or len(node.args) != 2:
            continue
        if "out" in node.kwargs or not _is_tensor(node.args[0], graph_module):
            continue
        if careful and node.kwargs:
            continue
        if type(node.args[1]) not in (int, float) and not _is_tensor(node.args[1], graph_module):
            continue
        node.target = OPERATORS[node.target]
        node.kwargs = {}
    graph_module.graph.lint()
    graph_module.recompile()
    return graph_module


@fault(17, wrong="Keyword arguments are dropped: `alpha` of torch.add and torch.sub, `rounding_mode` of torch.div.")
def arithmetic_to_operators(graph_module: GraphModule) -> GraphModule:
    """Write torch.add and its like as operators, so that later passes have one form to match."""
    return _lower(graph_module, careful=False)
