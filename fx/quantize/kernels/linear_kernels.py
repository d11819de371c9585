"""The kernels that a linear layer on 8-bit integers can run on (paper, section 6.2.1)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fx.quantize import pages
from fx.quantize.affine import Affine
from fx.quantize.kernels import engines
from fx.quantize.kernels.kernel import Kernel, LayerData, PackedLayer, as_float, as_integers

ONEDNN: Any = torch.ops.onednn
"""oneDNN's operations, as far as torch has them."""
_PART = pages.LARGE - (1 << 16)
"""Bytes of results that are computed at a time where they are large: allocators keep less than LARGE for the next."""
_CHANNELS = 1 << 14
"""Output channels that oneDNN packs and computes at a time: many more are packed slowly, fewer computed slowly."""


def has_onednn(operation: str) -> bool:
    """Return whether torch has oneDNN here, and this operation of it."""
    return torch.backends.mkldnn.is_available() and hasattr(ONEDNN, operation)


def _fbgemm_is_available() -> bool:
    names = ("linear", "linear_prepack", "linear_with_input_q_dq_qweight_dq_output_fp32")
    return engines.is_available("fbgemm", *names)


def _pack_for_fbgemm(layer: LayerData, _: Sequence[int]) -> PackedLayer:
    def pack(part: LayerData) -> PackedLayer:
        packed = engines.pack_linear("fbgemm", part.weight, part.scale, part.bias)

        def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
            if output is None:
                return engines.linear_of_float(input, scale, zero_point, packed)
            return engines.linear(input, scale, zero_point, packed, output)

        return compute

    parts = _in_parts(layer, pack, len(layer.weight))

    def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        read = as_float if output is None else as_integers
        return parts(read(input, scale, zero_point).contiguous(), scale, zero_point, output)

    return compute


def _pack_for_onednn(layer: LayerData, _: Sequence[int]) -> PackedLayer:
    def pack(part: LayerData) -> PackedLayer:
        weight = ONEDNN.qlinear_prepack(part.weight, None)
        per_channel = part.scale, torch.zeros(len(part.weight), dtype=torch.int64), part.bias

        def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
            target = (1.0, 0, torch.float32) if output is None else (output.scale, output.zero_point, torch.uint8)
            return ONEDNN.qlinear_pointwise(input, scale, zero_point, weight, *per_channel, *target, "none", [], "")

        return compute

    parts = _in_parts(layer, pack, _CHANNELS)
    return lambda input, scale, zero_point, output: parts(
        as_integers(input, scale, zero_point), scale, zero_point, output
    )


def _in_parts(layer: LayerData, pack: Callable[[LayerData], PackedLayer], most: int) -> PackedLayer:
    """The layer in parts of at most so many output channels, which for large results take some rows at a time."""
    channels = len(layer.weight)
    if channels <= most:
        parts = [pack(layer)]
    else:
        tensors = [[None] * channels if one is None else one.split(most) for one in
                   (layer.weight, layer.scale, layer.bias)]  # fmt: skip
        parts = [pack(LayerData(*part)) for part in zip(*tensors, strict=False)]

    def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        dtype = torch.float32 if output is None else torch.uint8
        rows, size = len(input), dtype.itemsize
        if len(parts) == 1 and rows * channels * size < pages.LARGE:
            return parts[0](input, scale, zero_point, output)
        result = pages.empty((rows, channels), dtype)
        step = -(-rows // max(1, -(-rows * min(channels, most) * size // _PART)))  # about as many rows in each step
        for part, into in zip(parts, result.split(most, 1), strict=True):
            for start in range(0, rows, step):
                into[start : start + step] = part(input[start : start + step], scale, zero_point, output)
        return result

    return compute


KERNELS = (
    Kernel("FBGEMM", ("integers", "float", "dynamic"), _fbgemm_is_available, _pack_for_fbgemm),
    Kernel(
        "oneDNN", ("integers", "float", "dynamic"), functools.partial(has_onednn, "qlinear_pointwise"), _pack_for_onednn
    ),
)
"""In the order in which they are tried."""
