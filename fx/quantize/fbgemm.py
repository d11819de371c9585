"""FBGEMM's kernel for linear layers, which reads weights faster than oneDNN's where there are few rows of input."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fx.quantize.affine import Affine
from fx.quantize.arithmetic import as_plain, as_quantized, has_quantized_tensors

_torch: Any = torch
_ENGINE = "fbgemm"
_ROWS = 1 << 14
"""Output channels that are packed at a time: many more are packed slowly, and fewer computed slowly."""


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether torch has the kernel here."""
    has_operators = all(hasattr(_torch.ops.quantized, name) for name in ("linear", "linear_prepack"))
    return has_operators and _ENGINE in _torch.backends.quantized.supported_engines and has_quantized_tensors()


def pack(weight: Tensor, scale: Tensor, bias: Tensor | None) -> tuple[Any, ...]:
    """Return the weight and bias of a layer in the order in which the kernel reads them, in parts.

    Args:
        weight: int8, of shape (out_features, in_features).
        scale: the step of each output channel.
        bias: real values, if there is one.
    """
    biases: Sequence[Tensor | None] = [None] * len(weight) if bias is None else bias.split(_ROWS)
    parts = zip(weight.split(_ROWS), scale.double().split(_ROWS), biases, strict=False)
    with kernels_of(_ENGINE):
        return tuple(_torch.ops.quantized.linear_prepack(by_channels(*part), own) for *part, own in parts)


@contextmanager
def kernels_of(engine: str) -> Generator[None]:
    """Let torch pack weights for the kernels of ``engine`` inside the block."""
    before = _torch.backends.quantized.engine
    _torch.backends.quantized.engine = engine
    try:
        yield
    finally:
        _torch.backends.quantized.engine = before


def by_channels(weight: Tensor, scale: Tensor) -> Tensor:
    """A weight of int8 as a tensor of the deprecated kind, which knows the steps of its channels, as float64."""
    zero_points = torch.zeros(len(weight), dtype=torch.int64)
    return _torch._make_per_channel_quantized_tensor(weight, scale, zero_points, 0)


def linear(input: Tensor, scale: float, zero_point: int, packed: Sequence[Any], output: Affine) -> Tensor:
    """Apply a layer to integers, which become integers.

    Args:
        input: uint8, of shape (..., in_features).
        scale: step of the input.
        zero_point: what stands for zero in it.
        packed: what :func:`pack` returned.
        output: what the results stand for.
    """
    stored = as_quantized(_rows(input), scale, zero_point)
    parts = [_torch.ops.quantized.linear(stored, one, output.scale, output.zero_point) for one in packed]
    return _joined([as_plain(one, 255) for one in parts], input)


def linear_of_real(input: Tensor, scale: float, zero_point: int, packed: Sequence[Any]) -> Tensor:
    """Apply a layer to real values, which become integers of this scale inside, and give real ones."""
    kernel = _torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    rows = _rows(input.float())
    return _joined([kernel(rows, scale, zero_point, one) for one in packed], input)


def _rows(input: Tensor) -> Tensor:
    return input.reshape(-1, input.shape[-1]).contiguous()


def _joined(parts: Sequence[Tensor], input: Tensor) -> Tensor:
    result = parts[0] if len(parts) == 1 else torch.cat(list(parts), -1)
    return result.view(*input.shape[:-1], result.shape[-1])
