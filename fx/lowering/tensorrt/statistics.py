"""TensorRT's converters for norms, variances, and the normalization of groups and by roots of mean squares."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fx.lowering.known_program import Operation
from fx.lowering.support import any_of, has_constant, has_values, shape_of
from fx.lowering.tensorrt.activations import apply, clamp, combine
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import is_one_of, register, setting, takes_floats
from fx.lowering.tensorrt.ranges import sizes_of
from fx.node import Node


def _axes_of(network: TensorRTNetwork, input: Any, dim: Any) -> tuple[int, ...]:
    rank = network.rank(input)
    chosen = range(rank) if dim is None or dim == () else (dim,) if isinstance(dim, int) else dim
    return tuple(sorted({number % rank for number in chosen}))


def _reduce(network: TensorRTNetwork, input: Any, kind: str, axes: tuple[int, ...], keepdim: bool) -> Any:
    mask = sum(1 << axis for axis in axes)
    return network.add("reduce", network.tensor(input), setting("ReduceOperation", kind), mask, bool(keepdim))


def variance(
    network: TensorRTNetwork, input: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    """Add the mean of squared differences from the mean, times ``count / (count - correction)``."""
    axes, less = _axes_of(network, input, dim), 1 if correction is None else correction
    count = 1
    for axis in axes:
        size = network.sizes(input)[axis]
        assert isinstance(size, int)
        count *= size
    centred = combine(network, "SUB", input, _reduce(network, input, "AVG", axes, True))
    squares = _reduce(network, combine(network, "PROD", centred, centred), "AVG", axes, keepdim)
    return squares if less == 0 else combine(network, "PROD", squares, count / (count - less))


def deviation(network: TensorRTNetwork, *args: Any, **options: Any) -> Any:
    """Add the square root of the variance."""
    return apply(network, variance(network, *args, **options), "SQRT")


def _has_several(operation: Operation) -> str | None:
    """Accept a variance over dimensions of fixed size, of more elements than the correction leaves out."""
    value, dim = operation.arguments["input"], operation.arguments.get("dim")
    shape = shape_of(operation, value)
    if not shape:
        return "its input is a single number"
    assert isinstance(value, Node)
    chosen = range(len(shape)) if dim is None or dim == () else (dim,) if isinstance(dim, int) else dim
    least, _, most = (shape,) * 3 if value.op == "get_attr" else sizes_of(value)
    if any(least[axis] != most[axis] for axis in chosen):
        return "it is over a size that varies"
    count = 1
    for axis in chosen:
        count *= shape[axis]
    correction = operation.arguments.get("correction")
    return None if count > (1 if correction is None else correction) else "it is of too few elements"


def norm(network: TensorRTNetwork, input: Any, ord: Any, dim: Any, keepdim: bool, dtype: Any = None) -> Any:
    """Add the norm of order 1, 2 or infinity over dimensions."""
    axes = _axes_of(network, input, dim)
    if ord == 2:
        return apply(network, _reduce(network, combine(network, "PROD", input, input), "SUM", axes, keepdim), "SQRT")
    return _reduce(network, apply(network, input, "ABS"), "SUM" if ord == 1 else "MAX", axes, keepdim)


def frobenius(network: TensorRTNetwork, input: Any, p: Any, dim: Any, keepdim: bool, **options: None) -> Any:
    """Add the square root of the sum of squares."""
    return norm(network, input, 2, dim, keepdim)


def normalize(network: TensorRTNetwork, input: Any, p: float, dim: Any, eps: float, out: None = None) -> Any:
    """Divide by the norm over a dimension, which counts as at least ``eps``."""
    return combine(network, "DIV", input, clamp(network, norm(network, input, p, dim, True), eps, None))


def rms_norm(
    network: TensorRTNetwork, input: Any, normalized_shape: tuple[int, ...], weight: Any, eps: float | None
) -> Any:
    """Divide by the root of the mean of squares over the last dimensions."""
    rank, dtype = network.rank(input), network.dtype(input)
    axes = tuple(range(rank - len(normalized_shape), rank))
    eps = torch.finfo(dtype).eps if eps is None else eps
    mean = _reduce(network, combine(network, "PROD", input, input), "AVG", axes, True)
    result = combine(network, "DIV", input, apply(network, combine(network, "SUM", mean, eps), "SQRT"))
    return result if weight is None else combine(network, "PROD", result, network.tensor(weight, dtype, rank))


def group_norm(network: TensorRTNetwork, input: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    """Normalize each group of channels."""
    rank, dtype, sizes = network.rank(input), network.dtype(input), network.sizes(input)
    grouped = network.reshape(network.tensor(input), [sizes[0], num_groups, -1])
    scale, shift = (network.tensor(torch.full((1, 1, 1), number), dtype) for number in (1.0, 0.0))
    kind = "normalization_v2" if hasattr(network.definition, "add_normalization_v2") else "normalization"
    result = network.reshape(network.add(kind, grouped, scale, shift, 1 << 2, epsilon=eps), sizes)
    across = (-1, *(1,) * (rank - 2))
    for kind, parameter in (("PROD", weight), ("SUM", bias)):
        if parameter is not None:
            result = combine(network, kind, result, network.tensor(parameter.reshape(across), dtype, rank))
    return result


_over = is_one_of(dim=(int, tuple, type(None)), keepdim=int)
for _target, _build in ((torch.var, variance), (torch.std, deviation)):
    register(_target, _build, takes_floats("input"), _over, _has_several)
_no_type = has_values(dtype=None)
register(torch.linalg.vector_norm, norm, takes_floats("input"), has_values(ord=(1, 2, float("inf"))), _no_type)
_first = any_of(takes_floats(0), takes_floats("input"))
register(torch.norm, frobenius, _first, has_values(p=("fro", 2), out=None), _no_type)
register(F.normalize, normalize, takes_floats(0), has_values(p=(1, 2)), is_one_of(dim=int, eps=(int, float)))
register(F.rms_norm, rms_norm, takes_floats("input"), has_constant("weight", optional=True))
register(
    F.group_norm, group_norm, takes_floats("input"), has_constant("weight", "bias", optional=True),
)  # fmt: skip
