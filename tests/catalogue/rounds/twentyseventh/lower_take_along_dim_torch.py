"""A wrong pass of the twentyseventh round."""

import torch
import torch.fx

from ...rows import fault


def _lower(gm, make):
    for node in list(gm.graph.nodes):
        function = node.op == "call_function" and node.target is torch.take_along_dim
        method = node.op == "call_method" and node.target == "take_along_dim"
        if not (function or method) or len(node.args) not in (2, 3) or set(node.kwargs) - {"dim"}:
            continue
        x, indices = node.args[:2]
        dim = node.args[2] if len(node.args) == 3 else node.kwargs.get("dim")
        if type(dim) is not int or not isinstance(x, torch.fx.Node) or not isinstance(indices, torch.fx.Node):
            continue
        with gm.graph.inserting_before(node):
            lowered = make(gm.graph, x, indices, dim)
        node.replace_all_uses_with(lowered)
        gm.graph.erase_node(node)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(27, wrong="take_along_dim broadcasts its input and its indices against each other; gather does not.")
def lower_take_along_dim(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """take_along_dim becomes gather, which is what an exporter has an operator for."""
    return _lower(gm, lambda graph, x, indices, dim: graph.call_function(torch.gather, (x, dim, indices)))
