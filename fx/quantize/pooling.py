"""Averages of 8-bit integers, and the calls of averages and of operations that move integers (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.modules.calibrated_values import calibrated
from fx.node import Node
from fx.quantize.affine import Affine
from fx.quantize.arithmetic import max_pool, quantize
from fx.quantize.declaration import operation

_AVERAGES: tuple[Any, ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
_ADAPTIVE_AVERAGES: tuple[Any, ...] = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
_ADAPTIVE_LARGEST: tuple[Any, ...] = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)
_EXACT = 1 << 23
"""The number of 8-bit integers whose sum fits into 32 bits."""


@calibrated("input_scale", "input_zero_point", "scale", "zero_point")
@operation
def avg_pool(
    input: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool,
    input_scale: float,
    input_zero_point: int,
    scale: float,
    zero_point: int,
    highest: int = 255,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the average in each window, as integers of another scale; in as many dimensions as the sizes have."""
    settings: dict[str, Any] = {} if divisor_override is None else {"divisor_override": divisor_override}
    pool = _AVERAGES[len(kernel_size) - 1]
    average = pool(
        input.float() - input_zero_point, kernel_size, stride, padding, ceil_mode, count_include_pad, **settings
    )
    return quantize(average * input_scale, scale, zero_point, highest)


@calibrated("input_scale", "input_zero_point", "scale", "zero_point")
@operation
def adaptive_avg_pool(
    input: Tensor,
    output_size: tuple[int | None, ...],
    input_scale: float,
    input_zero_point: int,
    scale: float,
    zero_point: int,
    highest: int = 255,
) -> Tensor:
    """Return averages over ``output_size`` windows, as integers of another scale."""
    affines = (input_scale, input_zero_point, scale, zero_point, highest)
    if all(size == 1 for size in output_size):  # sums take 0.8 to 0.95 of the time
        return mean(input, tuple(range(-len(output_size), 0)), True, *affines)
    average = _ADAPTIVE_AVERAGES[len(output_size) - 1](input.float() - input_zero_point, output_size)
    return quantize(average * input_scale, scale, zero_point, highest)


@calibrated("input_scale", "input_zero_point", "scale", "zero_point")
@operation
def mean(
    input: Tensor,
    dim: tuple[int, ...] | None,
    keepdim: bool,
    input_scale: float,
    input_zero_point: int,
    scale: float,
    zero_point: int,
    highest: int = 255,
) -> Tensor:
    """Return the average along dimensions, as integers of another scale; sums are exact.

    >>> mean(torch.tensor([[10, 20]], dtype=torch.uint8), (1,), False, 0.5, 0, scale=0.25, zero_point=1)
    tensor([31], dtype=torch.uint8)
    """
    dims = tuple(range(input.dim())) if dim is None else dim
    total = input.sum(dims, keepdim, dtype=torch.int32 if input.numel() < _EXACT else torch.int64)
    count = max(1, input.numel()) / max(1, total.numel())
    return quantize((total.double() / count - input_zero_point).mul(input_scale).float(), scale, zero_point, highest)


@operation
def adaptive_max_pool(input: Tensor, output_size: tuple[int | None, ...]) -> Tensor:
    """Return the largest integer in each of ``output_size`` windows."""
    return _ADAPTIVE_LARGEST[len(output_size) - 1](input.float(), output_size).to(torch.uint8)


@calibrated("zero_point")
@operation
def pad(input: Tensor, pad: tuple[int, ...], zero_point: int) -> Tensor:
    """Return the integers, padded with the integer for zero, as ``F.pad`` does it.

    >>> pad(torch.tensor([7], dtype=torch.uint8), (1, 0), zero_point=3)
    tensor([3, 7], dtype=torch.uint8)
    """
    return F.pad(input, pad, value=zero_point)


_ON_INTEGERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_AVERAGES, avg_pool),
    **dict.fromkeys(_ADAPTIVE_AVERAGES, adaptive_avg_pool),
    torch.mean: mean,
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, F.max_pool3d), max_pool),
    **dict.fromkeys(_ADAPTIVE_LARGEST, adaptive_max_pool),
}
IntegerCall = tuple["Callable[..., Any]", "dict[str, Any]"]
"""A function, and its keyword arguments."""


def lower_average(node: Node) -> IntegerCall | None:
    """Return the call of an average, without operand and scales; None if the program computes the sizes."""
    settings = {name: value for name, value in node.kwargs.items() if name not in ("input", "dtype")}
    sizes = [settings[name] for name in ("kernel_size", "output_size") if name in settings]
    if not all(isinstance(size, (tuple, list)) for size in sizes):
        return None
    if settings.get("divisor_override", 1) is None:
        del settings["divisor_override"]
    return _ON_INTEGERS[node.target], settings


def lower_data_movement(node: Node, affine: Affine) -> IntegerCall | None:
    """Return the call, on integers, of an operation that moves or picks values; None if it is as on float values."""
    if node.target in _ON_INTEGERS:
        return _ON_INTEGERS[node.target], {key: value for key, value in node.kwargs.items() if key != "return_indices"}
    if node.target is F.pad and node.kwargs.get("mode") == "constant":
        settings = {name: node.kwargs[name] for name in ("input", "pad")}
        return pad, {**settings, "zero_point": affine.zero_point}
    return None
