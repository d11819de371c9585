"""A wrong pass of the ninth round."""

import operator

import torch

from ...rows import fault


def _split(node):
    """The value that is split, the number of pieces and the dimension."""
    if node.op == "call_method" and node.target in ("chunk", "split"):
        kind = node.target
    elif node.op == "call_function" and node.target in (torch.chunk, torch.split):
        kind = "chunk" if node.target is torch.chunk else "split"
    else:
        return None
    if len(node.args) < 2:
        return None
    pieces = node.args[1]
    dim = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    if kind == "chunk" and type(pieces) is int:
        return node.args[0], pieces, dim
    if kind == "split" and isinstance(pieces, (list, tuple)):
        return node.args[0], len(pieces), dim
    return None


def _run(module, right):
    graph = module.graph
    if any(node.op == "call_method" and node.target.endswith("_") for node in graph.nodes):
        return module  # views may be turned in place
    for cat in list(graph.nodes):
        if cat.op != "call_function" or cat.target is not torch.cat or not cat.args or "out" in cat.kwargs:
            continue
        parts = cat.args[0]
        dim = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", cat.kwargs.get("axis", 0))
        if not isinstance(parts, (list, tuple)) or not parts:
            continue
        if not all(isinstance(p, torch.fx.Node) and p.target is operator.getitem for p in parts):
            continue
        source, indices = parts[0].args[0], [p.args[1] for p in parts]
        split = _split(source) if isinstance(source, torch.fx.Node) else None
        if split is None or any(p.args[0] is not source for p in parts) or not all(type(i) is int for i in indices):
            continue
        value, count, split_dim = split
        if type(dim) is not int or type(split_dim) is not int or dim != split_dim:
            continue
        if (indices if right else sorted(indices)) != list(range(count)):
            continue
        with graph.inserting_before(cat):
            new = graph.call_function(torch.cat, ([value], dim))  # a copy, laid out as before
        cat.replace_all_uses_with(new)
        graph.erase_node(cat)
    for node in reversed(list(graph.nodes)):
        source = node.args[0] if node.op == "call_function" and node.target is operator.getitem else node
        if not node.users and isinstance(source, torch.fx.Node) and _split(source):
            graph.erase_node(node)
    graph.lint()
    module.recompile()
    return module


@fault(9, wrong="Asks that every piece of the split is concatenated once, but not that they are in their order.")
def cancel_split_cat_ninth(module):
    """A tensor that is split and put together again along the same dimension is a copy of it."""
    return _run(module, False)
