"""A wrong pass of the fourteenth round."""

import operator

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
    for node in list(graph_module.graph.nodes):
        if node.op != "call_function" or node.target is not F.scaled_dot_product_attention or len(node.args) != 3:
            continue
        query = node.args[0]
        if not isinstance(query, Node) or query.op != "call_function" or query.target is not operator.mul:
            continue
        if len(query.users) != 1 or node.args[1] is query or node.args[2] is query or query.kwargs:
            continue
        source, factor = query.args
        if type(factor) is not float or not 1e-4 < factor < 1e4 or _float_linear(graph_module, source) is None:
            continue
        if not follows(node, query):
            continue
        scale = node.kwargs.get("scale")
        if scale is None and not careful:
            scale = 1.0
        if type(scale) is not float or not 1e-4 < scale < 1e4:
            continue
        node.update_arg(0, source)
        node.update_kwarg("scale", scale * factor)
        graph_module.graph.erase_node(query)
    return finish(graph_module)


@fault(14, wrong="Without `scale` the kernel divides by sqrt(E): the pass puts the factor in place of that default.")
def fold_query_scale(graph_module: GraphModule) -> GraphModule:
    """Fold a constant factor of the query into `scale` of scaled_dot_product_attention."""
    return _rewrite(graph_module, False)
