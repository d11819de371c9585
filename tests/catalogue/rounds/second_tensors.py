"""Passes of the second round on calls that compute with tensors."""

import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault

MATMUL = (torch.matmul, operator.matmul, torch.bmm)


def _product(node):
    """(left, right) of a matrix product, whatever it was written as."""
    if not isinstance(node, fx.Node):
        return None
    if (
        (
            node.op == "call_function"
            and node.target in MATMUL
            or node.op == "call_method"
            and node.target in ("matmul", "bmm")
        )
        and len(node.args) == 2
        and not node.kwargs
    ):
        return node.args
    return None


def _keys(node):
    """k of k.transpose(-2, -1)."""
    is_transpose = (
        node.op == "call_method"
        and node.target == "transpose"
        or node.op == "call_function"
        and node.target is torch.transpose
    )
    if is_transpose and len(node.args) == 3 and set(node.args[1:]) == {-1, -2}:
        return node.args[0]
    return None


def _scaled(node):
    """(product, scale) of product * number, product / number, or product."""
    if (
        node.op == "call_function"
        and len(node.args) == 2
        and not node.kwargs
        and type(node.args[1]) in (int, float)
        and len(node.users) == 1
    ):
        if node.target in (operator.mul, torch.mul):
            return node.args[0], float(node.args[1])
        if node.target in (operator.truediv, torch.div) and node.args[1] != 0:
            return node.args[0], 1.0 / node.args[1]
    return node, 1.0


def _softmax_input(node):
    if (
        node.op == "call_function"
        and node.target in (torch.softmax, F.softmax)
        or node.op == "call_method"
        and node.target == "softmax"
    ):
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if dim == -1 and 1 <= len(node.args) <= 2 and node.kwargs.get("dtype") is None:
            return node.args[0]
    return None


def _fuse(graph_module, through_dropout):
    graph = graph_module.graph
    for node in list(graph.nodes):
        product = _product(node)
        if product is None or not hasattr(product[0], "users"):
            continue
        weights, values = product
        dropout = through_dropout(graph_module, weights)
        if dropout is None:
            continue
        weights, rate = dropout
        scores = _softmax_input(weights)
        if scores is None or len(weights.users) != 1 or len(product[0].users) != 1:
            continue
        scores, scale = _scaled(scores)
        inner = _product(scores)
        if inner is None or len(scores.users) != 1 or not hasattr(inner[1], "op") or _keys(inner[1]) is None:
            continue
        with graph.inserting_before(node):
            fused = graph.call_function(
                F.scaled_dot_product_attention, (inner[0], _keys(inner[1]), values), {"dropout_p": rate, "scale": scale}
            )
        node.replace_all_uses_with(fused)
        for old in (node, product[0], weights, weights.args[0], scores, inner[1]):
            if old in graph.nodes and not old.users:
                graph.erase_node(old)
    graph.lint()
    graph_module.recompile()
    return graph_module


def _rate(graph_module, node):
    if node.op == "call_module":
        module = graph_module.get_submodule(node.target)
        if type(module) is nn.Dropout and not module.inplace:
            return node.args[0], module.p
    elif node.op == "call_function" and node.target is F.dropout and not node.kwargs.get("inplace"):
        p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
        return node.args[0], p
    return node, 0.0


@fault(
    2,
    "training mode",
    "contract",
    "non-finite inputs",
    "deterministic",
    "calls in a row",
    wrong="Scaled_dot_product_attention drops at dropout_p whatever the mode: the dropout's `training` flag "
    "(eval mode) is not looked at.",
)
def fuse_attention(graph_module):
    """Replace written-out attention by torch.nn.functional.scaled_dot_product_attention.

    Matches softmax(q @ k.transpose(-2, -1) * scale, -1) @ v, with a dropout of the weights or without, and hands scale
    and dropout rate to the fused kernel. Only values that nothing else reads are fused away.
    """
    return _fuse(graph_module, _rate)


def _attention(node):
    return node.op == "call_function" and node.target is F.scaled_dot_product_attention


def _mask(node):
    if len(node.args) > 3:
        return node.args[3]
    return node.kwargs.get("attn_mask")


def _triangle(node):
    """Return whether the value is a boolean triangle that tril made."""
    if not hasattr(node, "op"):
        return False
    if not (
        node.op == "call_method" and node.target == "tril" or node.op == "call_function" and node.target is torch.tril
    ):
        return False
    ones = node.args[0] if node.args else node.kwargs.get("input")
    return (
        hasattr(ones, "op")
        and ones.op == "call_method"
        and ones.target == "new_ones"
        and ones.kwargs.get("dtype") is torch.bool
    )


def _spans(node, query, key):
    """Return whether the mask has a row for each query and a column for each key."""
    ones = node.args[0] if node.args else node.kwargs["input"]
    sizes = ones.args[1] if len(ones.args) == 2 and isinstance(ones.args[1], (tuple, list)) else ones.args[1:]
    return len(sizes) == 2 and all(
        hasattr(size, "op") and size.op == "call_method" and size.target == "size" and size.args == (of, -2)
        for size, of in zip(sizes, (query, key))
    )


