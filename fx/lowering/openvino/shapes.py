"""Operations that move values, pick some, or ask for sizes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.lowering.known_program import Operation
from fx.lowering.openvino.network import OpenVINONetwork
from fx.lowering.openvino.predicates import add_converter, computes
from fx.lowering.support import has_numbers, has_rank, has_values, where
from fx.node import Node

_END = 2**31 - 1


# Sizes.


def size(network: OpenVINONetwork, self: Any, dim: int | None = None) -> Any:
    """The size of a dimension, or all of them."""
    return network.sizes(self) if dim is None else network.size(self, dim)


_of_tensor = where(
    lambda operation: operation.subject.dtype(operation.node.all_input_nodes[0]) is not None, "it asks no tensor"
)
add_converter(torch.Tensor.size, size, _of_tensor, has_numbers("dim", optional=True), counts=False)
add_converter(torch.Tensor.dim, lambda network, self: network.rank(self), _of_tensor, counts=False)


# Other sizes.


def reshape(network: OpenVINONetwork, input: Any, shape: Sequence[Any]) -> Any:
    """The same values in another shape."""
    return network.add("reshape", network.value(input), network.numbers(shape), False)


def view(network: OpenVINONetwork, self: Any, *sizes: Any, size: Sequence[Any] = ()) -> Any:
    """The same values in another shape, which may be spread over several arguments."""
    given = sizes or size
    return reshape(network, self, given[0] if isinstance(given[0], tuple) else given)


def flatten(network: OpenVINONetwork, input: Any, start_dim: int, end_dim: int) -> Any:
    """Several dimensions as one."""
    rank = network.rank(input)
    if rank == 0:
        return reshape(network, input, (1,))
    start, end = start_dim % rank, end_dim % rank
    sizes = network.sizes(input)
    return reshape(network, input, (*sizes[:start], -1, *sizes[end + 1 :]))


def unflatten(network: OpenVINONetwork, input: Any, dim: int, sizes: Sequence[Any]) -> Any:
    """One dimension as several."""
    dim %= network.rank(input)
    given = network.sizes(input)
    return reshape(network, input, (*given[:dim], *sizes, *given[dim + 1 :]))


def squeeze(network: OpenVINONetwork, input: Any, dim: int | Sequence[int]) -> Any:
    """Without those of the dimensions that have the size 1."""
    rank = network.rank(input)
    sizes = network.sizes(input)
    dims = {one % rank for one in ((dim,) if isinstance(dim, int) else dim)} if rank else set[int]()
    if not all(isinstance(sizes[one], int) for one in dims):
        raise ValueError("whether a dimension has the size 1 is not known")
    gone = [one for one in dims if sizes[one] == 1]
    return network.add("squeeze", network.value(input), network.numbers(gone)) if gone else network.value(input)


def unsqueeze(network: OpenVINONetwork, input: Any, dim: int) -> Any:
    """With another dimension of the size 1."""
    dim = dim % (network.rank(input) + 1)
    return network.add("unsqueeze", network.value(input), network.numbers([dim]))


def expand(network: OpenVINONetwork, self: Any, size: Sequence[Any], implicit: bool = False) -> Any:
    """Repeated along dimensions of the size 1."""
    target = [1 if one == -1 else one for one in size]
    return network.add("broadcast", network.value(self), network.numbers(target), broadcast_spec="BIDIRECTIONAL")


def pad(network: OpenVINONetwork, input: Any, pad: Sequence[int], mode: str, value: float | None) -> Any:
    """With more at the ends of dimensions."""
    rank, pairs = network.rank(input), [*zip(pad[::2], pad[1::2], strict=True)]
    every = [(0, 0)] * (rank - len(pairs)) + pairs[::-1]
    begin, end = (network.numbers(one) for one in zip(*every, strict=True))
    mode = {"replicate": "edge"}.get(mode, mode)
    filling = [network.value(float(value or 0.0))] if mode == "constant" else []
    return network.add("pad", network.value(input), begin, end, mode, *filling)


_is_shape = where(
    lambda operation: not any(isinstance(one, torch.dtype) for one in operation.arguments.values()),
    "it reads the same memory as another dtype",
)
add_converter(torch.reshape, reshape, counts=False)
add_converter(torch.Tensor.view, view, _is_shape, counts=False)
add_converter(torch.flatten, flatten, has_numbers("start_dim", "end_dim"), counts=False)
add_converter(torch.unflatten, unflatten, has_numbers("dim"), counts=False)
add_converter(torch.squeeze, squeeze, has_numbers("dim"), counts=False)
add_converter(torch.unsqueeze, unsqueeze, has_numbers("dim"), counts=False)
add_converter(torch.Tensor.expand, expand, counts=False)
add_converter(
    F.pad,
    pad,
    computes(torch.float32),
    has_numbers("pad"),
    has_numbers("value", optional=True),
    has_values(mode=("constant", "reflect", "replicate")),
    where(lambda operation: all(one >= 0 for one in operation.arguments["pad"]), "it takes values away"),
    counts=False,
)


# Another order.


def permute(network: OpenVINONetwork, input: Any, dims: Sequence[int]) -> Any:
    """The dimensions in another order."""
    rank = network.rank(input)
    return network.add("transpose", network.value(input), network.numbers(dim % rank for dim in dims))


def transpose(network: OpenVINONetwork, input: Any, dim0: int, dim1: int) -> Any:
    """Two dimensions in each other's place."""
    order = [*range(network.rank(input))]
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(network, input, order)


