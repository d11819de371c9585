"""TensorRT's converters for what only moves, joins and reshapes values, and for sizes that programs ask for."""

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
"""What a program writes for the size that is left over."""


def reshape(network: TensorRTNetwork, input: Any, sizes: Sequence[Number]) -> Any:
    """The same values in other sizes."""
    return network.reshape(network.tensor(input), list(sizes))


def flatten(network: TensorRTNetwork, input: Any, start_dim: int, end_dim: int) -> Any:
    """Some dimensions as one."""
    sizes = network.sizes(input)
    if not sizes:
        return reshape(network, input, [1])
    first, last = start_dim % len(sizes), end_dim % len(sizes)
    return reshape(network, input, [*sizes[:first], _product(sizes[first : last + 1]), *sizes[last + 1 :]])


def _product(sizes: Sequence[Number]) -> int:
    fixed = [size for size in sizes if not isinstance(size, Size)]
    return math.prod(fixed) if len(fixed) == len(sizes) else _REST


def unflatten(network: TensorRTNetwork, input: Any, dim: int, sizes: Sequence[Number]) -> Any:
    """One dimension as several."""
    own = network.sizes(input)
    place = dim % len(own)
    return reshape(network, input, [*own[:place], *sizes, *own[place + 1 :]])


def permute(network: TensorRTNetwork, input: Any, dims: Sequence[int]) -> Any:
    """Dimensions in another order."""
    rank = network.rank(input)
    return network.add("shuffle", network.tensor(input), first_transpose=tuple(dim % rank for dim in dims))


def transpose(network: TensorRTNetwork, input: Any, dim0: int, dim1: int) -> Any:
    """Two dimensions exchanged."""
    order = list(range(network.rank(input)))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(network, input, order)


def squeeze(network: TensorRTNetwork, input: Any, dim: Any = None) -> Any:
    """Without dimensions of size 1."""
    sizes = network.sizes(input)
    chosen = range(len(sizes)) if dim is None else (dim,) if isinstance(dim, int) else dim
    dropped = {one % len(sizes) for one in chosen if sizes[one] == 1}
    return reshape(network, input, [size for place, size in enumerate(sizes) if place not in dropped])


def unsqueeze(network: TensorRTNetwork, input: Any, dim: int) -> Any:
    """With one more dimension of size 1."""
    sizes = network.sizes(input)
    place = dim % (len(sizes) + 1)
    return reshape(network, input, [*sizes[:place], 1, *sizes[place:]])


def same(network: TensorRTNetwork, input: Any, memory_format: Any = None) -> Any:
    """The value itself: layouts are the engine's own business."""
    return network.tensor(input)


def cat(network: TensorRTNetwork, tensors: Sequence[Any], dim: int) -> Any:
    """Joined along a dimension."""
    joined = network.common(tensors)
    return network.add("concatenation", joined, axis=dim % network.rank(joined[0]))


def stack(network: TensorRTNetwork, tensors: Sequence[Any], dim: int) -> Any:
    """Joined along a new dimension."""
    return cat(network, [unsqueeze(network, one, dim) for one in tensors], dim % (network.rank(tensors[0]) + 1))


def pixel_shuffle(network: TensorRTNetwork, input: Any, upscale_factor: int) -> Any:
    """Channels as pixels."""
    *batch, channels, height, width = network.sizes(input)
    r, rank = upscale_factor, len(batch)
    left = compute(network, operator.floordiv, channels, r * r)
    parts = reshape(network, input, [*batch, left, r, r, height, width])
    order = (*range(rank), *(rank + place for place in (0, 3, 1, 4, 2)))
    moved = network.add("shuffle", parts, first_transpose=order)
    return network.reshape(
        moved, [*batch, left, *(compute(network, operator.mul, one, r) for one in (height, width))]
    )  # fmt: skip


def to(network: TensorRTNetwork, input: Any, *given: Any, **options: Any) -> Any:
    """In another type of elements."""
    dtype = next((one for one in (*given, *options.values()) if isinstance(one, torch.dtype)), None)
    return network.tensor(input) if dtype is None else network.cast(network.tensor(input), network.working(dtype))


def _converts(operation: Operation) -> str | None:
    """Only types of elements: not devices, and not what depends on another tensor."""
    for name, value in operation.arguments.items():
        if name == 0 or value is None or isinstance(value, (torch.dtype, bool)):
            continue
        if not (isinstance(value, Node) and value.meta.get("type") is torch.dtype):
            return f"its {name} is {value!r}"
    recorded = operation.metadata()
    return None if recorded is not None and recorded.dtype in DTYPES else "engines do not work on such elements"


# Sizes, and other things that programs ask of tensors.


def size(network: TensorRTNetwork, input: Any, dim: int | None = None) -> Any:
    """The size of a dimension, or all of them."""
    sizes = network.sizes(input)
    return tuple(sizes) if dim is None else sizes[dim]


def attribute(network: TensorRTNetwork, value: Any, name: str) -> Any:
    """``x.shape``, ``x.ndim`` and ``x.dtype``."""
    if name == "dtype":
        return network.dtype(value)
    return size(network, value) if name == "shape" else network.rank(value)


def _is_known_attribute(operation: Operation) -> str | None:
    value, name = operation.node.args
    assert isinstance(value, Node)
    is_known = name in ("shape", "ndim") or (name == "dtype" and operation.subject.dtype(value) in DTYPES)
    return None if is_known else f"engines know nothing of `.{name}`"


def _has_sizes(operation: Operation) -> str | None:
    """Return whether sizes are numbers, or values of the program that are numbers."""
    for name, given in operation.arguments.items():
        for one in given if isinstance(given, (tuple, list)) else ():
            if not (type(one) is int or (isinstance(one, Node) and one.meta.get("type") is int)):
                return f"its {name} is not made of numbers"
    return None


def _squeezes(operation: Operation) -> str | None:
    """A size of 1 must be 1 in all runs, and others never."""
    least, _, most = sizes_of(operation.node.all_input_nodes[0])
    varies = [place for place, (one, other) in enumerate(zip(least, most, strict=True)) if one != other]
    dim = operation.arguments.get("dim")
    chosen = range(len(least)) if dim is None else dim if isinstance(dim, tuple) else (dim,)
    if not all(isinstance(one, int) for one in chosen):
        return f"its dim is {dim!r}"
    return "a size that varies may be 1" if {one % len(least) for one in chosen}.intersection(varies) else None


def _has_channels(operation: Operation) -> bool:
    shape = shape_of(operation, operation.arguments["input"])
    return shape is not None and len(shape) >= 3 and isinstance(operation.arguments["upscale_factor"], int)


def _register(target: Any, build: Any, *predicates: Any) -> None:
    register(target, build, *predicates, counts=False)


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
register(Tensor.size, size, is_one_of(dim=(int, type(None))), counts=False, stored=True)
register(Tensor.dim, lambda network, value: network.rank(value), counts=False, stored=True)
register(getattr, attribute, _is_known_attribute, counts=False, stored=True)
