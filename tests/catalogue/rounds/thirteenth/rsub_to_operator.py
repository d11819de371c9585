"""A wrong pass of the thirteenth round."""

import operator

import torch

from fx import GraphModule

from ...rows import fault


def _finish(gm: GraphModule) -> GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


def _rewrite(gm: GraphModule, careful: bool) -> GraphModule:
    for node in gm.graph.find_nodes(op="call_function", target=torch.rsub):
        if len(node.args) != 2 or not hasattr(node.args[0], "op") or type(node.args[1]) not in (int, float):
            continue
        if not set(node.kwargs) <= {"alpha"} or careful and node.kwargs.get("alpha", 1) != 1:
            continue
        if careful and type(node.kwargs.get("alpha", 1)) is not int:
            continue
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(operator.sub, (node.args[1], node.args[0]))
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)
    return _finish(gm)


@fault(13, wrong="alpha, by which torch.rsub multiplies its input, is not looked at.")
def rsub_to_operator(graph_module: GraphModule) -> GraphModule:
    """Writes torch.rsub as the operator minus, which importers map."""
    return _rewrite(graph_module, careful=False)
