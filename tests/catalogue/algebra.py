"""Laws of algebra that tensors, floating-point numbers or torch's own signatures do not keep."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F

import fx
from fx.passes import exact

from .rows import behind, calls, numbers, of, replace, retarget, substitute, wrong


def _argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


@wrong("operand order", "contract", on=of(lambda m, x: (x @ x.abs()).t(), (3, 3)))
def transpose_of_product(gm: fx.GraphModule) -> None:
    """The transpose of a product is the product of the transposes, in the other order; here it is the same one."""
    for node in calls(gm, "t", torch.t):
        product = node.args[0]
        if product.target in (operator.matmul, torch.matmul, torch.mm, "mm", "matmul"):
            with gm.graph.inserting_before(node):
                parts = [gm.graph.call_method("t", (part,)) for part in product.args]
            replace(node, torch.matmul, *parts)
    gm.recompile()


@wrong("only for some values", "contract", on=of(lambda m, x: (x * -2.0).amax(0), (3, 2)))
def scale_after_maximum(gm: fx.GraphModule) -> None:
    """max(c x) is c max(x) only where c is positive."""
    for name in ("amax", "max", "amin"):
        for node in calls(gm, name):
            scaled = node.args[0]
            if scaled.target is not operator.mul or isinstance(scaled.args[1], fx.Node):
                continue
            if name != "amax" and (len(node.args) > 1 or node.kwargs):
                continue
            factor, node.args = scaled.args[1], (scaled.args[0], *node.args[1:])
            behind(node, operator.mul, node, factor)
    gm.recompile()


@wrong("constants combined", "contract", on=of(lambda m, x: (x + 3.0) * 0.5, (3,)))
def scale_before_shift(gm: fx.GraphModule) -> None:
    """(x + a) b becomes x b + a."""
    for node in calls(gm, operator.mul):
        shifted, factor = node.args
        if isinstance(factor, fx.Node) or not isinstance(shifted, fx.Node) or shifted.target is not operator.add:
            continue
        if isinstance(shifted.args[1], (int, float)) and len(shifted.users) == 1:
            with gm.graph.inserting_before(node):
                scaled = gm.graph.call_function(operator.mul, (shifted.args[0], factor))
            replace(node, operator.add, scaled, shifted.args[1])
            gm.graph.erase_node(shifted)
    gm.recompile()


@wrong("swallowed NaN", "non-finite inputs", "contract", on=of(
    lambda m, x: torch.where(x > 0, x, 0.5), torch.tensor([-torch.inf, 1.0])
))  # fmt: skip
def where_by_arithmetic(gm: fx.GraphModule) -> None:
    """The value that is not chosen is multiplied by zero, which is NaN for an infinity."""
    for node in calls(gm, torch.where):
        if len(node.args) == 3:
            condition, first, other = node.args
            with gm.graph.inserting_before(node):
                chosen = gm.graph.call_function(operator.mul, (first, condition))
                negated = gm.graph.call_function(torch.logical_not, (condition,))
                rest = gm.graph.call_function(operator.mul, (negated, other))
            replace(node, operator.add, chosen, rest)
    gm.recompile()


@wrong("operand order", "contract", on=of(lambda m, x: x.masked_fill(x > 0, 0.5), (3,)))
def fill_by_where(gm: fx.GraphModule) -> None:
    """masked_fill fills where the mask holds; where puts its second argument there."""
    for node in calls(gm, "masked_fill"):
        source, mask, value = node.args
        replace(node, torch.where, mask, source, value)
    gm.recompile()


@wrong("structure", "contract", "structure", on=of(lambda m, x: torch.stack([x, x + 1]), (2, 3)), contract=exact)
def stack_as_cat(gm: fx.GraphModule) -> None:
    """Stacking adds a dimension, concatenating does not."""
    retarget(gm, torch.stack, torch.cat)


@wrong("wrong axis", "contract", "structure", on=of(
    lambda m, x: torch.cat(x.chunk(2, dim=0), dim=1), (2, 3)
), contract=exact)  # fmt: skip
def cat_of_parts(gm: fx.GraphModule) -> None:
    """Cutting and joining cancel each other, if they do so along one dimension; that is not looked at."""
    for node in calls(gm, torch.cat):
        parts = node.args[0]
        source = parts[0] if isinstance(parts, (list, tuple)) else parts
        while isinstance(source, fx.Node) and source.target in (operator.getitem,):
            source = source.args[0]
        if isinstance(source, fx.Node) and source.target in (torch.split, "split", "chunk", torch.chunk):
            substitute(node, source.args[0])
    gm.recompile()


@wrong("only for some sizes", "contract", "structure", on=of(
    lambda m, x: x.squeeze(0).unsqueeze(0), (2, 3)
), contract=exact)  # fmt: skip
def squeeze_and_unsqueeze(gm: fx.GraphModule) -> None:
    """For a dimension of another size than one, squeeze does nothing, and unsqueeze adds one."""
    for node in calls(gm, "unsqueeze", torch.unsqueeze):
        inner = node.args[0]
        if inner.target in ("squeeze", torch.squeeze) and _argument(inner, 1, "dim") == _argument(node, 1, "dim"):
            substitute(node, inner.args[0])
    gm.recompile()


@wrong("keyword by position", "contract", on=of(lambda m, x: torch.clamp(x, max=0.5), (4,)))
def keywords_by_position(gm: fx.GraphModule) -> None:
    """Keyword arguments are passed by position, in the order of the call and not in the order of the signature."""
    for target in (torch.clamp, "clamp", F.gelu, F.hardtanh):
        for node in calls(gm, target):
            if target is not F.gelu:
                node.args, node.kwargs = (*node.args, *node.kwargs.values()), {}
    gm.recompile()


@wrong("precision lost", "contract", on=of(lambda m, x: F.log_softmax(x * 100, -1), (2, 5)))
def log_softmax_by_parts(gm: fx.GraphModule) -> None:
    """The logarithm of a softmax that has become zero is minus infinity."""
    for node in calls(gm, F.log_softmax):
        with gm.graph.inserting_before(node):
            soft = gm.graph.call_function(F.softmax, node.args, node.kwargs)
        replace(node, torch.log, soft)
    gm.recompile()


@wrong("precision lost", "contract", on=of(lambda m, x: torch.var(x + 3000, 0), (4, 3)))
def variance_by_moments(gm: fx.GraphModule) -> None:
    """The mean of squares less the square of the mean cancels where the mean is large, and divides by n."""
    for node in calls(gm, torch.var, "var"):
        dim = _argument(node, 1, "dim")
        if len(node.all_input_nodes) > 1 or not isinstance(dim, int) or node.kwargs.get("correction") == 0:
            continue
        keep = {"keepdim": bool(node.kwargs.get("keepdim", False))}
        with gm.graph.inserting_before(node):
            square = gm.graph.call_method("square", (node.args[0],))
            of_squares = gm.graph.call_method("mean", (square, dim), keep)
            mean = gm.graph.call_method("mean", (node.args[0], dim), keep)
            squared = gm.graph.call_method("square", (mean,))
        replace(node, operator.sub, of_squares, squared)
    gm.recompile()


@wrong("dtype", "dtype", on=of(lambda m, x: torch.zeros_like(x), numbers(2, dtype=torch.float64)), contract=exact)
def like_by_shape(gm: fx.GraphModule) -> None:
    """zeros_like takes the dtype too, not only the shape."""
    for target, function in ((torch.zeros_like, torch.zeros), (torch.ones_like, torch.ones)):
        for node in calls(gm, target):
            with gm.graph.inserting_before(node):
                shape = gm.graph.call_function(getattr, (node.args[0], "shape"))
            replace(node, function, shape)
    gm.recompile()
