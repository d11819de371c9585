"""``TensorMetadata``: the shape, type and layout of a tensor, recorded without the tensor (paper, section 6.3)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from fx.arguments import refusal
from fx.errors import PassError

_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
_PER_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)


class TensorMetadata(NamedTuple):
    """Shape, type and layout of a tensor, with the fields of ``torch.fx``.

    It holds no tensor, so it can be stored, compared and pickled with its node.
    """

    shape: torch.Size
    """Size of each dimension."""
    dtype: torch.dtype
    """Type of the elements."""
    requires_grad: bool
    """True if autograd records operations on it."""
    stride: tuple[int, ...]
    """Stride of each dimension, in elements; empty for a tensor without strides, such as a sparse one."""
    memory_format: torch.memory_format | None
    """The first of contiguous, channels last (2d), channels last (3d) that applies; ``None`` if none does."""
    is_quantized: bool
    """True if its dtype is one of torch's quantized ones."""
    qparams: dict[str, Any]
    """``qscheme``, ``scale`` and ``zero_point`` of a quantized tensor, and ``axis`` for per-channel parameters."""


def bytes_recorded(recorded: Any) -> int | None:
    """Return the bytes of the tensors in recorded metadata; ``None`` without metadata, or if a size is unknown."""
    if recorded is None:
        return None
    leaves = pytree.tree_leaves(recorded, is_leaf=lambda value: isinstance(value, TensorMetadata))
    tensors = [leaf for leaf in leaves if isinstance(leaf, (TensorMetadata, torch.Tensor))]
    try:
        return sum(int(math.prod(tensor.shape)) * tensor.dtype.itemsize for tensor in tensors)
    except data_dependent_size_error():
        return None


def data_dependent_size_error() -> type[RuntimeError]:
    """Return the class of the error of torch for the value of a size that depends on elements of tensors."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # noqa: PLC0415 - loads sympy

    return GuardOnDataDependentSymNode


def extract_tensor_metadata(result: torch.Tensor, include_contiguity: bool = True) -> TensorMetadata:
    """Return the metadata of a tensor.

    Args:
        result: any tensor; a fake one has the same metadata as a real one.
        include_contiguity: also determine the memory format.

    >>> extract_tensor_metadata(torch.ones(2, 3)).stride
    (3, 1)
    """
    if not isinstance(result, torch.Tensor):
        raise refusal("extract_tensor_metadata takes a tensor", result, error=PassError)
    quantized = result.is_quantized
    qparams = _quantization(result) if quantized else {}
    stride: tuple[int, ...] = ()
    memory_format = None
    if result.layout is torch.strided:
        stride = result.stride()
        if include_contiguity:
            memory_format = memory_format_of(result)
    # tuple.__new__ takes a third of the time of the constructor, and runs for every value of a program.
    fields = (result.shape, result.dtype, result.requires_grad, stride, memory_format, quantized, qparams)
    return tuple.__new__(TensorMetadata, fields)


def memory_format_of(tensor: torch.Tensor) -> torch.memory_format | None:
    """Return the first of contiguous, channels last (2d), channels last (3d) that applies; ``None`` if none does."""
    try:
        return next((format_ for format_ in _FORMATS if tensor.is_contiguous(memory_format=format_)), None)
    except data_dependent_size_error():  # a size depends on elements
        return None


def _quantization(tensor: torch.Tensor) -> dict[str, Any]:
    scheme: Any = tensor.qscheme()
    if scheme in _PER_TENSOR:
        return {"qscheme": scheme, "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    scales: Any = tensor.q_per_channel_scales()
    zero_points: Any = tensor.q_per_channel_zero_points()
    return {
        "qscheme": scheme,
        "scale": scales.tolist(),
        "zero_point": zero_points.tolist(),
        "axis": tensor.q_per_channel_axis(),
    }
