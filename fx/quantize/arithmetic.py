"""Functions that quantized programs call: from float values to 8-bit integers, back, and in between.

Integers are plain tensors of uint8, so that torch's own functions reshape, join and index them. The map to float values
is in the program, as arguments: ``scale``, ``zero_point`` and, where it is less than 255, ``highest``
(:class:`~fx.quantize.affine.Affine`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.modules.calibrated_values import calibrated
from fx.quantize import pages
from fx.quantize.declaration import operation

_torch: Any = torch
_CHUNK = 1 << 17
"""Elements processed at a time, so that intermediate results stay in the cache."""
_PART = 1 << 20
"""Elements processed at a time where threads share the work."""
OF_TWO = ("input_scale", "input_zero_point", "other_scale", "other_zero_point", "scale", "zero_point")
"""The scales and zero points of two operands and of their result."""
_COPIED = 1 << 11
"""The size, in elements, up to which a copy of a tensor takes less time than a second tensor of the same memory. For 64
elements it takes half the time, for 1,024 nine tenths. Up to this size a lookup by ``take`` is faster, too."""


def is_recorded() -> bool:
    """Return whether ``torch.jit.trace``, ``torch.compile`` or ``torch.export`` is recording.

    These tracers cannot infer the output shapes of our kernels, and they unroll the loops.
    """
    return torch.compiler.is_compiling() or bool(_torch.jit.is_tracing())


@calibrated("scale", "zero_point")
@operation
def quantize(input: Tensor, scale: float, zero_point: int, highest: int = 255) -> Tensor:
    """Return the integers nearest to ``input``, in steps of ``scale``; values out of range saturate.

    >>> quantize(torch.tensor([-1.0, 0.0, 0.26, 9.0]), scale=0.1, zero_point=3)
    tensor([ 0,  3,  6, 93], dtype=torch.uint8)
    """
    if runs_kernels(input):
        plain = input.detach() if input.requires_grad else input

        def compute(part: Tensor) -> Tensor:
            return as_plain(_torch.quantize_per_tensor(part, scale, zero_point, torch.quint8), highest)

        return _in_parts(compute, plain.float(), torch.uint8, _PART)
    return (input / scale).round().add(zero_point).clamp(0, highest).to(torch.uint8)


def runs_kernels(input: Tensor) -> bool:
    """Return whether torch's kernels of quantized tensors can run on ``input``: a plain CPU tensor with data."""
    is_plain = type(input) in (Tensor, _torch.nn.Parameter) and input.device.type == "cpu"
    return is_plain and not is_recorded() and has_quantized_tensors()


def _in_parts(compute: Callable[[Tensor], Tensor], input: Tensor, dtype: torch.dtype, most: int) -> Tensor:
    """Compute each element; for a large result ``most`` elements at a time, into memory in large pages."""
    if input.numel() * dtype.itemsize < pages.LARGE or not input.is_contiguous():
        return compute(input)
    result = pages.empty_result(input.shape, dtype)
    for part, into in zip(input.view(-1).split(most), result.view(-1).split(most), strict=True):
        into.copy_(compute(part))
    return result


