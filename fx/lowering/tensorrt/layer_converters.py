"""TensorRT's converters for layers with weights, for normalization and for pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.lowering.known_program import Operation
from fx.lowering.support import Predicate, all_of, any_of, has_constant, has_rank, has_values, shape_of, where
from fx.lowering.tensorrt.activations import combine
from fx.lowering.tensorrt.arrangement import transpose
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import is_one_of, register, setting, takes_floats
from fx.lowering.tensorrt.ranges import sizes_of
from fx.node import Node

Sizes = tuple[int, ...]
_torch: Any = torch  # for the function that torch leaves without types
_WEIGHT_NORM = _torch._weight_norm


# TensorRT has no one-dimensional windows: one-dimensional layers work on an image of height 1.


def _over_image(sizes: Sizes, fill: int) -> Sizes:
    """Return the sizes of windows over an image; a single size gets ``fill`` in front."""
    return (fill, *sizes) if len(sizes) == 1 else sizes


def _image(network: TensorRTNetwork, input: Any, dimensions: int) -> Any:
    *batch, length = network.sizes(input)
    tensor = network.tensor(input)
    return network.reshape(tensor, [*batch, 1, length]) if dimensions == 1 else tensor


def _from_image(network: TensorRTNetwork, image: Any, dimensions: int) -> Any:
    *batch, _, length = network.sizes(image)
    return network.reshape(image, [*batch, length]) if dimensions == 1 else image


def _register_convolution(target: Any, dimensions: int) -> None:
    def build(
        network: TensorRTNetwork, input: Any, weight: Any, bias: Any, stride: Sizes, padding: Any, dilation: Sizes,
        groups: int,
    ) -> Any:  # fmt: skip
        kernel = _shape(network, weight)
        ends = _paddings(padding, kernel[2:], dilation)
        return _convolve(network, "convolution_nd", input, kernel[0], weight, bias, stride, ends, dilation, groups)

    options = is_one_of(stride=tuple, padding=(tuple, str), dilation=tuple, groups=int)
    register(target, build, takes_floats("input", "weight"), has_rank("input", dimensions + 2), _bias, options)


def _register_transposed(target: Any, dimensions: int) -> None:
    def build(
        network: TensorRTNetwork, input: Any, weight: Any, bias: Any, stride: Sizes, padding: Sizes,
        output_padding: Sizes, groups: int, dilation: Sizes,
    ) -> Any:  # fmt: skip
        dtype = network.dtype(input)
        if dtype is torch.bfloat16:  # TensorRT has no such layer in bfloat16
            input = network.cast(network.tensor(input), torch.float32)
            weight = weight.float() if isinstance(weight, Tensor) else network.cast(weight, torch.float32)
        outputs = _shape(network, weight)[1] * groups
        ends = padding, tuple(pad - more for pad, more in zip(padding, output_padding, strict=True))
        result = _convolve(network, "deconvolution_nd", input, outputs, weight, bias, stride, ends, dilation, groups)
        return network.cast(result, dtype)

    options = is_one_of(stride=tuple, padding=tuple, output_padding=tuple, dilation=tuple, groups=int)
    crops = where(
        lambda operation: all(
            more <= pad
            for pad, more in zip(operation.arguments["padding"], operation.arguments["output_padding"], strict=True)
        ),
        "it pads the result by more than it cuts off, which TensorRT does not support",
    )
    is_layer = all_of(takes_floats("input", "weight"), has_rank("input", dimensions + 2), _bias, options)
    register(target, build, is_layer, crops, _has_no_gaps)


def _has_no_gaps(operation: Operation) -> str | None:
    """Refuse a transposed convolution with both stride and dilation, since TensorRT has either alone."""
    stride, dilation = operation.arguments["stride"], operation.arguments["dilation"]
    return "TensorRT does not combine stride and dilation" if max(stride) > 1 and max(dilation) > 1 else None


def _convolve(
    network: TensorRTNetwork, kind: str, input: Any, outputs: int, weight: Any, bias: Any, stride: Sizes,
    ends: tuple[Sizes, Sizes], dilation: Sizes, groups: int,
) -> Any:  # fmt: skip
    """Add a layer; a constant weight is part of it, a computed one is an input of it."""

    image = _image(network, input, len(stride))
    dtype, sizes = network.dtype(image), _shape(network, weight)
    window, inputs = _over_image(sizes[2:], 1), {}
    if isinstance(weight, Tensor):
        weights = network.weights(weight, dtype)
    else:
        weights = network.no_weights(dtype)
        inputs = {1: network.reshape(weight, [*sizes[:2], *window]) if len(stride) == 1 else weight}
    shift = network.no_weights(dtype) if bias is None else network.weights(bias, dtype)
    before, after = ends
    result = network.add(
        kind, image, outputs, window, weights, shift, inputs=inputs, stride_nd=_over_image(stride, 1),
        pre_padding=_over_image(before, 0), post_padding=_over_image(after, 0),
        dilation_nd=_over_image(dilation, 1), num_groups=groups,
    )  # fmt: skip
    return _from_image(network, result, len(stride))


def _shape(network: TensorRTNetwork, weight: Any) -> Sizes:
    return tuple(weight.shape) if isinstance(weight, Tensor) else network.shape(weight)


def _paddings(padding: Any, window: Sizes, dilation: Sizes) -> tuple[Sizes, Sizes]:
    """Return the padding before and after each dimension; with ``"same"``, an odd one is larger after it."""
    if not isinstance(padding, str):
        return padding, padding
    totals = [step * (size - 1) if padding == "same" else 0 for step, size in zip(dilation, window, strict=True)]
    return tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)


def linear(network: TensorRTNetwork, input: Any, weight: Any, bias: Any) -> Any:
    """Multiply by the transposed weight, and add the bias."""
    tensor = network.tensor(input)
    rank = max(2, network.rank(tensor))
    none, transposed = (setting("MatrixOperation", kind) for kind in ("NONE", "TRANSPOSE"))
    matrix = network.tensor(weight, network.dtype(tensor), rank)
    result = network.add("matrix_multiply", network.tensor(tensor, rank=rank), none, matrix, transposed)
    if bias is not None:
        result = combine(network, "SUM", result, network.tensor(bias, network.dtype(tensor), rank))
    return result


def batch_norm(
    network: TensorRTNetwork, input: Any, running_mean: Tensor, running_var: Tensor, weight: Tensor | None,
    bias: Tensor | None, training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Scale and shift each channel by numbers that are computed in advance."""
    factor = (running_var.detach().double() + eps).rsqrt()
    factor = factor if weight is None else factor * weight.detach()
    shift = -running_mean.detach() * factor
    shift = shift if bias is None else shift + bias.detach()
    across = (-1, *(1,) * (network.rank(input) - 2))
    dtype = network.dtype(input)
    scaled = combine(network, "PROD", input, network.tensor(factor.view(across), dtype, network.rank(input)))
    return combine(network, "SUM", scaled, network.tensor(shift.view(across), dtype, network.rank(input)))


