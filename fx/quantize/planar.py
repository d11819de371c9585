"""torch's convolution of images in 8 bits, which runs oneDNN's kernel and keeps what it prepares between calls."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fx.quantize.affine import Affine
from fx.quantize.arithmetic import as_plain, as_quantized, has_quantized_tensors
from fx.quantize.fbgemm import by_channels, kernels_of

_torch: Any = torch
_ENGINE = "onednn"


@functools.lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether torch has it here."""
    has_operators = all(hasattr(_torch.ops.quantized, name) for name in ("conv2d", "conv2d_prepack"))
    return has_operators and _ENGINE in _torch.backends.quantized.supported_engines and has_quantized_tensors()


def pack(weight: Tensor, scale: Tensor, bias: Tensor | None, sizes: Sequence[Any]) -> Any:
    """Return the weight and bias of a layer in the order in which the kernel reads them.

    Args:
        weight: int8, of shape (out_channels, in_channels / groups, height, width).
        scale: the step of each output channel.
        bias: real values, if there is one.
        sizes: stride, padding and dilation, and the number of groups.
    """
    with kernels_of(_ENGINE):
        return _torch.ops.quantized.conv2d_prepack(by_channels(weight, scale.double()), bias, *sizes)


def convolution(input: Tensor, scale: float, zero_point: int, packed: Any, output: Affine) -> Tensor:
    """Apply a layer to integers, which become integers.

    Args:
        input: uint8, of shape (batch, in_channels, height, width).
        scale: step of the input.
        zero_point: what stands for zero in it.
        packed: what :func:`pack` returned; the first call fits it to the size of its input.
        output: what the results stand for.
    """
    stored = as_quantized(input, scale, zero_point)
    return as_plain(_torch.ops.quantized.conv2d(stored, packed, output.scale, output.zero_point), 255)
