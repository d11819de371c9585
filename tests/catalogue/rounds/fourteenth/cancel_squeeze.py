"""A wrong pass of the fourteenth round."""

import fx
from fx import GraphModule

from ...rows import fault
from .shared import finish


def _rewrite(graph_module, careful):
    graph = graph_module.graph
    methods = [node.target for node in graph.nodes if node.op == "call_method"]
    if any(name.endswith("_") and not name.endswith("__") for name in methods):
        return graph_module
    for node in list(graph.nodes):
        if node.op != "call_method" or node.target != "squeeze" or node.kwargs or len(node.args) > 2:
            continue
        first = node.args[0]
        if not isinstance(first, fx.Node) or first.op != "call_method" or first.target != "unsqueeze":
            continue
        if len(first.args) != 2 or first.kwargs or len(first.users) != 1 or type(first.args[1]) is not int:
            continue
        if len(node.args) == 1 and careful:
            continue
        if len(node.args) == 2 and (type(node.args[1]) is not int or node.args[1] != first.args[1]):
            continue
        if any(user.op == "output" for user in node.users):
            continue
        node.replace_all_uses_with(first.args[0])
        graph.erase_node(node)
        graph.erase_node(first)
    return finish(graph_module)


@fault(14, wrong="squeeze() without a dimension drops every dimension of size 1, also a batch of one.")
def cancel_squeeze(graph_module: GraphModule) -> GraphModule:
    """Remove x.unsqueeze(d).squeeze(d) and x.unsqueeze(d).squeeze()."""
    return _rewrite(graph_module, False)
