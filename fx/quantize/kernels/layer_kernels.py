"""The kernels for layers on 8-bit integers: FBGEMM's and oneDNN's (paper, section 6.2.1)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fx.quantize import pages
from fx.quantize.affine import Affine
from fx.quantize.arithmetic import as_plain, as_quantized, has_quantized_tensors
from fx.quantize.kernels.kernel import Form, Kernel, LayerData, PackedLayer, as_float, as_integers

_torch: Any = torch
_ONEDNN: Any = torch.ops.onednn
"""oneDNN's operations, as far as torch has them."""
_FORMS: tuple[Form, ...] = ("integers", "float", "dynamic")
_PART = pages.LARGE - (1 << 16)
"""Bytes of a large result computed at a time: allocators reuse blocks smaller than LARGE."""
_CHANNELS = 1 << 14
"""Output channels that oneDNN computes at a time. All 197,951 of a layer at once take 1.4 to 1.7 times as long, except
for few rows with VNNI, where FBGEMM is faster. Fewer channels at a time are slow."""


# FBGEMM, which computes torch's operations on quantized tensors.


def has_fbgemm(*operations: str) -> bool:
    """Return whether torch has FBGEMM here, and ``operations`` of quantized tensors."""
    has_operations = all(hasattr(_torch.ops.quantized, name) for name in operations)
    return has_operations and "fbgemm" in _torch.backends.quantized.supported_engines and has_quantized_tensors()


def pack_for_fbgemm(operation: str, layer: LayerData) -> Any:
    """Return the weight and bias of a layer in the order in which FBGEMM reads them for this operation."""
    zero_points = torch.zeros(len(layer.weight), dtype=torch.int64)
    weight = _torch._make_per_channel_quantized_tensor(layer.weight, layer.scale.double(), zero_points, 0)
    before = _torch.backends.quantized.engine
    _torch.backends.quantized.engine = "fbgemm"  # weights are packed for the current engine
    try:
        return getattr(_torch.ops.quantized, f"{operation}_prepack")(weight, layer.bias, *layer.sizes)
    finally:
        _torch.backends.quantized.engine = before


def _fbgemm(operation: str, packed: Any, input: Tensor, scale: float, zero_point: int, output: Affine) -> Tensor:
    compute = getattr(_torch.ops.quantized, operation)
    return as_plain(compute(as_quantized(input, scale, zero_point), packed, output.scale, output.zero_point), 255)


# Linear layers.


def _pack_linear_for_fbgemm(layer: LayerData, _: Sequence[int]) -> PackedLayer:
    def pack_part(part: LayerData) -> PackedLayer:
        packed = pack_for_fbgemm("linear", part)

        def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
            if output is not None:
                return _fbgemm("linear", packed, input, scale, zero_point, output)
            operation = _torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
            return operation(input, scale, zero_point, packed)  # of float32; it quantizes inside

        return compute

    parts = _in_parts(layer, pack_part, len(layer.weight))

    def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        read = as_float if output is None else as_integers
        return parts(read(input, scale, zero_point).contiguous(), scale, zero_point, output)

    return compute


def _pack_linear_for_onednn(layer: LayerData, _: Sequence[int]) -> PackedLayer:
    def pack_part(part: LayerData) -> PackedLayer:
        weight = _ONEDNN.qlinear_prepack(part.weight, None)
        per_channel = part.scale, torch.zeros(len(part.weight), dtype=torch.int64), part.bias

        def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
            target = _target(output)
            return _ONEDNN.qlinear_pointwise(input, scale, zero_point, weight, *per_channel, *target, "none", [], "")

        return compute

    parts = _in_parts(layer, pack_part, _CHANNELS)
    return lambda input, scale, zero_point, output: parts(
        as_integers(input, scale, zero_point), scale, zero_point, output
    )


def _target(output: Affine | None) -> tuple[float, int, torch.dtype]:
    return (1.0, 0, torch.float32) if output is None else (output.scale, output.zero_point, torch.uint8)


