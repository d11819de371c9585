"""TensorRT's converters for operations that only move, join and reshape values, and for sizes that programs read."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.lowering.known_program import Operation
from fx.lowering.support import shape_of, where
from fx.lowering.tensorrt.elementwise import compute
from fx.lowering.tensorrt.network import Number, Size, TensorRTNetwork
from fx.lowering.tensorrt.predicates import DTYPES, is_one_of, register
from fx.lowering.tensorrt.ranges import sizes_of
from fx.node import Node

_REST = -1
"""The size in a program that is inferred from the other sizes."""


def reshape(network: TensorRTNetwork, input: Any, sizes: Sequence[Number]) -> Any:
    """Reshape to other sizes."""
    return network.reshape(network.tensor(input), list(sizes))


def flatten(network: TensorRTNetwork, input: Any, start_dim: int, end_dim: int) -> Any:
    """Merge a range of dimensions into one."""
    sizes = network.sizes(input)
    if not sizes:
        return reshape(network, input, [1])
    first, last = start_dim % len(sizes), end_dim % len(sizes)
    return reshape(network, input, [*sizes[:first], _product(sizes[first : last + 1]), *sizes[last + 1 :]])


def _product(sizes: Sequence[Number]) -> int:
    fixed = [size for size in sizes if not isinstance(size, Size)]
    return math.prod(fixed) if len(fixed) == len(sizes) else _REST


def unflatten(network: TensorRTNetwork, input: Any, dim: int, sizes: Sequence[Number]) -> Any:
    """Split one dimension into several."""
    own = network.sizes(input)
    place = dim % len(own)
    return reshape(network, input, [*own[:place], *sizes, *own[place + 1 :]])


def permute(network: TensorRTNetwork, input: Any, dims: Sequence[int]) -> Any:
    """Permute the dimensions."""
    rank = network.rank(input)
    return network.add("shuffle", network.tensor(input), first_transpose=tuple(dim % rank for dim in dims))


def transpose(network: TensorRTNetwork, input: Any, dim0: int, dim1: int) -> Any:
    """Exchange two dimensions."""
    order = list(range(network.rank(input)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(network, input, order)


def squeeze(network: TensorRTNetwork, input: Any, dim: Any = None) -> Any:
    """Remove dimensions of size 1."""
    sizes = network.sizes(input)
    chosen = range(len(sizes)) if dim is None else (dim,) if isinstance(dim, int) else dim
    dropped = {number % len(sizes) for number in chosen if sizes[number] == 1}
    return reshape(network, input, [size for place, size in enumerate(sizes) if place not in dropped])


def unsqueeze(network: TensorRTNetwork, input: Any, dim: int) -> Any:
    """Insert a dimension of size 1."""
    sizes = network.sizes(input)
    place = dim % (len(sizes) + 1)
    return reshape(network, input, [*sizes[:place], 1, *sizes[place:]])


def same(network: TensorRTNetwork, input: Any, memory_format: Any = None) -> Any:
    """Return the value itself, since an engine chooses its own layouts."""
    return network.tensor(input)


def cat(network: TensorRTNetwork, tensors: Sequence[Any], dim: int) -> Any:
    """Join tensors along a dimension."""
    joined = network.common(tensors)
    return network.add("concatenation", joined, axis=dim % network.rank(joined[0]))


def stack(network: TensorRTNetwork, tensors: Sequence[Any], dim: int) -> Any:
    """Join tensors along a new dimension."""
    return cat(network, [unsqueeze(network, part, dim) for part in tensors], dim % (network.rank(tensors[0]) + 1))


def pixel_shuffle(network: TensorRTNetwork, input: Any, upscale_factor: int) -> Any:
    """Rearrange channels into blocks of pixels."""
    *batch, channels, height, width = network.sizes(input)
    r, rank = upscale_factor, len(batch)
    outputs = compute(network, operator.floordiv, channels, r * r)
    parts = reshape(network, input, [*batch, outputs, r, r, height, width])
    order = (*range(rank), *(rank + place for place in (0, 3, 1, 4, 2)))
    moved = network.add("shuffle", parts, first_transpose=order)
    return network.reshape(
        moved, [*batch, outputs, *(compute(network, operator.mul, length, r) for length in (height, width))]
    )  # fmt: skip


def to(network: TensorRTNetwork, input: Any, *args: Any, **options: Any) -> Any:
    """Convert to another type of elements."""
    dtype = next((value for value in (*args, *options.values()) if isinstance(value, torch.dtype)), None)
    return network.tensor(input) if dtype is None else network.cast(network.tensor(input), network.working(dtype))


def _converts(operation: Operation) -> str | None:
    """Accept a conversion of the element type alone, not of the device, nor to the type or device of another tensor."""
    for name, value in operation.arguments.items():
        if name == 0 or value is None or isinstance(value, (torch.dtype, bool)):
            continue
        if not (isinstance(value, Node) and value.meta.get("type") is torch.dtype):
            return f"its {name} is {value!r}"
    recorded = operation.metadata()
    return None if recorded is not None and recorded.dtype in DTYPES else "engines do not support its dtype"


# Sizes, and other properties of tensors that programs read.


def size(network: TensorRTNetwork, input: Any, dim: int | None = None) -> Any:
    """Return the size of a dimension, or all sizes."""
    sizes = network.sizes(input)
    return tuple(sizes) if dim is None else sizes[dim]


def attribute(network: TensorRTNetwork, value: Any, name: str) -> Any:
    """Return ``x.shape``, ``x.ndim`` or ``x.dtype``."""
    if name == "dtype":
        return network.dtype(value)
    return size(network, value) if name == "shape" else network.rank(value)


def movedim(network: TensorRTNetwork, input: Any, source: int, destination: int) -> Any:
    """Move a dimension to another place."""
    rank = network.rank(input)
    order = list(range(rank))
    order.insert(destination % rank, order.pop(source % rank))
    return permute(network, input, order)


def _is_of_sizes(operation: Operation) -> str | None:
    """Accept the length of a shape."""
    (value,) = operation.node.args
    return None if isinstance(value, Node) and value.meta.get("type") is torch.Size else "it is not of a shape"


def _is_known_attribute(operation: Operation) -> str | None:
    value, name = operation.node.args
    assert isinstance(value, Node)
    is_known = name in ("shape", "ndim") or (name == "dtype" and operation.subject.dtype(value) in DTYPES)
    return None if is_known else f"engines do not support `.{name}`"


def _has_sizes(operation: Operation) -> str | None:
    """Accept sizes that are integers, or integers that the program computes."""
    for name, value in operation.arguments.items():
        for length in value if isinstance(value, (tuple, list)) else ():
            if not (type(length) is int or (isinstance(length, Node) and length.meta.get("type") is int)):
                return f"its {name} is not made of numbers"
    return None


def _squeezes(operation: Operation) -> str | None:
    """Refuse sizes that vary: whether a size is 1 must be the same in all runs."""
    least, _, most = sizes_of(operation.node.all_input_nodes[0])
    varies = [place for place, (low, high) in enumerate(zip(least, most, strict=True)) if low != high]
    dim = operation.arguments.get("dim")
    chosen = range(len(least)) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    if not all(isinstance(number, int) for number in chosen):
        return f"its dim is {dim!r}"
    return "a size that varies may be 1" if {number % len(least) for number in chosen}.intersection(varies) else None


def _has_channels(operation: Operation) -> bool:
    shape = shape_of(operation, operation.arguments["input"])
    return shape is not None and len(shape) >= 3 and isinstance(operation.arguments["upscale_factor"], int)


def _register(target: Any, build: Any, *predicates: Any) -> None:
    register(target, build, *predicates, counts=0)


_dim, _dims = is_one_of(dim=int), is_one_of(dims=tuple)
_register(torch.reshape, lambda network, input, shape: network.reshape(network.tensor(input), shape), _has_sizes)
_register(Tensor.view, lambda network, input, size: network.reshape(network.tensor(input), size), _has_sizes)
_register(torch.flatten, flatten, is_one_of(start_dim=int, end_dim=int))
_register(torch.unflatten, unflatten, _dim, _has_sizes)
_register(torch.permute, permute, _dims)
_register(torch.transpose, transpose, is_one_of(dim0=int, dim1=int))
_register(torch.squeeze, squeeze, _squeezes)
_register(torch.unsqueeze, unsqueeze, _dim)
_register(Tensor.contiguous, same)
_register(torch.clone, same)
_register(torch.cat, cat, _dim)
_register(torch.stack, stack, _dim)
_register(F.pixel_shuffle, pixel_shuffle, where(_has_channels, "its input is not an image"))
_register(Tensor.to, to, _converts)
register(Tensor.size, size, is_one_of(dim=(int, type(None))), counts=0, stored=True)
register(Tensor.dim, lambda network, value: network.rank(value), counts=0, stored=True)
_register(torch.movedim, movedim, is_one_of(source=int, destination=int))
register(len, lambda network, sizes: len(sizes), _is_of_sizes, counts=0, stored=True)
register(getattr, attribute, _is_known_attribute, counts=0, stored=True)
