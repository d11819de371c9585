"""A wrong pass of the twentyseventh round."""

import operator

import torch
import torch.fx

from ...rows import fault


@torch.fx.wrap
def joined(x, chunks, dim):
    return x if x.is_contiguous() else torch.cat(torch.chunk(x, chunks, dim), dim)


def _call(node, name):
    """The source, count (or parts) and dimension of a call of chunk or cat."""
    function = node.op == "call_function" and node.target is getattr(torch, name)
    method = name == "chunk" and node.op == "call_method" and node.target == "chunk"
    if not (function or method) or len(node.args) not in (2, 3) or set(node.kwargs) - {"dim"}:
        if not (function and name == "cat" and len(node.args) == 1 and not set(node.kwargs) - {"dim"}):
            return None
    position = 2 if name == "chunk" else 1
    dim = node.args[position] if len(node.args) > position else node.kwargs.get("dim", 0)
    return node.args[0], (node.args[1] if name == "chunk" else None), dim


def _drop(gm, replacement):
    for node in list(gm.graph.nodes):
        cat = _call(node, "cat")
        if cat is None or not isinstance(cat[0], (tuple, list)) or type(cat[2]) is not int:
            continue
        parts = list(cat[0])
        if not parts or not all(isinstance(p, torch.fx.Node) and p.target is operator.getitem for p in parts):
            continue
        split = parts[0].args[0]
        chunk = _call(split, "chunk") if isinstance(split, torch.fx.Node) else None
        if chunk is None or type(chunk[1]) is not int or type(chunk[2]) is not int or chunk[1:] != (len(parts), cat[2]):
            continue
        if [p.args for p in parts] != [(split, i) for i in range(len(parts))]:
            continue
        if len(split.users) != len(parts) or any(len(p.users) != 1 for p in parts):
            continue
        between = node.prev
        while between in parts:
            between = between.prev
        if between is not split:
            continue
        with gm.graph.inserting_before(node):
            whole = gm.graph.call_function(replacement, (chunk[0], chunk[1], chunk[2]))
            whole.meta["is_wrapped"] = True
        node.replace_all_uses_with(whole)
        for old in (node, *parts, split):
            gm.graph.erase_node(old)
    gm.graph.lint()
    gm.recompile()
    return gm


@fault(
    27,
    wrong="The concatenation was a copy; the input itself comes out now, so that a later in-place write changes it too.",
)
def drop_chunk_cat_twentyseventh(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replaces the concatenation of all chunks, in order, by the tensor that was cut."""
    return _drop(gm, joined)
