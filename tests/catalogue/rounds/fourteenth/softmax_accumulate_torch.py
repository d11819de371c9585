"""A wrong pass of the fourteenth round."""

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ...rows import fault
from .shared import finish, follows


def _is_float(node):
    if not isinstance(node, Node) or node.op != "call_method" or node.kwargs:
        return False
    return node.target == "float" and len(node.args) == 1


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.softmax or len(node.args) != 1:
            continue
        if set(node.kwargs) - {"dim", "_stacklevel", "dtype"} or node.kwargs.get("dtype") is not None:
            continue
        if type(node.kwargs.get("dim")) is not int:
            continue
        before = node.args[0]
        after = next(iter(node.users)) if len(node.users) == 1 else None
        if _is_float(before) and len(before.users) == 1 and follows(node, before):
            node.update_arg(0, before.args[0])
            node.update_kwarg("dtype", torch.float32)
            graph.erase_node(before)
        elif not careful and _is_float(after):
            node.update_kwarg("dtype", torch.float32)
            after.replace_all_uses_with(node)
            graph.erase_node(after)
    return finish(graph_module)


@fault(14, wrong="The cast after the softmax is taken for a cast before it: eager rounds to half first.")
def softmax_accumulate(graph_module: GraphModule) -> GraphModule:
    """Replace a softmax with a cast to float32 by softmax(..., dtype=torch.float32)."""
    return _rewrite(graph_module, False)