def _in_parts(layer: LayerData, pack_part: Callable[[LayerData], PackedLayer], most: int) -> PackedLayer:
    """Return the layer in parts of at most ``most`` output channels; large results are computed some rows at a time."""
    channels = len(layer.weight)
    if channels <= most:
        parts = [pack_part(layer)]
    else:
        tensors = [[None] * channels if tensor is None else tensor.split(most) for tensor in
                   (layer.weight, layer.scale, layer.bias)]  # fmt: skip
        parts = [pack_part(LayerData(*part)) for part in zip(*tensors, strict=False)]

    def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        dtype = torch.float32 if output is None else torch.uint8
        rows, size = len(input), dtype.itemsize
        if len(parts) == 1 and rows * channels * size < pages.LARGE:
            return parts[0](input, scale, zero_point, output)
        result = pages.empty_result((rows, channels), dtype)
        step = -(-rows // max(1, -(-rows * min(channels, most) * size // _PART)))  # about as many rows in each step
        for part, into in zip(parts, result.split(most, 1), strict=True):
            for start in range(0, rows, step):
                into[start : start + step] = part(input[start : start + step], scale, zero_point, output)
        return result

    return compute


# Convolutions.


def _pack_convolution_for_fbgemm(operation: str, layer: LayerData, _: Sequence[int]) -> PackedLayer:
    packed = pack_for_fbgemm(operation, layer)

    def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        assert output is not None
        return _fbgemm(operation, packed, as_integers(input, scale, zero_point), scale, zero_point, output)

    return compute


def _pack_convolution_for_onednn(layer: LayerData, shape: Sequence[int]) -> PackedLayer:
    # The zero point 1 only says that the input has one. For images of another size than these, oneDNN may reorder the
    # weight in each call; the number of images makes no difference.
    weight = _ONEDNN.qconv_prepack(layer.weight, layer.scale, 1.0, 1, *layer.sizes, list(shape))
    zero_points = torch.zeros(len(layer.weight), dtype=torch.int64)

    def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        return _ONEDNN.qconv_pointwise(
            as_integers(input, scale, zero_point), scale, zero_point, weight, layer.scale, zero_points, layer.bias,
            *layer.sizes, *_target(output), "none", [], "",
        )  # fmt: skip

    return compute


# The kernels, in the order in which they are tried. Each library is faster somewhere, by medians of alternating calls.


def _has_onednn(operation: str) -> bool:
    """Return whether torch has oneDNN here, with this operation."""
    return torch.backends.mkldnn.is_available() and hasattr(_ONEDNN, operation)


def _fbgemm_convolution(operation: str) -> Kernel:
    is_available = functools.partial(has_fbgemm, operation, f"{operation}_prepack")
    return Kernel("FBGEMM", ("integers",), is_available, functools.partial(_pack_convolution_for_fbgemm, operation))


LINEAR = (
    Kernel(
        "FBGEMM", _FORMS,
        functools.partial(
            has_fbgemm, "linear", "linear_prepack", "linear_with_input_q_dq_qweight_dq_output_fp32"
        ),
        _pack_linear_for_fbgemm,
    ),
    Kernel("oneDNN", _FORMS, functools.partial(_has_onednn, "qlinear_pointwise"), _pack_linear_for_onednn),
)  # fmt: skip
"""The kernels of linear layers. FBGEMM takes 0.4 to 0.9 of oneDNN's time for small layers and few rows, and for float
values. OneDNN takes 0.8 to 0.9 of FBGEMM's time for 128 rows of 512 features with VNNI."""

_ONEDNN_CONVOLUTION = Kernel(
    "oneDNN", _FORMS, functools.partial(_has_onednn, "qconv_pointwise"), _pack_convolution_for_onednn, True
)
CONVOLUTIONS: dict[int, tuple[Kernel, ...]] = {
    1: (_ONEDNN_CONVOLUTION,),
    2: (_fbgemm_convolution("conv2d"), _ONEDNN_CONVOLUTION),
    3: (_fbgemm_convolution("conv3d"), _ONEDNN_CONVOLUTION),
}
"""The kernels of convolutions, by the dimensions of images. With VNNI, oneDNN takes 0.1 to 1 of FBGEMM's time. Without
VNNI, and for integers of 7 bits, FBGEMM takes 0.6 to 0.8 of oneDNN's time for one channel a group in two dimensions,
and a sixtieth in three."""
