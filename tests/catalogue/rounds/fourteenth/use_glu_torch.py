"""A wrong pass of the fourteenth round."""

import operator

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import finish


def _plain(graph_module, node, kind):
    """The module that a node calls, if it is exactly of that kind and has no hooks."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    module = graph_module.get_submodule(node.target)
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    if type(module) is not kind or hooked or len(node.args) != 1 or node.kwargs:
        return None
    return module


def _float_linear(graph_module, node):
    """The Linear that a node calls, whose result is float32 or float64."""
    module = _plain(graph_module, node, nn.Linear)
    return module if module is not None and module.weight.dtype in (torch.float32, torch.float64) else None


def _half(node):
    """The chunk that a node takes a half of, and which half."""
    if not isinstance(node, Node) or node.op != "call_function" or node.target is not operator.getitem:
        return None
    return (node.args[0], node.args[1]) if len(node.users) == 1 and node.args[1] in (0, 1) else None


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.mul or node.kwargs:
            continue
        plain, gate = node.args
        if not isinstance(gate, Node) or gate.op != "call_function" or gate.target is not torch.sigmoid:
            continue
        if len(gate.users) != 1 or len(gate.args) != 1 or gate.kwargs:
            continue
        first, second = _half(plain), _half(gate.args[0])
        if first is None or second is None or first[0] is not second[0] or {first[1], second[1]} != {0, 1}:
            continue
        if careful and (first[1], second[1]) != (0, 1):
            continue
        chunk = first[0]
        if (
            chunk.op != "call_method"
            or chunk.target != "chunk"
            or len(chunk.users) != 2
            or chunk.kwargs not in ({}, {"dim": -1})
        ):
            continue
        if chunk.args[1:] not in ((2, -1), (2,)) or (len(chunk.args) == 3) == bool(chunk.kwargs):
            continue
        layer = _float_linear(graph_module, chunk.args[0])
        if layer is None or layer.weight.shape[0] % 2 or layer.weight.shape[0] == 0:
            continue
        inner = {chunk, plain, gate, gate.args[0]}
        between = node.prev
        while between in inner:
            inner.discard(between)
            between = between.prev
        if inner:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(F.glu, (chunk.args[0],), {"dim": -1})
        node.replace_all_uses_with(new)
        for dead in [node, gate, plain, *[half for half in chunk.users if half is not plain], chunk]:
            graph.erase_node(dead)
    return finish(graph_module)


@fault(14, wrong="Which half goes into the sigmoid is not looked at; glu takes the second one.")
def use_glu(graph_module: GraphModule) -> GraphModule:
    """Replace a * sigmoid(b), where a and b are halves of one value, by F.glu."""
    return _rewrite(graph_module, False)
