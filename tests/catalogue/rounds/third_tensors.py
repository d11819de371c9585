"""Passes of the third round on calls that compute with tensors."""

import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

import fx

from ..rows import fault

FUNCTIONS = {torch.clamp, torch.clip}


METHODS = {"clamp", "clip"}


def bounds(node):
    """(value, min, max) of a clamp by numbers, else None."""
    if node.op == "call_function" and node.target in FUNCTIONS or node.op == "call_method" and node.target in METHODS:
        names = ("input", "min", "max")
        arguments = dict(zip(names, node.args))
        arguments.update(node.kwargs)
        if set(arguments) <= set(names) and isinstance(arguments.get("input"), fx.Node):
            low, high = arguments.get("min"), arguments.get("max")
            if all(bound is None or type(bound) in (int, float) and not math.isnan(bound) for bound in (low, high)):
                return arguments["input"], low, high
    return None


def same_kind(numbers):
    """Bounds of different types promote differently; leave such chains."""
    return len({type(number) for number in numbers if number is not None}) == 1


@fault(
    3,
    "only some values",
    "contract",
    "gradients",
    wrong="Where the two ranges do not meet, the result is the outer bound nearest the inner range; max(a, c) > "
    "min(b, d) makes torch return the smaller maximum.",
)
def merge_clamps(graph_module: fx.GraphModule) -> fx.GraphModule:
    """clamp(clamp(x, a, b), c, d) becomes clamp(x, max(a, c), min(b, d)); exporters leave such chains behind
    (an activation's clamp, then the quantizer's)."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        outer = bounds(node)
        if outer is None:
            continue
        inner = bounds(outer[0])
        if inner is None or len(outer[0].users) != 1:
            continue
        if not same_kind((*outer[1:], *inner[1:])):
            continue
        lows = [low for low in (inner[1], outer[1]) if low is not None]
        highs = [high for high in (inner[2], outer[2]) if high is not None]
        low = max(lows) if lows else None
        high = min(highs) if highs else None
        with graph.inserting_before(outer[0]):
            merged = graph.call_function(torch.clamp, (inner[0],), {"min": low, "max": high})
        node.replace_all_uses_with(merged)
        graph.erase_node(node)
        graph.erase_node(outer[0])
    graph.lint()
    graph_module.recompile()
    return graph_module


BROADCASTING = {operator.add, operator.sub, operator.mul, operator.truediv, torch.add, torch.sub, torch.mul, torch.div}


@fault(
    3,
    "dtype",
    "dtype",
    "contract",
    wrong="A tensor of no dimensions weighs less in type promotion than one it was expanded to: float64 scalar "
    "tensor + float32 tensor is float32, expanded it is float64.",
)
def drop_expands(graph_module: fx.GraphModule) -> fx.GraphModule:
    """y + x.expand_as(y) becomes y + x: the operator broadcasts x, and the shape is y's either way.

    Only where the operand beside it is the tensor whose shape x takes on."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in BROADCASTING or len(node.args) != 2:
            continue
        left, right = node.args
        if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            continue
        for expand, other in ((left, right), (right, left)):
            if expand.op != "call_method" or expand.target != "expand_as" or len(expand.args) != 2:
                continue
            if expand.args[1] is not other:
                continue
            small = expand.args[0]
            node.args = tuple(small if arg is expand else arg for arg in node.args)
            if not expand.users:
                graph.erase_node(expand)
            break
    graph.lint()
    graph_module.recompile()
    return graph_module


def settings(graph_module, node):
    """(value, beta, threshold) of a softplus, else None."""
    if node.op == "call_module":
        module = graph_module.get_submodule(node.target)
        if (
            type(module) is nn.Softplus
            and len(node.args) == 1
            and not module._forward_hooks
            and not module._forward_pre_hooks
        ):
            return node.args[0], module.beta, module.threshold
        return None
    if node.op == "call_function" and node.target is F.softplus:
        arguments = dict(zip(("input", "beta", "threshold"), node.args))
        arguments.update(node.kwargs)
        if isinstance(arguments.get("input"), fx.Node):
            return arguments["input"], arguments.get("beta", 1), arguments.get("threshold", 20)
    return None


