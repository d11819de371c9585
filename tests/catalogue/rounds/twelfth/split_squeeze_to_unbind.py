"""A wrong pass of the twelfth round."""

import operator

import torch

from ...rows import fault


def _split(node):
    if node.target not in ("split", torch.split) or set(node.kwargs) - {"dim"} or len(node.args) > 3:
        return None
    arguments = dict(zip(("x", "size", "dim"), node.args)) | dict(node.kwargs)
    dim = arguments.get("dim", 0)
    return (arguments["x"], dim) if arguments.get("size") == 1 and type(dim) is int else None


def _squeezes(node, dim, need_dim):
    """Return whether the node squeezes its operand along the dimension."""
    if node.op not in ("call_method", "call_function") or node.target not in ("squeeze", torch.squeeze):
        return False
    dims = [*node.args[1:], *node.kwargs.values()]
    return dims == [dim] or (not dims and not need_dim)


def _run(gm, need_dim):
    graph = gm.graph
    for node in list(graph.nodes):
        value_and_dim = _split(node) if node.op in ("call_method", "call_function") else None
        if value_and_dim is None or not node.users:
            continue
        (x, dim), parts = value_and_dim, list(node.users)
        if not all(p.target is operator.getitem and type(p.args[1]) is int and len(p.users) == 1 for p in parts):
            continue
        ends = [next(iter(p.users)) for p in parts]
        if not all(_squeezes(end, dim, need_dim) for end in ends):
            continue
        if any(u.op == "call_method" and u.target.endswith("_") for end in ends for u in end.users):
            continue
        with graph.inserting_before(node):
            rows = graph.call_function(torch.unbind, (x, dim))
        for part, end in zip(parts, ends):
            with graph.inserting_before(part):
                row = graph.call_function(operator.getitem, (rows, part.args[1]))
            end.replace_all_uses_with(row)
            graph.erase_node(end)
            graph.erase_node(part)
        graph.erase_node(node)
    gm.recompile()
    return gm


@fault(
    12,
    wrong="A squeeze() without a dimension passes for a squeeze of the split dimension, and also drops others of size 1.",
)
def split_squeeze_to_unbind(module):
    """Replace a split into slices of size 1, each of them squeezed, by unbind."""
    return _run(module, False)
