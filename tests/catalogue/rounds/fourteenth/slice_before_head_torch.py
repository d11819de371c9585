"""A wrong pass of the fourteenth round."""

import operator

import torch
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


def _is_slice(item):
    return isinstance(item, slice) and all(b is None or type(b) is int for b in (item.start, item.stop, item.step))


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not operator.getitem or not isinstance(node.args[1], tuple):
            continue
        head, index = node.args
        if _float_linear(graph_module, head) is None or len(head.users) != 1 or not follows(node, head):
            continue
        if len(index) < 2 or not all(type(item) is int or _is_slice(item) for item in index):
            continue
        if len(index) > 2 and index[-1] != slice(None):
            continue
        if careful and len(index) == 2 and index[-1] != slice(None):
            continue
        with graph.inserting_before(head):
            sliced = graph.call_function(operator.getitem, (head.args[0], index))
            new = graph.call_module(head.target, (sliced,))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(head)
    return finish(graph_module)


@fault(14, wrong="`[:, -1]` of a matrix picks a feature of the output, not a position.")
def slice_before_head(graph_module: GraphModule) -> GraphModule:
    """Move an index of positions from behind a Linear to before it."""
    return _rewrite(graph_module, False)