@fault(
    3,
    "overflow",
    "contract",
    "gradients",
    "non-finite inputs",
    wrong="Above its threshold softplus is the identity; exp overflows for large inputs.",
)
def decompose_softplus(graph_module: fx.GraphModule) -> fx.GraphModule:
    """softplus(x) = log(1 + exp(beta * x)) / beta, in functions every backend has."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        softplus = settings(graph_module, node)
        if softplus is None:
            continue
        value, beta, _ = softplus
        if beta == 0:
            continue
        with graph.inserting_before(node):
            scaled = value if beta == 1 else graph.call_function(torch.mul, (value, beta))
            result = graph.call_function(torch.log1p, (graph.call_function(torch.exp, (scaled,)),))
            if beta != 1:
                result = graph.call_function(torch.div, (result, beta))
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module


SPLITS = {
    torch.split: "function",
    torch.functional.split: "function",
    torch.chunk: "function",
    "split": "method",
    "chunk": "method",
}


IN_PLACE = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "setitem"}


def writes(graph_module):
    for node in graph_module.graph.nodes:
        if node.op == "call_method" and node.target.endswith("_") and not node.target.endswith("__"):
            return True
        if node.op == "call_function":
            name = getattr(node.target, "__name__", "")
            if name in IN_PLACE or name.endswith("_") or "out" in node.kwargs or node.kwargs.get("inplace"):
                return True
        if node.op == "call_module" and getattr(graph_module.get_submodule(node.target), "inplace", False):
            return True
    return False


def argument(node, position, names, default=None):
    for name in names:
        if name in node.kwargs:
            return node.kwargs[name]
    return node.args[position] if len(node.args) > position else default


def whole(cat):
    """The split whose pieces a cat puts together, all in order and along the same dimension, else None."""
    pieces = argument(cat, 0, ("tensors",))
    if not isinstance(pieces, (list, tuple)) or not pieces or "out" in cat.kwargs:
        return None
    split = None
    for index, piece in enumerate(pieces):
        if not isinstance(piece, fx.Node) or piece.target is not operator.getitem or piece.args[1] != index:
            return None
        if split is not None and piece.args[0] is not split:
            return None
        split = piece.args[0]
    if split.op not in ("call_function", "call_method") or split.target not in SPLITS or not split.args:
        return None
    if argument(split, 2, ("dim",), 0) != argument(cat, 1, ("dim",), 0):
        return None
    sizes = argument(split, 1, ("split_size_or_sections", "split_size", "chunks"))
    name = split.target if isinstance(split.target, str) else split.target.__name__
    if isinstance(sizes, (list, tuple)) or name == "chunk":
        count = len(sizes) if isinstance(sizes, (list, tuple)) else sizes
        return split if count == len(pieces) else None
    return split


@fault(
    3,
    "only some sizes",
    "structure",
    "contract",
    wrong="Split by a size makes as many pieces as fit; the cat may take the first few and drop the rest.",
)
def cancel_split_cat(graph_module: fx.GraphModule) -> fx.GraphModule:
    """cat(split(x)) becomes a copy of x, where the cat takes every piece in order."""
    if writes(graph_module):
        return graph_module
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not torch.cat:
            continue
        split = whole(node)
        if split is None:
            continue
        with graph.inserting_before(node):
            copy = graph.call_method("clone", (split.args[0],), {"memory_format": torch.contiguous_format})
        node.replace_all_uses_with(copy)
        graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def descending(node):
    """(value, dim) of a descending sort, else None."""
    if node.op == "call_function" and node.target is torch.sort or node.op == "call_method" and node.target == "sort":
        bound = dict(zip(("input", "dim", "descending"), node.args))
        bound.update(node.kwargs)
        if len(node.args) > 3 or bound.get("descending") is not True or set(bound) - {"input", "dim", "descending"}:
            return None
        if isinstance(bound.get("input"), fx.Node) and type(bound.get("dim", -1)) is int:
            return bound["input"], bound.get("dim", -1)
    return None


def parts(node):
    """The users, if each takes one of values and indices."""
    users = list(node.users)
    if all(user.target is operator.getitem and user.args[1] in (0, 1) for user in users):
        return users
    return None


def flipped_sort(value, dim):
    """Values and indices of a descending sort."""
    values, indices = torch.sort(value, dim)
    return values.flip(dim), indices.flip(dim)


@fault(
    3,
    "ties",
    "contract",
    "gradients",
    wrong="Among equal elements the order is turned round: other indices, and the gradient goes to other elements.",
)
def lower_descending_sort(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Replace sort(x, descending=True) by an ascending one, read from its end. NaN, which sorts as the largest, comes
    first, as it should."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        value_and_dim = descending(node)
        if value_and_dim is None or parts(node) is None:
            continue
        with graph.inserting_before(node):
            lowered = graph.call_function(flipped_sort, value_and_dim)
        node.replace_all_uses_with(lowered)
        graph.erase_node(node)
    graph.lint()
    graph_module.recompile()
    return graph_module
