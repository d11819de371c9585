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


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        method = node.op == "call_method" and node.target == "sum"
        function = node.op == "call_function" and node.target is torch.sum
        if not (method or function) or set(node.kwargs) - {"dim"} or len(node.args) + len(node.kwargs) != 2:
            continue
        dim = node.kwargs.get("dim", node.args[-1])
        stack = node.args[0] if node.args else None
        if not isinstance(stack, Node) or stack.op != "call_function" or stack.target is not torch.stack:
            continue
        if set(stack.kwargs) - {"dim"} or not 1 <= len(stack.args) <= 2 or len(stack.args) + len(stack.kwargs) > 2:
            continue
        place = stack.kwargs.get("dim", stack.args[1] if len(stack.args) == 2 else 0)
        parts = stack.args[0]
        if type(dim) is not int or type(place) is not int or dim != 0 or place != 0 or len(stack.users) != 1:
            continue
        if not isinstance(parts, (list, tuple)) or len(parts) < 2 or not follows(node, stack):
            continue
        if careful:
            tables = [_plain(graph_module, part, nn.Embedding) for part in parts]
            kinds = {None if table is None else table.weight.dtype for table in tables}
            if kinds not in ({torch.float32}, {torch.float64}):
                continue
        total = parts[0]
        with graph.inserting_before(node):
            for part in parts[1:]:
                total = graph.call_function(operator.add, (total, part))
        node.replace_all_uses_with(total)
        graph.erase_node(node)
        graph.erase_node(stack)
    return finish(graph_module)


@fault(14, wrong="sum makes int64 of smaller integers and counts booleans; additions keep the type.")
def sum_of_stack(graph_module: GraphModule) -> GraphModule:
    """Replace stack([a, b, c]).sum(0) by a + b + c."""
    return _rewrite(graph_module, False)
