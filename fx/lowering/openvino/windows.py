"""Pooling, and operations along whole dimensions: sums, means, extremes, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from fx.lowering.known_program import Operation
from fx.lowering.openvino.network import OpenVINONetwork
from fx.lowering.openvino.predicates import add_converter, computes
from fx.lowering.support import has_numbers, has_rank, has_values, where

_FLOAT = computes(torch.float32)


# Pooling.


def pool_max(
    network: OpenVINONetwork, input: Any, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    """The largest value of each window."""
    rounding = "ceil_torch" if ceil_mode else "floor"
    settings = [list(one) for one in (stride, dilation, padding, padding, kernel_size)]
    return network.add("max_pool", network.value(input), *settings, rounding)


def pool_mean(
    network: OpenVINONetwork, input: Any, kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    ceil_mode: bool, count_include_pad: bool, divisor_override: None = None,
) -> Any:  # fmt: skip
    """The mean of each window."""
    rounding = "ceil_torch" if ceil_mode else "floor"
    settings = [list(one) for one in (stride, padding, padding, kernel_size)]
    return network.add("avg_pool", network.value(input), *settings, not count_include_pad, rounding)


def pool_to_size(network: OpenVINONetwork, input: Any, output_size: Sequence[int]) -> Any:
    """Means of windows that cover a dimension in so many steps."""
    if all(size == 1 for size in output_size):
        return network.add("reduce_mean", network.value(input), network.numbers(range(-len(output_size), 0)), True)
    return network.add("adaptive_avg_pool", network.value(input), network.numbers(output_size))


def _is_even(operation: Operation) -> str | None:
    """Windows that leave the padding are counted in another way."""
    if operation.arguments.get("ceil_mode"):
        return "it rounds the number of windows up"
    return None if operation.arguments.get("divisor_override") is None else "it divides by a number of its own"


for _dimensions, _largest, _mean, _to_size in (
    (1, F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d),
    (2, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d),
    (3, F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d),
):
    _is_batch = has_rank("input", _dimensions + 2)
    _has_windows = has_numbers("kernel_size", "stride", "padding")
    add_converter(
        _largest, pool_max, _FLOAT, _is_batch, _has_windows, has_numbers("dilation"), has_values(return_indices=False)
    )
    add_converter(_mean, pool_mean, _FLOAT, _is_batch, _has_windows, _is_even)
    add_converter(_to_size, pool_to_size, _FLOAT, _is_batch, has_numbers("output_size"))


# Along dimensions.


def _add_reduction(target: Any, name: str) -> None:
    def build(network: OpenVINONetwork, input: Any, dim: Any = None, keepdim: bool = False, dtype: None = None) -> Any:
        value = network.value(input)
        rank = network.rank(value)
        dims = range(rank) if dim is None or dim == () else (dim,) if isinstance(dim, int) else dim
        axes = network.numbers(sorted(one % rank for one in dims)) if rank else network.numbers([])
        return network.add(name, value, axes, keepdim)

    add_converter(target, build, _FLOAT, has_numbers("dim", optional=True), has_values(dtype=None), _has_dimensions)


_has_dimensions = where(
    lambda operation: any(one.meta.get("tensor_meta") and one.meta["tensor_meta"].shape
                          for one in operation.node.all_input_nodes),
    "it has no dimensions",
)  # fmt: skip
for _target, _name in (
    (torch.mean, "reduce_mean"), (torch.sum, "reduce_sum"), (torch.amax, "reduce_max"), (torch.amin, "reduce_min"),
):  # fmt: skip
    _add_reduction(_target, _name)


def softmax(network: OpenVINONetwork, input: Any, dim: int, dtype: None) -> Any:
    """Shares of a whole."""
    return network.add("softmax", network.value(input), dim % network.rank(input))


def log_softmax(network: OpenVINONetwork, input: Any, dim: int, dtype: None) -> Any:
    """Logarithms of shares of a whole."""
    return network.add("log_softmax", network.value(input), dim % network.rank(input))


def sum_up(network: OpenVINONetwork, input: Any, dim: int, dtype: None) -> Any:
    """The sum of all that is before."""
    return network.add("cum_sum", network.value(input), network.value(dim, torch.int64))


for _target, _build in ((F.softmax, softmax), (F.log_softmax, log_softmax), (torch.cumsum, sum_up)):
    add_converter(_target, _build, _FLOAT, has_numbers("dim"), has_values(dtype=None), _has_dimensions)
