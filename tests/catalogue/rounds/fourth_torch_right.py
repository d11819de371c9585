"""Right passes of the fourth round that are written for torch.fx."""

import torch
import torch.fx

from ..rows import sound


def _dims(values):
    """Literal dimensions given one by one or as one tuple."""
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = values[0]
    values = tuple(values)
    return values if values and all(type(value) is int for value in values) else None


def _permute(node):
    """The input and the non-negative dimensions of a valid permute, or None."""
    if not isinstance(node, torch.fx.Node):
        return None
    if node.op == "call_method" and node.target == "permute":
        values = node.args[1:] if not node.kwargs else (node.kwargs.get("dims"),) if len(node.args) == 1 else ()
    elif node.op == "call_function" and node.target is torch.permute and not node.kwargs and len(node.args) == 2:
        values = node.args[1:]
    else:
        return None
    dims = _dims(values)
    if dims is None or not isinstance(node.args[0], torch.fx.Node):
        return None
    rank = len(dims)
    if not all(-rank <= dim < rank for dim in dims):
        return None
    dims = tuple(dim % rank for dim in dims)
    return (node.args[0], dims) if len(set(dims)) == rank else None


def _after(node, rank):
    """The dimensions by which a permute or transpose of a value of known rank permutes it, or None."""
    permutation = _permute(node)
    if permutation is not None:
        return permutation[1] if len(permutation[1]) == rank else None
    is_transpose = (node.op == "call_method" and node.target == "transpose") or (
        node.op == "call_function" and node.target is torch.transpose
    )
    if not is_transpose or node.kwargs or len(node.args) != 3:
        return None
    first, second = node.args[1:]
    if type(first) is not int or type(second) is not int or not all(-rank <= d < rank for d in (first, second)):
        return None
    dims = list(range(rank))
    dims[first % rank], dims[second % rank] = dims[second % rank], dims[first % rank]
    return tuple(dims)


@sound(4)
def compose_permutes_and_transposes(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Compose a permute and the permute or transpose right after it."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op not in ("call_method", "call_function") or not node.args:
            continue
        before = _permute(node.args[0])
        if before is None or node.args[0].next is not node:
            continue
        source, first = before
        second = _after(node, len(first))
        if second is None:
            continue
        inner = node.args[0]
        with graph.inserting_before(node):
            new = graph.call_method("permute", (source, *(first[dim] for dim in second)))
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        if not inner.users:
            graph.erase_node(inner)
    graph.lint()
    graph_module.recompile()
    return graph_module
