"""Right passes of the fifth round for fx, part 2."""

import operator

import torch
import torch.nn.functional as F

import fx

from ..rows import sound

TENSORS_R08 = {
    torch.sin,
    torch.cos,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    torch.matmul,
    torch.abs,
    F.linear,
    F.relu,
    F.gelu,
}


def base_r08(node):
    """The tensor that a node squares, or None."""
    if node.op == "call_function" and node.target is operator.pow:
        if len(node.args) != 2 or type(node.args[1]) is not int or node.args[1] != 2:
            return None
        base = node.args[0]
        is_tensor = isinstance(base, fx.Node) and base.op == "call_function" and base.target in TENSORS_R08
        return base if is_tensor else None
    method = node.op == "call_method" and node.target == "pow"
    if not method and not (node.op == "call_function" and node.target is torch.pow):
        return None
    if len(node.args) == 2 and not node.kwargs:
        base, exponent = node.args
    elif len(node.args) == 1 and set(node.kwargs) == {"exponent"}:
        base, exponent = node.args[0], node.kwargs["exponent"]
    else:
        return None
    return base if isinstance(base, fx.Node) and type(exponent) is int and exponent == 2 else None


@sound(5)
def square_of_tensors(graph_module):
    """Writes a tensor to the power 2 as torch.square."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        base = base_r08(node)
        if base is None:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(torch.square, (base,))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module
