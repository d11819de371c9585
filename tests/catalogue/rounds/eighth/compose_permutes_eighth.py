"""A wrong pass of the eighth round."""

import torch

import fx

from ...rows import fault


def _order(node):
    """The dimensions of a permute, counted from the front."""
    if not isinstance(node, fx.Node) or not node.args:
        return None
    if node.op == "call_method" and node.target == "permute":
        dims = node.args[1:] or (node.kwargs.get("dims"),)
    elif node.op == "call_function" and node.target is torch.permute:
        dims = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dims"),)
    else:
        return None
    if len(dims) == 1 and isinstance(dims[0], (list, tuple)):
        dims = tuple(dims[0])
    if not dims or not all(type(dim) is int and -len(dims) <= dim < len(dims) for dim in dims):
        return None
    order = [dim % len(dims) for dim in dims]
    return order if sorted(order) == list(range(len(order))) else None


def _rewrite(module, compose):
    graph = module.graph
    for node in list(graph.nodes):
        second = _order(node)
        before = node.args[0] if second else None
        first = _order(before)
        if first is None or len(first) != len(second) or len(before.users) != 1 or node.prev is not before:
            continue
        with graph.inserting_before(node):
            both = graph.call_method("permute", (before.args[0], *compose(first, second)))
        node.replace_all_uses_with(both)
        graph.erase_node(node)
        graph.erase_node(before)
    module.recompile()
    return module


@fault(
    8,
    wrong="The two orders are composed the wrong way round, which pairs that undo each other (NCHW, NHWC) do not show.",
)
def compose_permutes_eighth(module: fx.GraphModule) -> fx.GraphModule:
    """Make one permute of two that follow each other."""
    return _rewrite(module, lambda first, second: [second[dim] for dim in first])