def layer_norm(
    network: TensorRTNetwork, input: Any, normalized_shape: Sizes, weight: Any, bias: Any, eps: float
) -> Any:
    """Normalize over the last dimensions."""
    rank, dtype = network.rank(input), network.dtype(input)
    axes = sum(1 << (rank - 1 - number) for number in range(len(normalized_shape)))
    scale = torch.ones(normalized_shape) if weight is None else weight
    shift = torch.zeros(normalized_shape) if bias is None else bias
    kind = "normalization_v2" if hasattr(network.definition, "add_normalization_v2") else "normalization"
    operands = (network.tensor(input), network.tensor(scale, dtype, rank), network.tensor(shift, dtype, rank))
    return network.add(kind, *operands, axes, epsilon=eps)


def embedding(network: TensorRTNetwork, input: Any, weight: Any, **options: Any) -> Any:
    """Gather rows of the weight."""
    return network.add("gather", network.tensor(weight), network.tensor(input), 0)


def weight_norm(network: TensorRTNetwork, v: Tensor, g: Tensor, dim: int) -> Tensor:
    """Compute a normalized weight, once."""
    return _WEIGHT_NORM(v.detach(), g.detach(), dim)


# Pooling.


def _pool(
    network: TensorRTNetwork, input: Any, kind: str, window: Sizes, stride: Sizes, padding: Sizes, **settings: Any
) -> Any:
    result = network.add(
        "pooling_nd", _image(network, input, len(window)), setting("PoolingType", kind), _over_image(window, 1),
        stride_nd=_over_image(stride, 1), padding_nd=_over_image(padding, 0), **settings,
    )  # fmt: skip
    return _from_image(network, result, len(window))


def _register_max_pool(target: Any, dimensions: int) -> None:
    def build(
        network: TensorRTNetwork, input: Any, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes,
        ceil_mode: bool, return_indices: bool,
    ) -> Any:  # fmt: skip
        mode = setting("PaddingMode", "EXPLICIT_ROUND_UP" if ceil_mode else "EXPLICIT_ROUND_DOWN")
        return _pool(network, input, "MAX", kernel_size, stride, padding, padding_mode=mode)

    options = is_one_of(kernel_size=tuple, stride=tuple, padding=tuple, ceil_mode=int)
    plain = has_values(dilation=((1,) * dimensions,), return_indices=False)
    register(target, build, takes_floats("input"), has_rank("input", dimensions + 2), options, plain, _rounds_alike)


