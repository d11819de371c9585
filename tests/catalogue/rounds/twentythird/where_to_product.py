"""A wrong pass of the twentythird round."""

import operator

import torch

import fx

from ...rows import fault

_BOOLEAN = {operator.gt, operator.lt, operator.ge, operator.le, torch.gt, torch.lt, torch.isfinite}


_FLOAT = {torch.log, torch.exp, torch.sigmoid, torch.tanh, torch.sqrt, torch.rsqrt, torch.reciprocal}


def _product(graph, mask, value):
    return graph.call_function(torch.mul, (value, mask))


def _rewrite(gm, chosen):
    graph = gm.graph
    for node in graph.find_nodes(op="call_function", target=torch.where):
        if len(node.args) != 3 or node.kwargs or type(node.args[2]) not in (int, float) or node.args[2] != 0:
            continue
        mask, value, _ = node.args
        if not all(isinstance(part, fx.Node) and part.op == "call_function" for part in (mask, value)):
            continue
        if mask.target not in _BOOLEAN or value.target not in _FLOAT or {"out"} & ({*mask.kwargs} | {*value.kwargs}):
            continue
        with graph.inserting_before(node):
            result = chosen(graph, mask, value)
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(23, wrong="Where the value that the mask hides is infinite or NaN, the product with zero is NaN, not zero.")
def where_to_product(gm):
    """Multiply by the mask instead of choosing between a value and zero, since a product fuses with what stands around it."""
    return _rewrite(gm, _product)
