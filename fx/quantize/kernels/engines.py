"""torch's operations on quantized tensors, by the library ("engine") that computes them: FBGEMM or oneDNN."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from fx.quantize.affine import Affine
from fx.quantize.arithmetic import as_plain, as_quantized, has_quantized_tensors

Engine = Literal["fbgemm", "onednn"]

_torch: Any = torch
CONVOLUTIONS = {2: "conv2d", 3: "conv3d"}
"""The names of convolutions, by the dimensions of images."""


def is_available(engine: Engine, *operations: str) -> bool:
    """Return whether torch has the engine here, and ``operations`` of quantized tensors."""
    has_operations = all(hasattr(_torch.ops.quantized, name) for name in operations)
    return has_operations and engine in _torch.backends.quantized.supported_engines and has_quantized_tensors()


def pack_linear(engine: Engine, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Any:
    """Return the weight and bias of a linear layer in the order in which the engine reads them.

    Args:
        engine: what will compute it.
        weight: int8, of shape (out_features, in_features).
        scale: the scale of each output channel.
        bias: float32, if there is one.
    """
    with _packed_for(engine):
        return _torch.ops.quantized.linear_prepack(_by_channels(weight, scale), bias)


def pack_convolution(
    engine: Engine, weight: Tensor, scale: Tensor, bias: Tensor | None, sizes: Sequence[Any]
) -> tuple[Any, Any]:
    """Return what :func:`convolution` takes: an operation, and the weight and bias in the order in which it reads them.

    Args:
        engine: what will compute it.
        weight: int8, of shape (out_channels, in_channels / groups, *window), with a window of 2 or 3 dimensions.
        scale: the scale of each output channel.
        bias: float32, if there is one.
        sizes: stride, padding and dilation, and the number of groups.
    """
    name = CONVOLUTIONS[weight.dim() - 2]
    prepack = getattr(_torch.ops.quantized, f"{name}_prepack")
    with _packed_for(engine):
        return getattr(_torch.ops.quantized, name), prepack(_by_channels(weight, scale), bias, *sizes)


@contextmanager
def _packed_for(engine: Engine) -> Generator[None]:
    """Let torch pack weights for ``engine`` inside the block."""
    before = _torch.backends.quantized.engine
    _torch.backends.quantized.engine = engine
    try:
        yield
    finally:
        _torch.backends.quantized.engine = before


def _by_channels(weight: Tensor, scale: Tensor) -> Tensor:
    """A weight of int8 as a tensor of the deprecated kind, which knows the scales of its channels, as float64."""
    zero_points = torch.zeros(len(weight), dtype=torch.int64)
    return _torch._make_per_channel_quantized_tensor(weight, scale.double(), zero_points, 0)


def linear(input: Tensor, scale: float, zero_point: int, packed: Any, output: Affine) -> Tensor:
    """Apply a linear layer to integers, which become integers.

    Args:
        input: uint8, of shape (rows, in_features), contiguous.
        scale: scale of the input.
        zero_point: what stands for zero in it.
        packed: what :func:`pack_linear` returned.
        output: what the results stand for.
    """
    stored = as_quantized(input, scale, zero_point)
    return as_plain(_torch.ops.quantized.linear(stored, packed, output.scale, output.zero_point), 255)


def linear_of_float(input: Tensor, scale: float, zero_point: int, packed: Any) -> Tensor:
    """Apply a linear layer of FBGEMM to float32, which becomes integers of this scale inside, and give float32."""
    return _torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(input, scale, zero_point, packed)


def convolution(input: Tensor, scale: float, zero_point: int, packed: tuple[Any, Any], output: Affine) -> Tensor:
    """Apply a convolution to integers, which become integers.

    Args:
        input: uint8, of shape (batch, in_channels, *image).
        scale: scale of the input.
        zero_point: what stands for zero in it.
        packed: what :func:`pack_convolution` returned; oneDNN fits it to the size of the first input.
        output: what the results stand for.
    """
    operation, params = packed
    return as_plain(operation(as_quantized(input, scale, zero_point), params, output.scale, output.zero_point), 255)
