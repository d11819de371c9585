"""A right pass of the eighth round."""

import torch

import fx

from ...rows import sound

_NAMES = ("input", "other")


def _compares_with_zero(node):
    """Return the `x` of `torch.eq(x, 0)` or `x.eq(0)`, else None; `==` may compare sizes, which are no tensors."""
    if not (node.op == "call_function" and node.target is torch.eq or node.op == "call_method" and node.target == "eq"):
        return None
    if len(node.args) > 2 or set(node.kwargs) - set(_NAMES):
        return None
    arguments = dict(zip(_NAMES, node.args), **node.kwargs)
    if set(arguments) != set(_NAMES) or not isinstance(arguments["input"], fx.Node):
        return None
    return arguments["input"] if type(arguments["other"]) in (int, float) and arguments["other"] == 0 else None


@sound(8)
def equal_zero_to_not(module: fx.GraphModule) -> fx.GraphModule:
    """Replace the comparison of a tensor with the number zero by `torch.logical_not`."""
    graph = module.graph
    for node in list(graph.nodes):
        value = _compares_with_zero(node)
        if value is None:
            continue
        with graph.inserting_before(node):
            empty = graph.call_function(torch.logical_not, (value,))
        node.replace_all_uses_with(empty)
        graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module
