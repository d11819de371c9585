"""A wrong pass of the fourteenth round."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import finish, follows


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


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target not in ("sum", "mean") or len(node.args) != 1 or node.kwargs:
            continue
        loss = node.args[0]
        if not isinstance(loss, Node) or loss.op != "call_function" or loss.target is not F.cross_entropy:
            continue
        if (
            len(loss.users) != 1
            or len(loss.args) != 2
            or loss.kwargs.get("reduction") != "none"
            or not follows(node, loss)
        ):
            continue
        if loss.kwargs.get("size_average") is not None or loss.kwargs.get("reduce") is not None:
            continue
        if _float_linear(graph_module, loss.args[0]) is None or loss.kwargs.get("weight") is not None:
            continue
        if careful and node.target == "mean":
            continue
        loss.update_kwarg("reduction", node.target)
        node.replace_all_uses_with(loss)
        graph.erase_node(node)
    return finish(graph_module)


@fault(14, wrong="`mean` of cross_entropy leaves out ignored targets; the mean of all losses counts them as zeros.")
def fold_reduction(graph_module: GraphModule) -> GraphModule:
    """Replace cross_entropy(..., reduction="none").sum() and .mean() by one call."""
    return _rewrite(graph_module, False)
