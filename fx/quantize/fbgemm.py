"""FBGEMM's kernel for linear layers, which reads weights faster than oneDNN's where there are few rows of input."""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fx.quantize.affine import Affine
from fx.quantize.arithmetic import as_plain, as_quantized, has_quantized_tensors

__all__ = ["by_channels", "is_available", "kernels_of", "linear", "linear_of_real", "pack"]

_torch: Any = torch
_ENGINE = "fbgemm"


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether torch has the kernel here."""
    has_operators = all(hasattr(_torch.ops.quantized, name) for name in ("linear", "linear_prepack"))
    return has_operators and _ENGINE in _torch.backends.quantized.supported_engines and has_quantized_tensors()


def pack(weight: Tensor, scale: Tensor, bias: Tensor | None) -> Any:
    """Return the weight and bias of a layer in the order in which the kernel reads them.

    Args:
        weight: int8, of shape (out_features, in_features).
        scale: the step of each output channel.
        bias: real values, if there is one.
    """
    with kernels_of(_ENGINE):
        return _torch.ops.quantized.linear_prepack(by_channels(weight, scale.double()), bias)


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


def linear(input: Tensor, scale: float, zero_point: int, packed: Any, output: Affine) -> Tensor:
    """Apply a layer to whole numbers, which become whole numbers.

    Args:
        input: uint8, of shape (..., in_features).
        scale: step of the input.
        zero_point: what stands for zero in it.
        packed: what :func:`pack` returned.
        output: what the results stand for.
    """
    stored = as_quantized(_rows(input), scale, zero_point)
    rows = as_plain(_torch.ops.quantized.linear(stored, packed, output.scale, output.zero_point), 255)
    return rows.view(*input.shape[:-1], -1)


def linear_of_real(input: Tensor, scale: float, zero_point: int, packed: Any) -> Tensor:
    """Apply a layer to real values, which become whole numbers of this scale inside, and give real ones."""
    kernel = _torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return kernel(_rows(input.float()), scale, zero_point, packed).view(*input.shape[:-1], -1)


def _rows(input: Tensor) -> Tensor:
    return input.reshape(-1, input.shape[-1]).contiguous()
