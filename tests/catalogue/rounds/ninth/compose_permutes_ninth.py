"""A wrong pass of the ninth round."""

import torch

import fx

from ...rows import fault

_METADATA = {"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "resize_", "set_", "as_strided_"}


def _dims(node):
    if not isinstance(node, fx.Node) or node.kwargs:
        return None
    if node.op == "call_method" and node.target == "permute":
        rest = node.args[1:]
    elif node.op == "call_function" and node.target is torch.permute:
        rest = node.args[1:]
    else:
        return None
    dims = rest[0] if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    if not dims or not all(type(dim) is int for dim in dims):
        return None
    return [dim % len(dims) for dim in dims]


def _run(module, right):
    graph = module.graph
    if any(node.op == "call_method" and node.target in _METADATA for node in graph.nodes):
        return module
    for outer in list(graph.nodes):
        second = _dims(outer)
        inner = outer.args[0] if second else None
        first = _dims(inner)
        if first is None or len(first) != len(second) or list(inner.users) != [outer]:
            continue
        both = [first[dim] for dim in second] if right else [second[dim] for dim in first]
        with graph.inserting_before(inner):
            new = graph.call_function(torch.permute, (inner.args[0], tuple(both)))
        outer.replace_all_uses_with(new)
        graph.erase_node(outer)
        graph.erase_node(inner)
    graph.lint()
    module.recompile()
    return module


@fault(
    9,
    wrong="Composes the two permutations in the wrong order, which is the same only where they commute (as inverses do).",
)
def compose_permutes_ninth(module: fx.GraphModule) -> fx.GraphModule:
    """Make one permutation of two that follow each other."""
    return _run(module, False)
