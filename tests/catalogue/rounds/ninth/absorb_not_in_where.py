"""A right pass of the ninth round."""

import operator

import torch

import fx

from ...rows import sound

_COMPARISONS = {
    torch.gt,
    torch.ge,
    torch.lt,
    torch.le,
    torch.eq,
    torch.ne,
    operator.gt,
    operator.ge,
    operator.lt,
    operator.le,
    operator.eq,
    operator.ne,
}


def _negated(node):
    """The comparison that a node is the negation of."""
    if not isinstance(node, fx.Node) or len(node.args) != 1 or node.kwargs or not isinstance(node.args[0], fx.Node):
        return None
    if node.op == "call_function":
        is_negation = node.target in (torch.logical_not, torch.bitwise_not, operator.invert)
    else:
        is_negation = node.op == "call_method" and node.target in ("logical_not", "bitwise_not")
    test = node.args[0]
    if not is_negation or test.op != "call_function" or test.target not in _COMPARISONS or test.kwargs:
        return None
    return test if list(test.users) == [node] else None


@sound(9)
def absorb_not_in_where(module: fx.GraphModule) -> fx.GraphModule:
    """Exchange the sides of torch.where instead of negating its condition."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.where or len(node.args) != 3 or node.kwargs:
            continue
        condition, yes, no = node.args
        test = _negated(condition)
        if test is None or list(condition.users) != [node] or condition in (yes, no):
            continue
        if sum(type(side) in (int, float) for side in (yes, no)) != 1:  # of two tensors the first gives the layout
            continue
        node.args = (test, no, yes)
        graph.erase_node(condition)
    graph.lint()
    module.recompile()
    return module
