"""A wrong pass of the fourteenth round."""

import torch
from torch.fx import GraphModule

from ...rows import fault
from .shared import finish, follows

_INDICES = {"argmax", "argmin", "argsort"}


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    table = _INDICES if careful else _INDICES | {"topk"}
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "detach" or len(node.args) != 1 or len(node.users) != 1:
            continue
        user = next(iter(node.users))
        if user.op == "call_method":
            name = user.target
        elif user.op == "call_function" and user.target in [getattr(torch, function) for function in table]:
            name = user.target.__name__
        else:
            continue
        if name not in table or user.all_input_nodes != [node] or "out" in user.kwargs or not follows(user, node):
            continue
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    return finish(graph_module)


@fault(14, wrong="topk is in the table, but only its indices have no gradient; its values have.")
def drop_useless_detach(graph_module: GraphModule) -> GraphModule:
    """Remove detach before operations whose results carry no gradient."""
    return _rewrite(graph_module, False)