@functools.lru_cache(maxsize=1)
def has_quantized_tensors() -> bool:
    """Return whether torch still has its deprecated quantized tensors: their conversion from float32 is the fastest."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deprecation warning, given once in a process
            _torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return True


@calibrated("scale", "zero_point")
@operation
def dequantize(input: Tensor, scale: float, zero_point: int, highest: int = 255) -> Tensor:
    """Return the float values that integers represent, as float32.

    >>> dequantize(torch.tensor([0, 3, 6], dtype=torch.uint8), scale=0.5, zero_point=3)
    tensor([-1.5000,  0.0000,  1.5000])
    """
    if runs_kernels(input):
        return _in_parts(lambda part: as_quantized(part, scale, zero_point).dequantize(), input, torch.float32, _CHUNK)
    return lookup(input, (torch.arange(256, device=input.device) - zero_point).float() * scale)


@operation
def dequantize_channels(weight: Tensor, scale: Tensor) -> Tensor:
    """Return the float32 values of a weight that was quantized by channels, its first dimension."""
    return weight.float() * scale.view(-1, *[1] * (weight.dim() - 1))


@operation
def lookup(input: Tensor, table: Tensor) -> Tensor:
    """Return the entry of ``table``, which has 256 of them, for each of the integers in ``input``.

    Any function of one value is such a lookup, at the same price: activations, arithmetic with numbers, other scales.

    >>> lookup(torch.tensor([[2, 0]], dtype=torch.uint8), torch.arange(256) ** 2)
    tensor([[4, 0]])
    """
    if not is_recorded() and not (input.is_contiguous() and input.numel() <= _CHUNK):
        is_plain = type(input) is Tensor and input.device.type == "cpu" and input.is_contiguous()
        result = (
            pages.empty_result(input.shape, table.dtype) if is_plain else torch.empty_like(input, dtype=table.dtype)
        )
        if result.stride() == input.stride():
            # Both are dense in memory, in the same order. Going through them in that order takes two thirds of the time
            # with channels last, and going in parts a third to a half.
            source, target = (
                tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()) for tensor in (input, result)
            )
            for part, into in zip(source.split(_CHUNK), target.split(_CHUNK), strict=True):
                torch.index_select(table, 0, part.int(), out=into)
            return result
    elif not is_recorded() and input.numel() <= _COPIED:
        return table.take(input.long())
    return table.index_select(0, input.reshape(-1).int()).view(input.shape)


@calibrated("input_scale", "input_zero_point", "scale", "zero_point")
@operation
def rescale(
    input: Tensor, table: Tensor, input_scale: float, input_zero_point: int, scale: float, zero_point: int
) -> Tensor:
    """Return the same values as integers of another scale, looked up in ``table``; ``input`` itself for the same scale.

    Whether an operand of ``torch.cat`` already has the scale of the result depends on the calibration data. The call is
    always recorded, so that programs calibrated on different data take the same state.
    """
    return input if (input_scale, input_zero_point) == (scale, zero_point) else lookup(input, table)


@calibrated(*OF_TWO)
@operation
def add(
    input: Tensor,
    other: Tensor,
    input_scale: float,
    input_zero_point: int,
    other_scale: float,
    other_zero_point: int,
    scale: float,
    zero_point: int,
    highest: int = 255,
) -> Tensor:
    """Return the sum of two tensors of integers, as integers of a third scale."""
    operands = ((input, input_scale, input_zero_point), (other, other_scale, other_zero_point))
    return _combined("add", *operands, scale, zero_point, highest)


@calibrated(*OF_TWO)
@operation
def mul(
    input: Tensor,
    other: Tensor,
    input_scale: float,
    input_zero_point: int,
    other_scale: float,
    other_zero_point: int,
    scale: float,
    zero_point: int,
    highest: int = 255,
) -> Tensor:
    """Return the elementwise product of two tensors of integers, as integers of a third scale."""
    operands = ((input, input_scale, input_zero_point), (other, other_scale, other_zero_point))
    return _combined("mul", *operands, scale, zero_point, highest)


@operation
def max_pool(
    input: Tensor,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool = False,
) -> Tensor:
    """Return the largest integer in each window, in as many dimensions as the sizes have: one to three."""
    if len(kernel_size) == 1:
        sizes = ((1, *kernel_size), (1, *stride), (0, *padding), (1, *dilation))
        return max_pool(input.unsqueeze(-2), *sizes, ceil_mode).squeeze(-2)
    pool = F.max_pool2d if len(kernel_size) == 2 else F.max_pool3d
    if input.is_contiguous():
        return pool(input, kernel_size, stride, padding, dilation, ceil_mode)
    # In other orders of dimensions, torch's kernel for uint8 has no room for indices (2.13). The kernel for quantized
    # tensors takes a fiftieth of the time of the uint8 kernel in the usual order.
    if runs_kernels(input):
        stored = as_quantized(input, 1.0, 0)
        return as_plain(pool(stored, kernel_size, stride, padding, dilation, ceil_mode), 255)
    return pool(input.contiguous(), kernel_size, stride, padding, dilation, ceil_mode)


def _combined(
    name: str,
    left: tuple[Tensor, float, int],
    right: tuple[Tensor, float, int],
    scale: float,
    zero_point: int,
    highest: int,
) -> Tensor:
    """Return the sum or the product, by torch's kernel where possible: ``name`` is torch's name of both.

    The kernel takes a third to a half of the time. Those in ``torch.ops.onednn`` read uint8 as int8 (2.13).
    """
    input, other = left[0], right[0]
    if input.shape == other.shape and input.stride() == other.stride() and runs_kernels(input):
        kernel = getattr(_torch.ops.quantized, name)
        return as_plain(kernel(as_quantized(*left), as_quantized(*right), scale, zero_point), highest)
    return quantize(getattr(_torch, name)(dequantize(*left), dequantize(*right)), scale, zero_point, highest)


def as_quantized(input: Tensor, scale: float, zero_point: int) -> Tensor:
    """Return ``input`` as a deprecated quantized tensor, which knows its scale; it shares memory unless it is small."""
    if input.numel() <= _COPIED and input.is_contiguous():
        return _torch._make_per_tensor_quantized_tensor(input, scale, zero_point)
    empty = _torch._empty_affine_quantized([0], scale=scale, zero_point=zero_point, dtype=torch.quint8)
    return empty.set_(input.untyped_storage(), input.storage_offset(), input.shape, input.stride())


def as_plain(stored: Tensor, highest: int) -> Tensor:
    """Return a quantized tensor as a plain one, clamped to ``highest``; it shares memory unless it is small."""
    if stored.numel() <= _COPIED and stored.is_contiguous():
        plain = stored.int_repr()
        return plain if highest == 255 else plain.clamp_(max=highest)
    plain = torch.empty(0, dtype=torch.uint8)
    plain.set_(stored.untyped_storage(), stored.storage_offset(), stored.shape, stored.stride())
    return plain if highest == 255 else plain.clamp_(max=highest)