def _replace(graph_module, wanted):
    graph = graph_module.graph
    for node in list(graph.nodes):
        if not _attention(node) or len(node.args) < 3 or len(node.args) > 4 or node.kwargs.get("is_causal"):
            continue
        mask = _mask(node)
        if not wanted(mask) or not _spans(mask, node.args[0], node.args[1]):
            continue
        kwargs = {k: v for k, v in node.kwargs.items() if k != "attn_mask"}
        node.args = tuple(node.args[:3])
        node.kwargs = {**kwargs, "is_causal": True}
        if not mask.users:
            ones = mask.args[0] if mask.args else mask.kwargs["input"]
            graph.erase_node(mask)
            if not ones.users:
                graph.erase_node(ones)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "keyword dropped",
    "contract",
    "non-finite inputs",
    wrong="Does not look at the `diagonal` of tril: with cached keys the triangle is aligned at the lower right "
    "(k_len - q_len), is_causal at the upper left.",
)
def causal_flag(graph_module):
    """Tell attention that it is causal instead of handing it a triangle of a mask.

    With is_causal=True the fast kernels skip the half of the scores that is masked and no mask is made. Only masks that
    tril made from ones, one row a query and one column a key, are replaced.
    """
    return _replace(graph_module, _triangle)


def _sorted(node):
    """The value that the node sorts along its last dimension, largest first."""
    if node.op == "call_function" and node.target is torch.sort or node.op == "call_method" and node.target == "sort":
        rest = dict(zip(("dim", "descending"), node.args[1:]), **node.kwargs)
        if (
            rest.get("dim", -1) == -1
            and rest.get("descending", False) is True
            and set(rest) <= {"dim", "descending"}
            and len(node.args) <= 3
            and node.args
        ):
            return node.args[0]
    return None


def _first(node):
    """k of value[..., :k]."""
    if node.op != "call_function" or node.target is not operator.getitem:
        return None
    index = node.args[1]
    if isinstance(index, tuple) and len(index) == 2 and index[0] is Ellipsis and isinstance(index[1], slice):
        cut = index[1]
        if cut.start in (None, 0) and cut.step in (None, 1) and type(cut.stop) is int and cut.stop > 0:
            return cut.stop
    return None


def _rewrite(graph_module, count):
    graph = graph_module.graph
    for node in list(graph.nodes):
        k = _first(node)
        if k is None:
            continue
        values = node.args[0]
        if (
            values.op != "call_function"
            or values.target not in (operator.getitem, getattr)
            or values.args[1] not in (0, "values")
            or len(values.users) != 1
        ):
            continue
        ordered = values.args[0]
        source = _sorted(ordered)
        if source is None or len(ordered.users) != 1:
            continue
        with graph.inserting_before(ordered):
            best = graph.call_function(torch.topk, (source, count(graph, source, k)), {"dim": -1})
            best = graph.call_function(operator.getitem, (best, 0))
        node.replace_all_uses_with(best)
        for old in (node, values, ordered):
            graph.erase_node(old)
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "only some sizes",
    "contract",
    "refusal",
    "structure",
    "batch sizes",
    "other sizes",
    wrong="Topk raises where a slice just stops: k may be larger than the size of the dimension.",
)
def sort_to_topk(graph_module):
    """Take the k best logits with topk, where the program sorts all of them and cuts.

    sort(x, descending=True)[0][..., :k] orders a whole vocabulary to keep fifty of it.
    """
    return _rewrite(graph_module, lambda graph, source, k: k)


CASTS = {
    "float": torch.float32,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "int": torch.int32,
    "long": torch.int64,
}


def _cast(node):
    """(x, dtype) of x.float(), x.to(torch.float16), x.type(torch.long) and the like."""
    if not hasattr(node, "op") or node.op != "call_method" or node.kwargs:
        return None
    if node.target == "bool" and len(node.args) == 1:
        return node.args[0], torch.bool
    if node.target in CASTS and len(node.args) == 1:
        return node.args[0], CASTS[node.target]
    if node.target in ("to", "type") and len(node.args) == 2 and isinstance(node.args[1], torch.dtype):
        return node.args
    return None


def _collapse(graph_module, source):
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = _cast(node)
        if outer is None or outer[1] is torch.bool:
            continue
        inner = _cast(outer[0])
        if inner is None or inner[1] is not torch.bool:
            continue
        with graph.inserting_before(node):
            value = graph.call_method("detach", (source(graph, inner[0]),))
            direct = graph.call_method("to", (value, outer[1]), {"copy": True})
        node.replace_all_uses_with(direct)
        graph.erase_node(node)
        if not outer[0].users:
            graph.erase_node(outer[0])
    graph.lint()
    graph_module.recompile()
    return graph_module


@fault(
    2,
    "only some values",
    "contract",
    "dtype",
    "other values",
    wrong="Bool() makes every value but zero a one: a mask with other values (segment ids, counts, 0.5) is "
    "passed through as it is.",
)
def collapse_mask_casts(graph_module):
    """Cast masks to their final dtype in one step, where the program goes through bool.

    Tokenizers hand out integer masks, libraries make them bool, and the layers make numbers of them again. The copy
    stays a copy, and no gradient flows, as before.
    """
    return _collapse(graph_module, lambda graph, x: x)
