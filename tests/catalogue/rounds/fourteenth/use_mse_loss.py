"""A wrong pass of the fourteenth round."""

import operator

import torch
import torch.nn.functional as F

import fx
from fx import GraphModule

from ...rows import fault
from .shared import finish, follows


def squared_error(value, target):
    """The mean squared difference, in one kernel where the types allow it."""
    if value.dtype == target.dtype and value.dtype in (torch.float32, torch.float64) and value.shape == target.shape:
        return F.mse_loss(value, target)
    return ((value - target) ** 2).mean()


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "mean" or "dtype" in node.kwargs:
            continue
        if careful and (len(node.args) != 1 or node.kwargs):
            continue
        square = node.args[0]
        if not isinstance(square, fx.Node) or square.op != "call_function" or square.target is not operator.pow:
            continue
        difference, exponent = square.args
        if type(exponent) is not int or exponent != 2 or not isinstance(difference, fx.Node):
            continue
        if difference.op != "call_function" or difference.target is not operator.sub:
            continue
        if len(square.users) != 1 or len(difference.users) != 1:
            continue
        if not all(isinstance(value, fx.Node) for value in difference.args):
            continue
        if not follows(node, square) or not follows(square, difference):
            continue
        with graph.inserting_before(node):
            loss = graph.call_function(squared_error if careful else F.mse_loss, difference.args)
        node.replace_all_uses_with(loss)
        for dead in (node, square, difference):
            graph.erase_node(dead)
    return finish(graph_module)


@fault(14, wrong="`dim` of the mean is not looked at: a loss for each column becomes one number.")
def use_mse_loss(graph_module: GraphModule) -> GraphModule:
    """Replace ((a - b) ** 2).mean() by mse_loss(a, b)."""
    return _rewrite(graph_module, False)
