"""A wrong pass of the twelfth round."""

import torch

from ...rows import fault


def _dims(node):
    """The literal dimensions of a permute, all from the front, or None."""
    if node.op == "call_method" and node.target == "permute" and not node.kwargs:
        dims = node.args[1:]
    elif node.target is torch.permute and len(node.args) == 2 and not node.kwargs:
        dims = node.args[1:]
    else:
        return None
    dims = list(dims[0]) if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else list(dims)
    if not dims or not all(type(d) is int for d in dims):
        return None
    return [d % len(dims) for d in dims]


def _index(node):
    if node.target not in ("unsqueeze", torch.unsqueeze):
        return None
    dims = [*node.args[1:], *node.kwargs.values()]
    return dims[0] if len(dims) == 1 and type(dims[0]) is int else None


def _run(gm, exact):
    graph = gm.graph
    for node in list(graph.nodes):
        if node.op not in ("call_method", "call_function") or _index(node) is None:
            continue
        permute = node.prev
        if not node.args or node.args[0] is not permute or len(permute.users) != 1:
            continue
        dims = _dims(permute)
        if dims is None:
            continue
        index = _index(node) % (len(dims) + 1)
        where = dims[index] if index < len(dims) else index
        inserted = where if exact else index
        adapted = [d + 1 if d >= inserted else d for d in dims]
        adapted.insert(index, inserted)
        with graph.inserting_before(permute):
            wider = graph.call_method("unsqueeze", (permute.args[0], where))
            moved = graph.call_method("permute", (wider, *adapted))
        node.replace_all_uses_with(moved)
        graph.erase_node(node)
        graph.erase_node(permute)
    gm.recompile()
    return gm


@fault(
    12, wrong="The permutation is adapted to the index of the new dimension after it, not to where it is put before it."
)
def sink_permute(module):
    """Move a permute below the unsqueeze that follows, so that it meets the next permute or layout copy."""
    return _run(module, False)
