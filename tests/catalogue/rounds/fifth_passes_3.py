"""Wrong passes of the fifth round for fx, part 3."""

import operator

import torch

import fx

from ..rows import fault

EQUATIONS_W18 = {"bij,bjk->bik": False, "bij,bkj->bik": True}


def contraction_w18(node):
    if node.op != "call_function" or node.target is not torch.einsum or len(node.args) != 3 or node.kwargs:
        return None
    if not isinstance(node.args[0], str):
        return None
    return EQUATIONS_W18.get(node.args[0].replace(" ", ""))


@fault(5, wrong="It forgot that einsum broadcasts dimensions of size 1: bmm wants equal batches.")
def einsum_to_bmm(graph_module):
    """Replaces the einsum of two batches of matrices by bmm."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        flip = contraction_w18(node)
        if flip is None:
            continue
        _, left, right = node.args
        with graph.inserting_before(node):
            if flip:
                right = graph.call_method("transpose", (right, 1, 2))
            product = graph.call_function(torch.bmm, (left, right))
        node.replace_all_uses_with(product)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def size_w20(node):
    """The tensor and the dimension that a size is of, or None."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_method" and node.target == "size" and len(node.args) == 2:
        return node.args
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        shape = node.args[0]
        if shape.target is getattr and shape.args[1] == "shape" and isinstance(node.args[1], int):
            return shape.args[0], node.args[1]
    return None


def average_w20(node):
    if node.target not in (operator.truediv, torch.div) or len(node.args) != 2 or node.kwargs:
        return None
    total = node.args[0]
    if not isinstance(total, fx.Node) or len(total.users) != 1:
        return None
    if total.target is not torch.sum and not (total.op == "call_method" and total.target == "sum"):
        return None
    if set(total.kwargs) - {"dim", "keepdim"}:
        return None
    dim = total.args[1] if len(total.args) > 1 else total.kwargs.get("dim")
    keep = total.args[2] if len(total.args) > 2 else total.kwargs.get("keepdim", False)
    if size_w20(node.args[1]) != (total.args[0], dim) or not isinstance(dim, int):
        return None
    return total.args[0], dim, keep


@fault(5, wrong="It forgot integer tensors: a sum over a size is a float there, and mean refuses integers.")
def mean_from_sum(graph_module):
    """Replaces x.sum(dim) / x.size(dim) by x.mean(dim)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        value_and_dim = average_w20(node)
        if value_and_dim is None:
            continue
        with graph.inserting_before(node):
            mean = graph.call_function(torch.mean, value_and_dim)
        node.replace_all_uses_with(mean)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module
