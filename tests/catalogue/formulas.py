"""Passes that put one operation in the place of a formula: right ones, and wrong ones that leave one thing unchecked.

A wrong pass is right on the formula as it is usually written. Only a similar formula shows the fault. It
differs in a number, a dimension, a keyword, the order of operands, a cast, a mask, or a second use of an inner value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import fx
from fx.operators.effects import is_impure
from fx.passes import pass_name

SOFTMAX = (F.softmax, torch.softmax, "softmax")
MATMUL = (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm")
TRANSPOSE = (torch.transpose, "transpose")
CASTS = ("float", "half", "double", "to")


def is_call(node: Any, *targets: Any) -> bool:
    """Return whether a value is such a call, with its tensors by position."""
    is_node = isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in targets
    return is_node and node.kwargs.keys().isdisjoint(("input", "other", "self", "mat2"))


def argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def both_ways(node: fx.Node) -> list[tuple[Any, ...]]:
    return [node.args, node.args[::-1]] if len(node.args) == 2 else []


def writes(graph: fx.Graph) -> bool:
    """Return whether a graph has an effect other than a check."""
    effects = (node for node in graph.nodes if node.op.startswith("call_") and is_impure(node))
    return any(node.target is not vars(torch)["_assert"] for node in effects)


def rewriting(
    fused: Callable[[fx.Node], tuple[Any, tuple[Any, ...], dict[str, Any]] | None], *, of_floats: bool = False
) -> Callable[[Any], None]:
    """A pass that puts what ``fused`` makes of a node, if anything, in its place, where nothing is written in place.

    With ``of_floats`` the program refuses integers: fused functions have no kernels for these.
    """

    def rewrite(graph_module: fx.GraphModule) -> None:
        graph = graph_module.graph
        if writes(graph):
            return
        for node in list(graph.nodes):
            if node.op not in ("call_function", "call_method") or (replacement := fused(node)) is None:
                continue
            target, args, kwargs = replacement
            with graph.inserting_before(node):
                if of_floats and isinstance(args[0], fx.Node):
                    is_float = graph.call_method("is_floating_point", (args[0],))
                    graph.call_function(vars(torch)["_assert"], (is_float, f"{pass_name(rewrite)} is for floats"))
                new = graph.call_function(target, args, kwargs)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
        graph_module.recompile()

    return rewrite


def silu(node: fx.Node):
    if is_call(node, operator.mul, torch.mul):
        for x, gate in both_ways(node):
            if is_call(gate, torch.sigmoid, "sigmoid") and gate.args[0] is x:
                return F.silu, (x,), {}


def silu_of_anything(node: fx.Node):
    """Does not check that both operands are the same."""
    if is_call(node, operator.mul, torch.mul):
        for _, gate in both_ways(node):
            if is_call(gate, torch.sigmoid, "sigmoid"):
                return F.silu, (gate.args[0],), {}


def silu_through_casts(node: fx.Node):
    """Looks through casts of the gate."""
    if is_call(node, operator.mul, torch.mul):
        for x, gate in both_ways(node):
            while is_call(gate, *CASTS):
                gate = gate.args[0]
            if is_call(gate, torch.sigmoid, "sigmoid") and gate.args[0] is x:
                return F.silu, (x,), {}


def silu_in_place_of_its_gate(graph_module: fx.GraphModule) -> None:
    """Does not check that nothing else reads the gate."""
    if writes(graph_module.graph):
        return
    for node in graph_module.graph.nodes:
        if is_call(node, operator.mul, torch.mul):
            for x, gate in both_ways(node):
                if is_call(gate, torch.sigmoid) and gate.args[0] is x:
                    gate.target = F.silu
                    node.replace_all_uses_with(gate)
                    break
    graph_module.recompile()


def gelu_with(is_number: Callable[[Any, float], bool]) -> Any:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``, its numbers checked by ``is_number``."""

    def gelu(node: fx.Node):
        if not is_call(node, operator.mul):
            return None
        for half, one_and in both_ways(node):
            if not (is_call(half, operator.mul) and is_call(one_and, operator.add)):
                continue
            factor, x = half.args
            constant, erf = one_and.args
            if not (is_number(factor, 0.5) and is_number(constant, 1) and is_call(erf, torch.erf)):
                continue
            (scaled,) = erf.args
            if is_call(scaled, operator.truediv) and scaled.args[0] is x and is_number(scaled.args[1], math.sqrt(2)):
                return gelu_of_anything, (x,), {}
        return None

    return gelu


@fx.wrap
def gelu_of_anything(x: torch.Tensor) -> torch.Tensor:
    if not bool((x.abs() < 1e15).all()):  # F.gelu returns NaN where the square overflows
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return F.gelu(x)


def is_close(value: Any, wanted: float) -> bool:
    return isinstance(value, int | float) and math.isclose(value, wanted, rel_tol=1e-4)