def shuffle(network: OpenVINONetwork, input: Any, upscale_factor: int) -> Any:
    """Channels as pixels."""
    return network.add("depth_to_space", network.value(input), "depth_first", upscale_factor)


add_converter(torch.permute, permute, has_numbers("dims"), counts=False)
add_converter(
    torch.transpose,
    transpose,
    has_numbers("dim0", "dim1"),
    has_rank("input", 1, 2, 3, 4, 5, 6),
    counts=False,
)
add_converter(torch.pixel_shuffle, shuffle, has_rank("input", 4), has_numbers("upscale_factor"), counts=False)


# Together and apart.


def concatenate(network: OpenVINONetwork, tensors: Sequence[Any], dim: int) -> Any:
    """Values one behind the other."""
    dtype = network.result_dtype
    return network.add("concat", [network.value(one, dtype) for one in tensors], dim)


def stack(network: OpenVINONetwork, tensors: Sequence[Any], dim: int) -> Any:
    """Values along a new dimension."""
    dtype = network.result_dtype
    parts = [unsqueeze(network, network.value(one, dtype), dim) for one in tensors]
    return network.add("concat", parts, dim)


def split(network: OpenVINONetwork, tensor: Any, split_size_or_sections: Any, dim: int) -> Any:
    """Parts of given sizes, or all of one size but the last."""
    total, each = _known_size(network, tensor, dim, "how many parts there are"), split_size_or_sections
    if isinstance(each, int):
        each = [each] * (total // each) + ([total % each] if total % each else [])
    if len(each) == 1:
        return (network.value(tensor),)
    node = network.op.variadic_split(network.value(tensor), network.value(dim, torch.int64), network.numbers(each))
    return tuple(node.outputs())


def chunk(network: OpenVINONetwork, input: Any, chunks: int, dim: int) -> Any:
    """So many parts, or fewer."""
    return split(network, input, -(-_known_size(network, input, dim, "how large a part is") // chunks), dim)


def unbind(network: OpenVINONetwork, input: Any, dim: int) -> tuple[Any, ...]:
    """Return what there is along a dimension, one by one."""
    return tuple(squeeze(network, part, dim) for part in split(network, input, 1, dim))


def repeat_each(network: OpenVINONetwork, input: Any, repeats: int, dim: int, output_size: int | None = None) -> Any:
    """Each part along a dimension several times."""
    places = torch.arange(_known_size(network, input, dim, "how many parts are repeated")).repeat_interleave(repeats)
    dim %= network.rank(input)
    return network.add("gather", network.value(input), network.value(places), network.value(dim, torch.int64))


def _known_size(network: OpenVINONetwork, value: Any, dim: int, what: str) -> int:
    size = network.size(value, dim)
    if not isinstance(size, int):
        raise ValueError(f"{what} is not known")
    return size


def _joins_tensors(operation: Operation) -> str | None:
    given = operation.arguments.get("tensors")
    tensors = given if isinstance(given, tuple) else ()
    ranks = {len(one.shape) for node in tensors if isinstance(node, Node) and (one := operation.metadata(node))}
    known = tensors and all(isinstance(one, Node) and operation.subject.dtype(one) is not None for one in tensors)
    return None if known and len(ranks) <= 1 else "it joins a list that the program makes, or values of different kinds"


for _target, _build in ((torch.cat, concatenate), (torch.stack, stack)):
    add_converter(_target, _build, _joins_tensors, has_numbers("dim"), counts=False)
add_converter(
    torch.split,
    lambda network, *, tensor=None, input=None, **given: split(network, input if tensor is None else tensor, **given),
    has_numbers("split_size_or_sections", "dim"),
    counts=False,
)
add_converter(torch.chunk, chunk, has_numbers("chunks", "dim"), counts=False)
add_converter(torch.unbind, unbind, has_numbers("dim"), counts=False)
add_converter(torch.repeat_interleave, repeat_each, has_numbers("repeats", "dim"), counts=False)


# Elements.


def pick(network: OpenVINONetwork, value: Any, index: Any) -> Any:
    """Return what ``value[index]`` is, for integers, slices, ``None`` and ``...``."""
    if isinstance(value, tuple):
        return value[index]
    if any(isinstance(one, Tensor) for one in (index if isinstance(index, tuple) else ())):
        return _pick_by_tensors(network, network.value(value), index)
    value, places = network.value(value), index if isinstance(index, tuple) else (index,)
    used = sum(one is not None and one is not Ellipsis for one in places)
    dim, gone, new = 0, [], []
    for place in places:
        if place is Ellipsis:
            dim += network.rank(value) - used
        elif place is None:
            new.append(dim - len(gone) + len(new))
        else:
            value = _pick_along(network, value, place, dim)
            gone += [dim] if not isinstance(place, slice) else []
            dim += 1
    if gone:
        value = network.add("squeeze", value, network.numbers(gone))
    return network.add("unsqueeze", value, network.numbers(new)) if new else value


def _pick_along(network: OpenVINONetwork, value: Any, place: Any, dim: int) -> Any:
    """A part of one dimension, which stays."""
    if not isinstance(place, slice):
        start, stop, step = place, place + 1 or _END, 1
    elif place == slice(None):
        return value
    else:
        start, stop, step = place.start or 0, _END if place.stop is None else place.stop, place.step or 1
    bounds = [network.numbers([one]) for one in (start, stop, step, dim)]
    return network.add("slice", value, *bounds)


def _pick_by_tensors(network: OpenVINONetwork, value: Any, index: tuple[Any, ...]) -> Any:
    """Elements at places that are constants, in dimensions that follow one another."""
    first = next(dim for dim, place in enumerate(index) if isinstance(place, Tensor))
    sizes = network.sizes(value)
    picked = sizes[first : len(index)]
    if not all(isinstance(one, int) for one in picked):
        raise ValueError("the size of a dimension in which elements are picked is not known")
    linear = torch.zeros((), dtype=torch.int64)
    for size, place in zip(picked, index[first:], strict=True):
        linear = linear * size + torch.where(place < 0, place + size, place)
    flat = reshape(network, value, (*sizes[:first], -1, *sizes[len(index) :]))
    return network.add("gather", flat, network.value(linear), network.value(first, torch.int64))


def narrow(network: OpenVINONetwork, input: Any, dim: int, start: int, length: int) -> Any:
    """A part of one dimension."""
    return _pick_along(network, network.value(input), slice(start, start + length), dim)


def _has_plain_index(operation: Operation) -> str | None:
    source, index = operation.node.args
    places: Any = index if isinstance(index, tuple) else (index,)
    if isinstance(source, Node) and operation.subject.dtype(source) is None and source.op != "placeholder":
        return None if isinstance(index, int) else "it takes a part of a tuple"
    if _is_by_constants(operation, places):
        return None
    for place in places:
        parts = (place.start, place.stop, place.step) if isinstance(place, slice) else (place,)
        for one in parts:
            plain = one is None or (type(one) is int) or one is Ellipsis
            sized = isinstance(place, slice) and isinstance(one, Node) and one.meta.get("type") is int
            if not (plain or sized) or (one is Ellipsis and isinstance(place, slice)):
                return "it picks elements by a tensor or mask"
    return None


def _is_by_constants(operation: Operation, places: tuple[Any, ...]) -> bool:
    """Return whether elements are picked by constants in the last dimensions of the index, after whole dimensions."""
    first = next((place for place, one in enumerate(places) if one != slice(None)), 0)
    tensors = [operation.subject.constant(one) if isinstance(one, Node) else None for one in places[first:]]
    return len(tensors) > 0 and all(one is not None and one.dtype is torch.int64 for one in tensors)


add_converter(operator.getitem, pick, _has_plain_index, counts=False)
add_converter(torch.narrow, narrow, has_numbers("dim", "start", "length"), counts=False)