def _rounds_alike(operation: Operation) -> str | None:
    """Refuse windows that start behind the input, which PyTorch drops and TensorRT keeps."""
    arguments, shape = operation.arguments, shape_of(operation, operation.arguments["input"])
    assert shape is not None
    if arguments["ceil_mode"]:
        windows = zip(arguments["kernel_size"], arguments["stride"], arguments["padding"], strict=True)
        for size, (window, step, pad) in zip(shape[2:], windows, strict=False):
            count = -(-(size + 2 * pad - window) // step) + 1
            if (count - 1) * step >= size + pad:
                return "its last window starts behind the input, where PyTorch leaves it out"
    return None


def _register_avg_pool(target: Any, dimensions: int) -> None:
    def build(
        network: TensorRTNetwork, input: Any, kernel_size: Sizes, stride: Sizes, padding: Sizes, ceil_mode: bool,
        count_include_pad: bool, divisor_override: None = None,
    ) -> Any:  # fmt: skip
        excludes = not count_include_pad
        return _pool(network, input, "AVERAGE", kernel_size, stride, padding, average_count_excludes_padding=excludes)

    options = is_one_of(kernel_size=tuple, stride=tuple, padding=tuple, count_include_pad=int)
    plain = has_values(ceil_mode=False, divisor_override=None)
    register(target, build, takes_floats("input"), has_rank("input", dimensions + 2), options, plain)


def _divides(operation: Operation) -> str | None:
    """Accept adaptive pooling to one element, or of fixed sizes; the largest of windows only if these are equal."""
    output = operation.arguments["output_size"]
    if all(size == 1 for size in output):
        return None
    value = operation.arguments["input"]
    assert isinstance(value, Node)
    least, typical, most = sizes_of(value)
    if least[2:] != most[2:]:
        return "its windows depend on a size that varies"
    is_average = "return_indices" not in operation.arguments
    return None if is_average or _are_equal(typical[2:], output) else "its windows are of different sizes"


def _are_equal(sizes: Sequence[Any], counts: Sequence[int]) -> bool:
    return all(size % count == 0 for size, count in zip(sizes, counts, strict=True))


def _average(network: TensorRTNetwork, input: Any, counts: Sequence[int]) -> Any:
    """Average windows of different sizes, by a product with a matrix along each dimension."""
    value, none = network.tensor(input), setting("MatrixOperation", "NONE")
    for number, count in enumerate(counts):
        whole = torch.eye(network.shape(value)[2 + number], dtype=torch.float64)
        matrix = network.tensor(F.adaptive_avg_pool1d(whole, count), network.dtype(value), network.rank(value))
        rows = transpose(network, value, 2 + number, -1)
        value = transpose(network, network.add("matrix_multiply", rows, none, matrix, none), 2 + number, -1)
    return value


def _register_adaptive(target: Any, dimensions: int, kind: str) -> None:
    def build(network: TensorRTNetwork, input: Any, output_size: Sizes, return_indices: bool = False) -> Any:
        if all(size == 1 for size in output_size):
            axes = sum(1 << (2 + number) for number in range(dimensions))
            operation = setting("ReduceOperation", "AVG" if kind == "AVERAGE" else "MAX")
            return network.add("reduce", network.tensor(input), operation, axes, True)
        sizes = network.sizes(input)[2:]
        if not _are_equal(sizes, output_size):
            return _average(network, input, output_size)
        window = tuple(size // count for size, count in zip(sizes, output_size, strict=True))  # type: ignore[operator]

        return _pool(network, input, kind, window, window, (0,) * dimensions)

    no_indices = where(lambda operation: not operation.arguments.get("return_indices"), "it returns indices")
    sizes = has_rank("input", dimensions + 2), is_one_of(output_size=tuple), _divides
    register(target, build, takes_floats("input"), no_indices, *sizes)


_MODES = {"nearest": "NEAREST", "linear": "LINEAR", "bilinear": "LINEAR", "trilinear": "LINEAR", "bicubic": "CUBIC"}
_PADDINGS = {"zeros": "FILL", "border": "CLAMP", "reflection": "REFLECT"}


def interpolate(
    network: TensorRTNetwork, input: Any, size: Any, scale_factor: Any, mode: str, align_corners: bool | None,
    **options: Any,
) -> Any:  # fmt: skip
    """Resize images to other sizes."""
    target = _sizes_after(network.shape(network.tensor(input)), size, scale_factor)
    coordinates = "ASYMMETRIC" if mode == "nearest" else "ALIGN_CORNERS" if align_corners else "HALF_PIXEL"
    settings: dict[str, Any] = {
        "resize_mode": setting("InterpolationMode", _MODES[mode]),
        "coordinate_transformation": setting("ResizeCoordinateTransformation", coordinates),
    }
    if mode == "nearest":
        settings["nearest_rounding"] = setting("ResizeRoundMode", "FLOOR")
    if mode == "bicubic":
        settings["cubic_coeff"] = -0.75
    sizes = network.sizes(input)
    if all(isinstance(length, int) for length in sizes):
        return network.add("resize", network.tensor(input), shape=(*sizes[:2], *target), **settings)
    inputs = {1: network.cast(network.vector([*sizes[:2], *target]), torch.int32)}
    return network.add("resize", network.tensor(input), inputs=inputs, **settings)


def _sizes_after(shape: Sizes, size: Any, scale_factor: Any) -> Sizes:
    lengths = shape[2:]
    if size is not None:
        return (size,) * len(lengths) if isinstance(size, int) else tuple(size)
    factors = (scale_factor,) * len(lengths) if isinstance(scale_factor, (int, float)) else scale_factor
    return tuple(int(length * factor) for length, factor in zip(lengths, factors, strict=True))


def _resizes(operation: Operation) -> str | None:
    """Accept interpolation of fixed sizes, where the sizes alone decide the positions of the elements."""
    arguments = operation.arguments
    value, size, scale = arguments["input"], arguments["size"], arguments["scale_factor"]
    assert isinstance(value, Node)
    least, typical, most = sizes_of(value)
    if least[2:] != most[2:]:
        return "it resizes a size that varies"
    parts = size if isinstance(size, tuple) else (size,)
    if not all(isinstance(part, (int, float)) for part in (parts if size is not None else ())):
        return f"its size is {size!r}"
    factors = scale if isinstance(scale, tuple) else (scale,) * len(typical[2:])
    if size is None and any(
        length * factor != int(length * factor) for length, factor in zip(typical[2:], factors, strict=True)
    ):  # type: ignore[operator]
        return "its factor does not give whole sizes"
    return has_values(antialias=False)(operation)


def grid_sample(
    network: TensorRTNetwork, input: Any, grid: Any, mode: str, padding_mode: str, align_corners: bool | None
) -> Any:
    """Sample images at given places."""
    return network.add(
        "grid_sample", *network.common([input, grid]), interpolation_mode=setting("InterpolationMode", _MODES[mode]),
        sample_mode=setting("SampleMode", _PADDINGS[padding_mode]), align_corners=bool(align_corners),
    )  # fmt: skip


_bias: Predicate = has_constant("bias", optional=True)
for _target, _dimensions in ((F.conv1d, 1), (F.conv2d, 2), (F.conv3d, 3)):
    _register_convolution(_target, _dimensions)
for _target, _dimensions in ((F.conv_transpose1d, 1), (F.conv_transpose2d, 2), (F.conv_transpose3d, 3)):
    _register_transposed(_target, _dimensions)
register(
    F.linear,
    linear,
    takes_floats("input", "weight"),
    has_rank("input", *range(2, 9)),
    has_rank("weight", 2),
    any_of(has_values(bias=None), takes_floats("bias")),
)
register(
    F.batch_norm,
    batch_norm,
    takes_floats("input"),
    has_constant("running_mean", "running_var"),
    has_constant("weight", "bias", optional=True),
    has_values(training=False),
)
register(
    F.layer_norm,
    layer_norm,
    takes_floats("input"),
    has_constant("weight", "bias", optional=True),
    is_one_of(normalized_shape=tuple),
)
register(_WEIGHT_NORM, weight_norm, has_constant("v", "g"), is_one_of(dim=int), counts=0)
register(F.embedding, embedding, takes_floats("weight"), has_values(max_norm=None))
for _target, _dimensions in ((F.max_pool1d, 1), (F.max_pool2d, 2), (F.max_pool3d, 3)):
    _register_max_pool(_target, _dimensions)
for _target, _dimensions in ((F.avg_pool1d, 1), (F.avg_pool2d, 2), (F.avg_pool3d, 3)):
    _register_avg_pool(_target, _dimensions)
for _target, _dimensions in ((F.adaptive_avg_pool1d, 1), (F.adaptive_avg_pool2d, 2), (F.adaptive_avg_pool3d, 3)):
    _register_adaptive(_target, _dimensions, "AVERAGE")
for _target, _dimensions in ((F.adaptive_max_pool1d, 1), (F.adaptive_max_pool2d, 2), (F.adaptive_max_pool3d, 3)):
    _register_adaptive(_target, _dimensions, "MAX")
_is_resized = where(lambda operation: operation.arguments["mode"] in _MODES, "TensorRT has no such mode")
register(F.interpolate, interpolate, takes_floats("input"), has_rank("input", 3, 4, 5), _is_resized, _resizes)
_samples = has_values(mode=("nearest", "bilinear", "bicubic"), padding_mode=tuple(_PADDINGS))
register(F.grid_sample, grid_sample, takes_floats("input", "grid"), has_rank("input", 4), _samples)