def is_any(value: Any, wanted: float) -> bool:
    return isinstance(value, int | float)


def tanh_gelu_of_any_numbers(node: fx.Node):
    """Does not check the numbers of ``0.5 * x * (1 + tanh(0.8 * (x + 0.04 * x ** 3)))``."""
    if is_call(node, operator.mul) and is_call(one_and := node.args[1], operator.add):
        half = node.args[0]
        if is_call(half, operator.mul) and is_close(half.args[0], 0.5) and is_call(tanh := one_and.args[1], torch.tanh):
            x, inner = half.args[1], tanh.args[0]
            if is_call(inner, operator.mul) and is_call(total := inner.args[1], operator.add) and total.args[0] is x:
                return F.gelu, (x,), {"approximate": "tanh"}
    return None


def rms_norm_with(is_dim: Callable[[Any], bool], is_kept: Callable[[Any], bool]) -> Any:
    def rms_norm(node: fx.Node):
        if not is_call(node, operator.mul):
            return None
        for x, scale in both_ways(node):
            if not (is_call(scale, torch.rsqrt) and is_call(total := scale.args[0], operator.add)):
                continue
            mean, eps = total.args
            if not (is_call(mean, "mean", torch.mean) and isinstance(eps, float)):
                continue
            squared = mean.args[0]
            if not (is_call(squared, "pow", torch.pow) and squared.args == (x, 2)):
                continue
            if (
                is_dim(argument(mean, 1, "dim"))
                and is_kept(argument(mean, 2, "keepdim", False))
                and "dtype" not in mean.kwargs
            ):
                return rms_normed, (x, eps), {}
        return None

    return rms_norm


@fx.wrap
def rms_normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    if not x.dim():  # which F.rms_norm refuses
        return x * torch.rsqrt(x.pow(2) + eps)
    return F.rms_norm(x, x.shape[-1:], eps=eps)


@fx.wrap
def log_of_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    if x.dtype in (torch.float16, torch.bfloat16):  # in which small shares are 0, and their logarithm is infinite
        return torch.log(F.softmax(x, dim=dim))
    return F.log_softmax(x, dim=dim)


def log_softmax(node: fx.Node):
    if is_call(node, torch.log) and is_call(soft := node.args[0], *SOFTMAX) and soft.kwargs.get("dtype") is None:
        return log_of_softmax, (soft.args[0],), {"dim": argument(soft, 1, "dim")}


def log_softmax_of_the_last(node: fx.Node):
    """Does not check the dimension."""
    if is_call(node, torch.log) and is_call(soft := node.args[0], *SOFTMAX) and soft.kwargs.get("dtype") is None:
        return F.log_softmax, (soft.args[0],), {"dim": -1}


def exponentials(is_kept: Callable[[Any], bool]) -> Any:
    """``x.exp() / x.exp().sum(dim, keepdim=True)``."""

    def softmax(node: fx.Node):
        if (
            is_call(node, operator.truediv)
            and is_call(exponential := node.args[0], "exp")
            and is_call(total := node.args[1], "sum")
        ):
            other, x = total.args[0], exponential.args[0]
            dim = argument(total, 1, "dim")
            is_same = is_call(other, "exp") and other.args[0] is x and "dtype" not in total.kwargs
            if is_same and isinstance(dim, int) and is_kept(argument(total, 2, "keepdim", False)):
                return softmax_of_anything, (x, dim), {}
        return None

    return softmax


@fx.wrap  # it asks for a dtype, which is unknown during the capture
def softmax_of_anything(x: torch.Tensor, dim: int) -> torch.Tensor:
    total = x.exp().sum(dim, keepdim=True)
    if not bool((total.isfinite() & (total > 0)).all()):  # then a softmax has numbers where the quotient has none
        return x.exp() / total
    return F.softmax(x if x.is_floating_point() else x.float(), dim)


def softmax_without_its_shift(node: fx.Node):
    """Does not check that the maximum is that over the dimension of the softmax."""
    if is_call(node, *SOFTMAX) and is_call(shifted := node.args[0], operator.sub):
        x, top = shifted.args
        if is_call(top, torch.amax) and top.args[0] is x and argument(top, 2, "keepdim"):
            return F.softmax, (x,), {"dim": argument(node, 1, "dim")}
    return None


@fx.wrap
def scaled_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    is_finite = all(bool(tensor.isfinite().all()) for tensor in (query, key, value))
    if not is_finite or not query.dim() == key.dim() == value.dim():  # then it returns other values, or other sizes
        return F.softmax(query @ key.transpose(-2, -1) * scale, dim=-1) @ value
    return F.scaled_dot_product_attention(query, key, value, scale=scale)


def usual_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value)


