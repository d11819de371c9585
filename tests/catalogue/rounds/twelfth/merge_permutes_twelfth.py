"""A right pass of the twelfth round."""

import torch

import fx

from ...rows import sound


def _dims(node):
    """The literal dimensions of a permute of the first argument, all from the front, or None."""
    if not isinstance(node, fx.Node) or node.kwargs or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if not (node.op == "call_method" and node.target == "permute") and node.target is not torch.permute:
        return None
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = dims[0]
    if not dims or not all(type(d) is int for d in dims):
        return None
    if sorted(d % len(dims) for d in dims) != list(range(len(dims))):
        return None
    return [d % len(dims) for d in dims]


@sound(12)
def merge_permutes_twelfth(module: fx.GraphModule) -> fx.GraphModule:
    """Merge a permute of a permute into one."""
    graph = module.graph
    for node in list(graph.nodes):
        second = _dims(node)
        inner = node.args[0] if second else None
        first = _dims(inner)
        if first is None or len(first) != len(second) or node.prev is not inner:
            continue
        with graph.inserting_before(node):
            merged = graph.call_method("permute", (inner.args[0], *[first[d] for d in second]))
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
        if not inner.users:
            graph.erase_node(inner)
    module.recompile()
    return module
