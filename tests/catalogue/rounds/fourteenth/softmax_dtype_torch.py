"""A right pass of the fourteenth round."""

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from ...rows import sound
from .shared import finish, follows


@sound(14)
def softmax_dtype(graph_module: GraphModule) -> GraphModule:
    """Replace softmax(x.float(), dim) by softmax(x, dim, dtype=torch.float32)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not F.softmax or len(node.args) != 1:
            continue
        if set(node.kwargs) - {"dim", "_stacklevel", "dtype"} or node.kwargs.get("dtype") is not None:
            continue
        cast = node.args[0]
        if not isinstance(cast, Node) or cast.op != "call_method" or cast.target != "float" or len(cast.args) != 1:
            continue
        if cast.kwargs or len(cast.users) != 1 or type(node.kwargs.get("dim")) is not int or not follows(node, cast):
            continue
        node.update_arg(0, cast.args[0])
        node.update_kwarg("dtype", torch.float32)
        graph.erase_node(cast)
    return finish(graph_module)
