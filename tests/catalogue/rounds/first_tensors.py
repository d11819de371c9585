"""Passes of the first round on calls that compute with tensors."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault

_BINARY = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div}


@fault(
    1,
    "dtype",
    "dtype",
    "contract",
    "structure",
    wrong="A tensor of no dimensions takes part in type promotion once it is expanded, and does not before.",
)
def drop_expand_as(graph_module: fx.GraphModule) -> fx.GraphModule:
    """`x * s.expand_as(x)`, as older squeeze-and-excitation code has it, becomes `x * s`: the operator broadcasts by
    itself. Only where the other operand is the very tensor that was expanded to, so that the shape stays.
    """
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _BINARY or len(node.args) != 2:
            continue
        for index in (0, 1):
            expanded, other = node.args[index], node.args[1 - index]
            if not isinstance(expanded, fx.Node) or expanded.op != "call_method" or expanded.target != "expand_as":
                continue
            if len(expanded.args) != 2 or expanded.args[1] is not other:
                continue
            arguments = list(node.args)
            arguments[index] = expanded.args[0]
            node.args = tuple(arguments)
            if not expanded.users:
                graph.erase_node(expanded)
            break
    graph_module.recompile()
    return graph_module


def _order(node):
    """The source and the order of a permute, in either spelling."""
    if not isinstance(node, fx.Node) or not node.args:
        return None
    if not (
        node.op == "call_method"
        and node.target == "permute"
        or node.op == "call_function"
        and node.target is torch.permute
    ):
        return None
    dims = node.args[1:] or (node.kwargs.get("dims", ()),)
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = dims[0]
    if not dims or not all(type(dim) is int for dim in dims):
        return None
    return node.args[0], [dim % len(dims) for dim in dims]


@fault(
    1,
    "permute composition",
    "structure",
    "contract",
    wrong="The orders are composed the wrong way round, which shows only where the two permutations do not commute.",
)
def compose_permutes_in_turn(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Two permutes in a row, as conversions between NCHW and NHWC leave them, become one, or none."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _order(node)
        inner = _order(outer[0]) if outer else None
        if inner is None or len(inner[1]) != len(outer[1]):
            continue
        source, first = inner
        second = outer[1]
        combined = [second[dim] for dim in first]
        with graph.inserting_before(node):
            merged = graph.call_method("permute", (source, *combined))
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
    for node in reversed(list(graph.nodes)):
        if _order(node) and not node.users:
            graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def _half(node, index):
    """The chunk in two of which this node is one half."""
    if not isinstance(node, fx.Node) or node.target is not operator.getitem or node.args[1] != index:
        return None
    chunk = node.args[0]
    if not (chunk.op == "call_method" and chunk.target == "chunk" or chunk.target is torch.chunk):
        return None
    count = chunk.args[1] if len(chunk.args) > 1 else chunk.kwargs.get("chunks")
    return chunk if count == 2 and chunk.args else None


def _gated(node, modules):
    """The argument of a sigmoid, in any spelling."""
    if not isinstance(node, fx.Node):
        return None
    if (
        node.op == "call_function"
        and node.target in (torch.sigmoid, F.sigmoid)
        or node.op == "call_method"
        and node.target == "sigmoid"
        or node.op == "call_module"
        and type(modules.get(node.target)) is nn.Sigmoid
    ):
        return node.args[0] if node.args else None
    return None


@fault(
    1, "wrong axis", "structure", "contract", wrong="Without a dim, chunk splits the first dimension and glu the last."
)
def fuse_glu(graph_module: fx.GraphModule) -> fx.GraphModule:
    """`a, b = x.chunk(2, dim); a * sigmoid(b)` becomes `F.glu(x, dim)`, one kernel for the gate."""
    graph = graph_module.graph
    modules = dict(graph_module.named_modules(remove_duplicate=False))
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in (operator.mul, torch.mul) or len(node.args) != 2:
            continue
        for value, gate in (node.args, node.args[::-1]):
            chunk = _half(value, 0)
            if chunk is None or _half(_gated(gate, modules), 1) is not chunk:
                continue
            dim = (
                {"dim": chunk.args[2]} if len(chunk.args) > 2 else {k: v for k, v in chunk.kwargs.items() if k == "dim"}
            )
            with graph.inserting_before(node):
                glu = graph.call_function(F.glu, (chunk.args[0],), dim)
            changed = True
            node.replace_all_uses_with(glu)
            graph.erase_node(node)
            break
    if changed:
        graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module


_MATMUL = {torch.matmul, operator.matmul, "matmul"}


_SOFTMAX = {torch.softmax, F.softmax, "softmax"}


def _called(node, targets):
    return isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in targets


def _softmax_input(node):
    if not _called(node, _SOFTMAX) or not node.args or len(node.users) != 1 or node.kwargs.get("dtype") is not None:
        return None
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    return node.args[0] if dim == -1 and isinstance(node.args[0], fx.Node) and len(node.args[0].users) == 1 else None


def _scores(node):
    """(query, key, scale) of `query @ key.transpose(-2, -1) * scale`."""
    scale = 1.0
    if (
        _called(node, {operator.mul, torch.mul, operator.truediv, torch.div})
        and len(node.args) == 2
        and not node.kwargs
        and isinstance(node.args[1], float)
    ):
        scale = node.args[1] if node.target in (operator.mul, torch.mul) else 1.0 / node.args[1]
        node = node.args[0]
        if len(node.users) != 1:
            return None
    if not _called(node, _MATMUL) or len(node.args) != 2:
        return None
    query, key = node.args
    if not _called(key, {"transpose", torch.transpose}) or len(key.args) != 3 or set(key.args[1:]) != {-2, -1}:
        return None
    return query, key.args[0], scale


@fault(
    1,
    "masked rows",
    "contract",
    "non-finite inputs",
    "gradients",
    wrong="A query all of whose keys are masked gets the average of the values from a finite fill, and zeros "
    "from the fused call.",
)
def fuse_masked_attention(graph_module: fx.GraphModule) -> fx.GraphModule:
    """`softmax((q @ k.T * scale).masked_fill(mask, value), -1) @ v` becomes `scaled_dot_product_attention`.

    The mask is optional. The value may be -inf or, as code for half precision has it, some large negative number.
    """
    graph = graph_module.graph
    changed = False
    for node in list(graph.nodes):
        if not _called(node, _MATMUL) or len(node.args) != 2:
            continue
        scores = _softmax_input(node.args[0])
        mask = None
        if _called(scores, {"masked_fill", torch.masked_fill}) and len(scores.args) == 3:
            scores, mask, value = scores.args
            if not isinstance(value, (int, float)) or value > -1e4 or len(scores.users) != 1:
                continue
        parts = _scores(scores)
        if parts is None:
            continue
        query, key, scale = parts
        with graph.inserting_before(node):
            keep = None if mask is None else graph.call_function(torch.logical_not, (mask,))
            attention = graph.call_function(
                F.scaled_dot_product_attention, (query, key, node.args[1]), {"attn_mask": keep, "scale": scale}
            )
        changed = True
        node.replace_all_uses_with(attention)
    if changed:
        graph.eliminate_dead_code()
    graph_module.recompile()
    return graph_module
