"""Products of matrices of 8-bit integers, neither of which is a weight (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fx.modules.calibrated_values import calibrated
from fx.quantize.arithmetic import OF_TWO, is_recorded, quantize
from fx.quantize.declaration import operation
from fx.quantize.kernels.kernel import LARGEST
from fx.quantize.kernels.trials import CHOICES, Way, rounded_up

_torch: Any = torch


@calibrated(*OF_TWO)
@operation
def matmul(
    input: Tensor,
    other: Tensor,
    input_scale: float,
    input_zero_point: int,
    other_scale: float,
    other_zero_point: int,
    scale: float | None = None,
    zero_point: int = 0,
    highest: int = 255,
) -> Tensor:
    """Return the product of two matrices, or of batches of them, as float values or as integers of a third scale.

    >>> quantized = torch.tensor([[3, 4]], dtype=torch.uint8)
    >>> matmul(quantized, quantized.t(), 0.5, 1, 1.0, 0)
    tensor([[9.]])
    """
    settings = (input, other, input_zero_point, other_zero_point)
    exact = (_integers if _runs_on_integers(input, other) else _floats)(*settings)
    product = exact * (input_scale * other_scale)
    return product if scale is None else quantize(product, scale, zero_point, highest)


def _runs_on_integers(input: Tensor, other: Tensor) -> bool:
    """Return whether torch's kernel for int8 takes two matrices, is right on this processor and faster than float32.

    For matrices of 512 x 512 and more it takes a fourth of the time with VNNI, two thirds with AVX2. For batches of
    small matrices it takes twice the time.
    """
    if any(type(matrix) is not Tensor or matrix.device.type != "cpu" for matrix in (input, other)) or is_recorded():
        return False
    fits = input.dim() == other.dim() >= 2 and input.shape[:-2] == other.shape[:-2] and input.numel() * other.numel()
    if not fits or not hasattr(_torch, "_int_mm"):
        return False
    sizes = [rounded_up(size) for size in (input.shape[:-2].numel(), *input.shape[-2:], other.shape[-1])]

    def ways() -> list[list[Way]]:
        left = torch.full(input.shape, LARGEST, dtype=torch.uint8)
        right = torch.zeros(other.shape, dtype=torch.uint8)
        right[..., ::2] = LARGEST  # as int8, the largest and the smallest number alternate

        def is_right(result: Tensor) -> bool:
            expected = right[..., :1, :].float() * (LARGEST * input.shape[-1])
            return bool(torch.allclose(result, expected.expand_as(result), rtol=1e-5))

        def way(compute: Callable[..., Tensor]) -> Way:
            return Way(compute.__name__, lambda: lambda: compute(left, right, 0, 0), is_right)

        return [[way(_integers)], [way(_floats)]]

    return CHOICES.fastest(("matmul", *sizes, torch.get_num_threads()), ways) == _integers.__name__


def _floats(input: Tensor, other: Tensor, input_zero_point: int, other_zero_point: int) -> Tensor:
    return torch.matmul(input.float() - input_zero_point, other.float() - other_zero_point)


def _integers(input: Tensor, other: Tensor, input_zero_point: int, other_zero_point: int) -> Tensor:
    """Return the product by torch's kernel for int8, on numbers shifted by 128; it takes one matrix at a time."""
    left, right = _signed(input), _signed(other)
    result = torch.empty(*left.shape[:-1], right.shape[-1], dtype=torch.int32)
    batches = (tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (left, right, result))
    for left_matrix, right_matrix, into in zip(*batches, strict=True):
        into.copy_(_torch._int_mm(left_matrix, right_matrix))
    left_zero, right_zero = input_zero_point - 128, other_zero_point - 128
    result -= left_zero * right.sum(-2, keepdim=True, dtype=torch.int32)
    result -= right_zero * left.sum(-1, keepdim=True, dtype=torch.int32)
    return (result + left.shape[-1] * left_zero * right_zero).float()


def _signed(quantized: Tensor) -> Tensor:
    return (quantized ^ 128).contiguous().view(torch.int8)
