"""TensorRT's converters for indexing, repetition and padding, all of which are slices in TensorRT."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.lowering.known_program import Operation
from fx.lowering.support import has_values, shape_of
from fx.lowering.tensorrt.arrangement import cat, squeeze
from fx.lowering.tensorrt.elementwise import compute
from fx.lowering.tensorrt.network import Number, Size, TensorRTNetwork
from fx.lowering.tensorrt.predicates import is_one_of, register, setting, takes_floats
from fx.lowering.tensorrt.ranges import sizes_of, varies
from fx.lowering.tensorrt.selection import pick, picks
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

_KEEP = -1
"""The size in a program that means that a dimension keeps its size."""


def expand(network: TensorRTNetwork, input: Any, size: Sequence[Number], implicit: bool = False) -> Any:
    """Repeat a value along dimensions of size 1."""
    tensor = network.tensor(input, rank=len(size))
    own = network.sizes(tensor)
    wanted = [old if new == _KEEP else new for old, new in zip(own, size, strict=True)]
    steps = tuple(0 if old == 1 else 1 for old in own)
    return _slice(network, tensor, [0] * len(own), wanted, steps)


def _slice(
    network: TensorRTNetwork, tensor: Any, starts: Sequence[Number], counts: Sequence[Number], steps: Sequence[int],
    filling: Any = None,
) -> Any:  # fmt: skip
    """Add a slice, with ``filling`` where it goes beyond the tensor; numbers that vary are passed as tensors."""
    inputs, settings = ({}, {}) if filling is None else ({4: filling}, {"mode": setting("SampleMode", "FILL")})
    places: list[tuple[int, ...]] = []
    for number, values in ((1, starts), (2, counts)):
        if any(isinstance(value, Size) for value in values):
            inputs[number] = network.vector(values)
        places.append(tuple(0 if isinstance(value, Size) else value for value in values))
    return network.add("slice", tensor, *places, tuple(steps), inputs=inputs, **settings)


def pad(network: TensorRTNetwork, input: Any, pad: Sequence[int], mode: str, value: float | None) -> Any:
    """Pad with a number; negative padding crops."""
    tensor = network.tensor(input)
    sizes = network.sizes(tensor)
    starts, counts = [0] * len(sizes), list(sizes)
    for number in range(len(pad) // 2):
        place, before, after = len(sizes) - 1 - number, pad[2 * number], pad[2 * number + 1]
        starts[place] = -before
        counts[place] = compute(network, operator.add, sizes[place], before + after)
    filling = network.tensor(float(value or 0), network.dtype(tensor))
    return _slice(network, tensor, starts, counts, [1] * len(sizes), filling)


def getitem(network: TensorRTNetwork, value: Any, index: Any) -> Any:
    """Index a tensor, or pick one of several values; what a constant is indexed by is computed at once."""
    if isinstance(value, (tuple, list)) or (isinstance(value, Tensor) and _is_plain(index)):
        return value[index]
    places = _places(index, network.rank(value))
    if any(isinstance(place, Tensor) for place in places):
        return pick(network, value, tuple(places))
    return _pick(network, network.tensor(value), places)


def _is_plain(index: Any) -> bool:
    places: Any = index if isinstance(index, tuple) else (index,)
    ends = [end for place in places for end in ((place.start, place.stop) if isinstance(place, slice) else (place,))]
    return all(end is None or end is Ellipsis or type(end) is int for end in ends)


def _places(index: Any, rank: int) -> list[Any]:
    """Return the entries of an index, one for each dimension and the ``None`` between them, with ``...`` expanded."""
    places = list(index) if isinstance(index, tuple) else [index]
    missing = rank - sum(place is not None and place is not Ellipsis for place in places)
    at = next((number for number, place in enumerate(places) if place is Ellipsis), len(places))
    places[at : at + 1] = [slice(None)] * missing
    return places


def _pick(network: TensorRTNetwork, tensor: Any, places: Sequence[Any]) -> Any:
    """Slice, then drop the dimensions that are indexed by number, and insert one for each ``None``."""
    sizes = iter(network.sizes(tensor))
    extents = [_extent(network, place, next(sizes)) for place in places if place is not None]
    if any(place not in (None, slice(None)) for place in places):
        tensor = _slice(network, tensor, *map(list, zip(*extents, strict=True)))
    if all(isinstance(place, slice) for place in places):
        return tensor
    remaining = iter(network.sizes(tensor))
    return network.reshape(tensor, [size for place in places for size in _resulting_size(place, remaining)])


def _resulting_size(place: Any, sizes: Iterator[Number]) -> tuple[Number, ...]:
    """Return the size in the result for an entry of an index; it is empty for a number, which drops the dimension."""
    if place is None:
        return (1,)
    size = next(sizes)
    return (size,) if isinstance(place, slice) else ()


def _extent(network: TensorRTNetwork, place: Any, size: Number) -> tuple[Number, Number, int]:
    """Return the start, count and step that an entry of an index takes in a dimension."""
    if not isinstance(place, slice):
        is_from_end = isinstance(place, int) and place < 0
        return (compute(network, operator.add, size, place) if is_from_end else place), 1, 1
    step = 1 if place.step is None else place.step
    ends = (place.start, place.stop)
    if not isinstance(size, Size) and not any(isinstance(end, Size) for end in ends):
        positions = range(*place.indices(size))
        return positions.start, len(positions), step
    start, stop = (
        default if end is None else _clamped(network, end, size) for end, default in zip(ends, (0, size), strict=True)
    )
    return start, compute(network, operator.sub, stop, start) if start != 0 else stop, 1


def _clamped(network: TensorRTNetwork, bound: Number, size: Number) -> Number:
    """Return an end of a slice as a position within the dimension."""
    if isinstance(bound, int) and bound < 0:
        bound = compute(network, operator.add, size, bound)
    return 0 if bound == 0 else network.compute("MIN", bound, size)


def _indexes(operation: Operation) -> str | None:
    """Accept an index of integers, slices with positive steps, ``None`` and ``...``; sizes may replace integers."""
    value, index = operation.node.args
    shape = shape_of(operation, value)
    if shape is None:
        return None if isinstance(index, (int, slice)) else f"its index is {index!r}"
    assert isinstance(value, Node)
    entries = _places(index, len(shape))
    if any(
        (isinstance(entry, Node) and isinstance(entry.meta.get("tensor_meta"), TensorMetadata))
        or _is_constant(operation, entry)
        for entry in entries
    ):
        return picks(operation, value, entries)
    varies = [False] * len(shape)
    if value.op != "get_attr":
        least, _, most = sizes_of(value)
        varies = [low != high for low, high in zip(least, most, strict=True)]
    dimensions = iter(varies)
    for place in _places(index, len(shape)):
        why = None if place is None else _why_not_indexable(place, next(dimensions, False))
        if why is not None:
            return why
    return None


def _is_constant(operation: Operation, entry: Any) -> bool:
    return isinstance(entry, Node) and operation.subject.constant(entry) is not None


def _why_not_indexable(place: Any, varies: bool) -> str | None:
    """Return why an entry cannot index a dimension, whose size may vary; ``None`` if it can."""
    ends = (place.start, place.stop, place.step) if isinstance(place, slice) else (place,)
    for end in ends:
        if isinstance(end, Node) and end.meta.get("type") is not int:
            return f"its index depends on the elements of `%{end}`"
        if not (end is None or type(end) is int or isinstance(end, Node)):
            return f"its index has {end!r} in it"
    varies = varies or any(isinstance(end, Node) for end in ends)
    is_stepping = isinstance(place, slice) and place.step not in (None, 1)
    return "it takes steps through a size that varies" if is_stepping and varies else None


def narrow(network: TensorRTNetwork, input: Any, dim: int, start: int, length: Number) -> Any:
    """Take a range along a dimension."""
    sizes = network.sizes(input)
    place = dim % len(sizes)
    first = compute(network, operator.add, sizes[place], start) if start < 0 else start
    starts, counts = [0] * len(sizes), list(sizes)
    starts[place], counts[place] = first, length  # type: ignore[call-overload]
    return _slice(network, network.tensor(input), starts, counts, [1] * len(sizes))


def split(network: TensorRTNetwork, tensor: Any, split_size_or_sections: Any, dim: int) -> tuple[Any, ...]:
    """Split a dimension into consecutive ranges."""
    size, sections = _fixed_size(network, tensor, dim), split_size_or_sections
    lengths = sections if isinstance(sections, tuple) else [min(sections, size - at) for at in range(0, size, sections)]
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return tuple(narrow(network, tensor, dim, start, length) for start, length in zip(starts, lengths, strict=True))


def chunk(network: TensorRTNetwork, input: Any, chunks: int, dim: int) -> tuple[Any, ...]:
    """Split a dimension into at most ``chunks`` ranges, all but the last of the same length."""
    return split(network, input, -(-_fixed_size(network, input, dim) // chunks), dim)


def _fixed_size(network: TensorRTNetwork, value: Any, dim: int) -> int:
    size = network.sizes(value)[dim]
    if isinstance(size, Size):
        raise ValueError("the size of the dimension that is divided varies")
    return size


def unbind(network: TensorRTNetwork, input: Any, dim: int) -> tuple[Any, ...]:
    """Return the slices along a dimension, without that dimension."""
    return tuple(squeeze(network, part, dim) for part in split(network, input, 1, dim))


def repeat_interleave(
    network: TensorRTNetwork, input: Any, repeats: int, dim: int, output_size: int | None = None
) -> Any:
    """Repeat each slice along a dimension several times."""
    return cat(network, [part for part in split(network, input, 1, dim) for _ in range(repeats)], dim)


def repeat(network: TensorRTNetwork, input: Any, repeats: Sequence[int]) -> Any:
    """Repeat a value along its dimensions, to which new ones are added in front."""
    result = network.tensor(input, rank=len(repeats))
    for place, count in enumerate(repeats):
        if count > 1:
            result = cat(network, [result] * count, place)
    return result


def roll(network: TensorRTNetwork, input: Any, shifts: Sequence[int], dims: Sequence[int]) -> Any:
    """Move the last slices along dimensions to the front."""
    result = network.tensor(input)
    for shift, dim in zip(shifts, dims, strict=True):
        size = _fixed_size(network, result, dim)
        if shift % size:
            parts = split(network, result, (size - shift % size, shift % size), dim)
            result = cat(network, parts[::-1], dim)
    return result


def flip(network: TensorRTNetwork, input: Any, dims: Sequence[int]) -> Any:
    """Reverse the order along dimensions."""
    tensor = network.tensor(input)
    sizes = network.sizes(tensor)
    reversed_ones = {dim % len(sizes) for dim in dims}
    starts = [_fixed_size(network, tensor, place) - 1 if place in reversed_ones else 0 for place in range(len(sizes))]
    return _slice(network, tensor, starts, sizes, [-1 if place in reversed_ones else 1 for place in range(len(sizes))])


def triangle(network: TensorRTNetwork, input: Any, diagonal: int, cut: Any) -> Any:
    """Keep one side of a diagonal of matrices."""
    rows, columns = (_fixed_size(network, input, dim) for dim in (-2, -1))
    mask = network.tensor(cut(torch.ones(rows, columns), diagonal).bool(), rank=network.rank(input))
    return network.add(
        "select", mask, network.tensor(input), network.tensor(0.0, network.dtype(input), network.rank(input))
    )


def _moves_fixed(operation: Operation) -> str | None:
    """Accept an operation along dimensions of fixed size."""
    least, _, most = sizes_of(operation.node.all_input_nodes[0])
    dims = operation.arguments.get("dims", (-2, -1))
    if not isinstance(dims, tuple) or not dims or not all(isinstance(dim, int) for dim in dims) or not least:
        return f"its dims is {dims!r}"
    return "the size of a dimension that it changes varies" if any(least[dim] != most[dim] for dim in dims) else None


def _shifts_fixed(operation: Operation) -> str | None:
    shifts = operation.arguments.get("shifts")
    is_fixed = isinstance(shifts, tuple) and all(map(_is_fixed, shifts))
    return None if is_fixed else f"its shifts is {shifts!r}"


def _divides_fixed(operation: Operation) -> str | None:
    value, dim = operation.node.all_input_nodes[0], operation.arguments.get("dim")
    if not isinstance(dim, int):
        return f"its dim is {dim!r}"
    least, _, most = sizes_of(value)
    return "the size of the dimension that it divides varies" if least[dim] != most[dim] else None


def _expands(operation: Operation) -> str | None:
    sizes = operation.arguments.get("size")
    if not isinstance(sizes, tuple) or not all(type(size) is int or isinstance(size, Node) for size in sizes):
        return f"its size is {sizes!r}"
    return None


def _is_fixed(number: Any) -> bool:
    """Return whether an argument is a whole number that is the same in all runs."""
    if isinstance(number, Node):
        return number.meta.get("type") is int and not varies(number)
    return type(number) is int


def _pads(operation: Operation) -> str | None:
    padding, shape = operation.arguments.get("pad"), shape_of(operation, operation.arguments.get("input"))
    if not isinstance(padding, tuple) or not all(map(_is_fixed, padding)) or shape is None:
        return f"its pad is {padding!r}"
    return has_values(mode="constant")(operation) or is_one_of(value=(int, float, type(None)))(operation)


register(operator.getitem, getitem, _indexes, counts=0)
register(torch.narrow, narrow, is_one_of(dim=int, start=int, length=int), counts=0)
register(torch.split, split, _divides_fixed, is_one_of(split_size_or_sections=(int, tuple)), counts=0)
register(torch.chunk, chunk, _divides_fixed, is_one_of(chunks=int), counts=0)
register(torch.unbind, unbind, _divides_fixed, counts=0)
register(torch.repeat_interleave, repeat_interleave, _divides_fixed, is_one_of(repeats=int), counts=0)
register(Tensor.expand, expand, _expands, counts=0)
register(F.pad, pad, takes_floats("input"), _pads, counts=0)
register(Tensor.repeat, repeat, is_one_of(repeats=tuple), counts=0)
register(torch.roll, roll, _moves_fixed, _shifts_fixed, counts=0)
register(torch.flip, flip, _moves_fixed, counts=0)
for _target in (torch.tril, torch.triu):
    register(
        _target,
        lambda network, input, diagonal, cut=_target: triangle(network, input, diagonal, cut),
        takes_floats("input"),
        is_one_of(diagonal=int),
        _moves_fixed,
        counts=0,
    )