def attention(
    attended: Any = scaled_attention,
    is_last: Callable[[Any], bool] = lambda dim: dim == -1,
    are_last: Callable[[Any], bool] = lambda dims: set(dims) in ({-1, -2}, {1, 2}),
    before: tuple[Any, ...] = (),
) -> Any:
    """``softmax(q @ k.transpose(-2, -1) * scale, dim=-1) @ v``; what is ``before`` the softmax is looked through."""

    def attend(node: fx.Node):
        if not (is_call(node, *MATMUL) and is_call(soft := node.args[0], *SOFTMAX)):
            return None
        if not is_last(argument(soft, 1, "dim")) or soft.kwargs.get("dtype") is not None:
            return None
        scores = soft.args[0]
        if is_call(scores, *before):
            scores = scores.args[0]
        if not (is_call(scores, operator.mul) and isinstance(scores.args[1], int | float)):
            return None
        product, scale = scores.args
        if not (is_call(product, *MATMUL) and is_call(key := product.args[1], *TRANSPOSE) and are_last(key.args[1:])):
            return None
        return attended, (product.args[0], key.args[0], node.args[1], scale), {}

    return attend


def lerp(node: fx.Node):
    weighted = _weighted(node)
    if weighted is not None and weighted[1] is node.args[0]:
        return interpolated, (node.args[0], weighted[0], weighted[2]), {}
    return None


@fx.wrap
def interpolated(start: torch.Tensor, end: torch.Tensor, weight: float) -> torch.Tensor:
    return torch.lerp(start, end, weight) if start.dtype is end.dtype else start + weight * (end - start)


def lerp_either_way(node: fx.Node):
    """Does not check the order of the difference."""
    weighted = _weighted(node)
    if weighted is None or node.args[0] not in weighted[:2]:
        return None
    return interpolated, (node.args[0], weighted[0] if weighted[1] is node.args[0] else weighted[1], weighted[2]), {}


def lerp_from_anything(node: fx.Node):
    """Does not check that the start is what is subtracted."""
    weighted = _weighted(node)
    return None if weighted is None else (interpolated, (weighted[1], weighted[0], weighted[2]), {})


def _weighted(node: fx.Node) -> tuple[Any, Any, float] | None:
    """The end, what is subtracted from it and the weight of ``start + weight * (end - start)``."""
    if (
        is_call(node, operator.add)
        and is_call(step := node.args[1], operator.mul)
        and isinstance(node.args[0], fx.Node)
    ):
        weight, difference = step.args
        is_step = isinstance(weight, int | float) and is_call(difference, operator.sub)
        if is_step and all(isinstance(value, fx.Node) for value in difference.args):
            return (*difference.args, weight)
    return None


def quantized(is_zero: Callable[[Any, Any], bool]) -> Any:
    """``(clamp(round(x / scale) + zero, low, high) - zero) * scale``."""

    def fake_quantize(node: fx.Node):
        if not (is_call(node, operator.mul) and is_call(centred := node.args[0], operator.sub)):
            return None
        clamped, zero = centred.args
        if not (is_call(clamped, torch.clamp) and is_call(total := clamped.args[0], operator.add)):
            return None
        rounded, added = total.args
        if not (
            is_call(rounded, torch.round) and not rounded.kwargs and is_call(steps := rounded.args[0], operator.truediv)
        ):
            return None
        x, scale = steps.args
        bounds = clamped.args[1:]
        if scale != node.args[1] or not is_zero(added, zero) or len(bounds) != 2 or None in bounds:
            return None
        return fake_quantized, (x, scale, added, *bounds), {}

    return fake_quantize


def fake_quantized(x: torch.Tensor, scale: float, zero: int, low: int, high: int) -> torch.Tensor:
    return (torch.clamp(torch.round(x / scale) + zero, low, high) - zero) * scale


def standardized(is_biased: Callable[[Any], bool]) -> Any:
    """``(x - x.mean(-1, keepdim=True)) / sqrt(x.var(-1, keepdim=True, unbiased=False) + eps)``."""

    def layer_norm(node: fx.Node):
        if not (is_call(node, operator.truediv) and is_call(centred := node.args[0], operator.sub)):
            return None
        x, mean = centred.args
        if not (is_call(node.args[1], torch.sqrt) and is_call(total := node.args[1].args[0], operator.add)):
            return None
        variance, eps = total.args
        if not (is_call(mean, "mean") and is_call(variance, "var") and mean.args[0] is x is variance.args[0]):
            return None
        if not all(argument(each, 1, "dim") == -1 and each.kwargs.get("keepdim") is True for each in (mean, variance)):
            return None
        if (
            "dtype" in mean.kwargs
            or "correction" in variance.kwargs
            or not is_biased(variance.kwargs.get("unbiased", True))
        ):
            return None
        return layer_normed, (x, eps), {}

    return layer_norm


@fx.wrap
def layer_normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    if not x.dim():  # which F.layer_norm refuses
        return x - x
    return F.layer_norm(x, x.shape[-1:], eps=eps)
