"""A right pass of the seventh round."""

import torch

import fx

from ...rows import sound


def permuted(node):
    """Return the operand of a permute and the permutation if that is constant, else None."""
    method = node.op == "call_method" and node.target == "permute"
    if not method and not (node.op == "call_function" and node.target is torch.permute):
        return None
    if node.kwargs or len(node.args) < 2 or not isinstance(node.args[0], fx.Node):
        return None
    dims = node.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = dims[0]
    rank = len(dims)
    if any(type(dim) is not int or not -rank <= dim < rank for dim in dims):
        return None
    dims = [dim % rank for dim in dims]
    return (node.args[0], dims) if len(set(dims)) == rank else None


def switches_modes(graph):
    """Return whether the grad mode or another mode changes: then it matters where a view is made."""
    names = [getattr(node.target, "__name__", "") for node in graph.nodes if node.op == "call_function"]
    return any(word in name for name in names for word in ("grad", "inference", "autocast", "mode"))


@sound(7)
def compose_permutes_seventh(module: fx.GraphModule) -> fx.GraphModule:
    """Compose consecutive `permute`s by constant dimensions, where nothing else sees the value in between."""
    graph = module.graph
    if switches_modes(graph):
        return module
    for node in list(graph.nodes):
        outer = permuted(node)
        inner = outer and permuted(outer[0])
        if not inner or len(outer[0].users) != 1 or len(inner[1]) != len(outer[1]):
            continue
        below = outer[0]
        with graph.inserting_before(below):
            once = graph.call_function(torch.permute, (inner[0], tuple(inner[1][dim] for dim in outer[1])))
        node.replace_all_uses_with(once)
        graph.erase_node(node)
        graph.erase_node(below)
    graph.lint()
    module.recompile()
    return module
