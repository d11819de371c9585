"""Rows of the table of equal spellings for operators of ATen, as exported programs call them.

An operator ``aten.name`` has the meaning of the function of ``torch`` by that name, or of the method of tensors, whose
rows are in :mod:`fx.canonical.equal_spellings`. The operators here have neither, or only a Python function with other
parameters. Rows have the same form; ``aten.name`` means all overloads, ``aten.name.overload`` one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.canonical.equal_spellings import SIZE1, SIZE2, SIZE3, EqualSpellings, activation, call, or_default, row

from fx.canonical.equal_spellings import pair, sequence, single, triple  # isort: skip

aten: Any = torch.ops.aten


def _convolution(
    dims: int, convolution: Callable[..., Any], transposed_convolution: Callable[..., Any], sizes: tuple[str, ...]
) -> tuple[EqualSpellings, ...]:
    """Return rows for convolution of any kind: the length of the stride decides between the dimensions."""
    zeros = (0,) * dims
    return (
        row(aten.convolution, to=lambda input, weight, bias, stride, padding, dilation, transposed=False,
            output_padding=zeros, groups=1:
            call(convolution, input, weight, bias, sequence(stride), sequence(padding), sequence(dilation), groups),
            only={"transposed": False}, kinds={"stride": sizes}),
        row(aten.convolution, to=lambda input, weight, bias, stride, padding, dilation, transposed, output_padding,
            groups:
            call(transposed_convolution, input, weight, bias, sequence(stride), sequence(padding),
            sequence(output_padding), groups, sequence(dilation)), only={"transposed": True}, kinds={"stride": sizes}),
    )  # fmt: skip


def _max_pool(operation: Any, function: Callable[..., Any], sizes: Callable[[Any], Any]) -> EqualSpellings:
    return row(operation, to=lambda input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False:
        call(function, input, sizes(kernel_size), sizes(or_default(stride, kernel_size)), sizes(padding),
        sizes(dilation), ceil_mode, return_indices=True))  # fmt: skip


def _nearest(operation: Any, mode: str, sizes: tuple[str, ...]) -> EqualSpellings:
    """Return a row for one way to resample by the nearest value."""
    kinds = {"output_size": (*sizes, "none"), "scale_factors": (*sizes, "none")}
    return row(operation, to=lambda input, output_size, scale_factors:
        call(F.interpolate, input, size=output_size, scale_factor=scale_factors, mode=mode, align_corners=None,
        recompute_scale_factor=None, antialias=False), kinds=kinds)  # fmt: skip


def _interpolation(operation: Any, mode: str, sizes: tuple[str, ...], antialias: bool = False) -> EqualSpellings:
    """Return a row for one way to resample by interpolation."""
    kinds = {"output_size": (*sizes, "none"), "scale_factors": (*sizes, "none")}
    return row(operation, to=lambda input, output_size, align_corners, scale_factors:
        call(F.interpolate, input, size=output_size, scale_factor=scale_factors, mode=mode, align_corners=align_corners,
        recompute_scale_factor=None, antialias=antialias), kinds=kinds)  # fmt: skip


ATEN_ROWS: tuple[EqualSpellings, ...] = (
    # Activations that are functions of Python.
    activation(F.silu, aten.silu, inplace=False),
    activation(F.silu, aten.silu_, inplace=True),
    activation(F.mish, aten.mish, inplace=False),
    activation(F.mish, aten.mish_, inplace=True),
    activation(F.hardswish, aten.hardswish, inplace=False),
    activation(F.hardswish, aten.hardswish_, inplace=True),
    activation(F.hardsigmoid, aten.hardsigmoid, inplace=False),
    activation(F.hardsigmoid, aten.hardsigmoid_, inplace=True),
    row(aten.leaky_relu, to=lambda input, negative_slope=0.01:
        call(F.leaky_relu, input, negative_slope, inplace=False)),
    row(aten.leaky_relu_, to=lambda input, negative_slope=0.01:
        call(F.leaky_relu, input, negative_slope, inplace=True)),
    row(aten.elu, to=lambda input, alpha=1.0, scale=1, input_scale=1:
        call(F.elu, input, alpha, inplace=False), only={"scale": 1, "input_scale": 1}),
    row(aten.elu_, to=lambda input, alpha=1.0, scale=1, input_scale=1:
        call(F.elu, input, alpha, inplace=True), only={"scale": 1, "input_scale": 1}),
    row(aten.hardtanh, to=lambda input, min_val=-1.0, max_val=1.0:
        call(F.hardtanh, input, min_val, max_val, inplace=False)),
    row(aten.hardtanh_, to=lambda input, min_val=-1.0, max_val=1.0:
        call(F.hardtanh, input, min_val, max_val, inplace=True)),
    row(aten.relu6, to=lambda input: call(F.hardtanh, input, min_val=0.0, max_val=6.0, inplace=False)),
    row(aten.relu6_, to=lambda input: call(F.hardtanh, input, min_val=0.0, max_val=6.0, inplace=True)),
    row(aten.glu, to=lambda input, dim=-1: call(F.glu, input, dim)),
    row(aten.log_sigmoid, to=lambda input: call(F.logsigmoid, input)),
    # Logic: the operators that Python's `&` calls.
    row(aten.__and__, to=lambda self, other: call(operator.and_, self, other)),
    row(aten.__or__, to=lambda self, other: call(operator.or_, self, other)),
    row(aten.__xor__, to=lambda self, other: call(operator.xor, self, other)),
    row(aten.__lshift__, to=lambda self, other: call(operator.lshift, self, other)),
    row(aten.__rshift__, to=lambda self, other: call(operator.rshift, self, other)),
    # Normalization. The function reads whether cuDNN is enabled when it runs, as in the model that was exported.
    row(aten.batch_norm, to=lambda input, weight, bias, running_mean, running_var, training, momentum, eps,
        cudnn_enabled=True:
        call(F.batch_norm, input, running_mean, running_var, weight, bias, training, momentum, eps),
        only={"training": False}),
    row(aten.layer_norm, to=lambda input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True:
        call(F.layer_norm, input, sequence(normalized_shape), weight, bias, eps)),
    row(aten.group_norm, to=lambda input, num_groups, weight=None, bias=None, eps=1e-05, cudnn_enabled=True:
        call(F.group_norm, input, num_groups, weight, bias, eps)),
    row(aten.instance_norm, to=lambda input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps,
        cudnn_enabled=True:
        call(F.instance_norm, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)),
    *_convolution(1, F.conv1d, F.conv_transpose1d, SIZE1),
    *_convolution(2, F.conv2d, F.conv_transpose2d, SIZE2),
    *_convolution(3, F.conv3d, F.conv_transpose3d, SIZE3),
    # Pooling and sizes.
    _max_pool(aten.max_pool1d_with_indices, F.max_pool1d, single),
    _max_pool(aten.max_pool2d_with_indices, F.max_pool2d, pair),
    _max_pool(aten.max_pool3d_with_indices, F.max_pool3d, triple),
    row(aten.adaptive_avg_pool1d, to=lambda input, output_size:
        call(F.adaptive_avg_pool1d, input, single(output_size))),
    row(aten.adaptive_avg_pool2d, to=lambda input, output_size:
        call(F.adaptive_avg_pool2d, input, pair(output_size))),
    row(aten.adaptive_avg_pool3d, to=lambda input, output_size:
        call(F.adaptive_avg_pool3d, input, triple(output_size))),
    row(aten.adaptive_max_pool1d, to=lambda input, output_size:
        call(F.adaptive_max_pool1d, input, single(output_size), return_indices=True)),
    row(aten.adaptive_max_pool2d, to=lambda input, output_size:
        call(F.adaptive_max_pool2d, input, pair(output_size), return_indices=True)),
    row(aten.adaptive_max_pool3d, to=lambda input, output_size:
        call(F.adaptive_max_pool3d, input, triple(output_size), return_indices=True)),
    _nearest(aten.upsample_nearest1d.vec, "nearest", SIZE1),
    _nearest(aten.upsample_nearest2d.vec, "nearest", SIZE2),
    _nearest(aten.upsample_nearest3d.vec, "nearest", SIZE3),
    _nearest(aten._upsample_nearest_exact1d.vec, "nearest-exact", SIZE1),
    _nearest(aten._upsample_nearest_exact2d.vec, "nearest-exact", SIZE2),
    _nearest(aten._upsample_nearest_exact3d.vec, "nearest-exact", SIZE3),
    _interpolation(aten.upsample_linear1d.vec, "linear", SIZE1),
    _interpolation(aten.upsample_bilinear2d.vec, "bilinear", SIZE2),
    _interpolation(aten.upsample_bicubic2d.vec, "bicubic", SIZE2),
    _interpolation(aten.upsample_trilinear3d.vec, "trilinear", SIZE3),
    _interpolation(aten._upsample_bilinear2d_aa.vec, "bilinear", SIZE2, antialias=True),
    _interpolation(aten._upsample_bicubic2d_aa.vec, "bicubic", SIZE2, antialias=True),
    row(aten.pad, to=lambda input, pad, mode="constant", value=None: call(F.pad, input, sequence(pad), mode, value)),
    # Parts, sizes, conversions.
    row(aten.split.Tensor, to=lambda input, split_size, dim=0:
        call(torch.split, tensor=input, split_size_or_sections=split_size, dim=dim)),
    row(aten.split.sizes, to=lambda input, split_size, dim=0:
        call(torch.split, tensor=input, split_size_or_sections=sequence(split_size), dim=dim)),
    row(aten.split_with_sizes, to=lambda input, split_sizes, dim=0:
        call(torch.split, tensor=input, split_size_or_sections=sequence(split_sizes), dim=dim)),
    row(aten.sym_size.int, to=lambda self, dim: call(Tensor.size, self, dim)),
    row(aten.sym_stride.int, to=lambda self, dim: call(Tensor.stride, self, dim)),
    row(aten._to_copy, to=lambda self, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False,
        memory_format=None:
        call(Tensor.to, self, device, dtype, non_blocking, copy=True, memory_format=memory_format),
        only={"layout": None, "pin_memory": None}),
)  # fmt: skip
"""The rows."""
