"""TensorRT's converters that pick elements: by index, by order, and sums of picked rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.lowering.known_program import Operation
from fx.lowering.support import has_rank, has_values, shape_of
from fx.lowering.tensorrt.activations import combine
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import is_one_of, register, setting, takes_floats
from fx.lowering.tensorrt.ranges import sizes_of
from fx.node import Node

_MOST = 3840
"""The most elements that TensorRT's layer for the largest elements returns."""


def gather(network: TensorRTNetwork, input: Any, dim: int, index: Any, sparse_grad: bool = False) -> Any:
    """Pick an element for each element of the index."""
    mode = setting("GatherMode", "ELEMENT")
    axis = dim % network.rank(input)
    return network.add("gather_v2", network.tensor(input), network.tensor(index), mode, axis=axis)


def index_select(network: TensorRTNetwork, input: Any, dim: int, index: Any) -> Any:
    """Pick slices along a dimension."""
    return network.add("gather", network.tensor(input), network.tensor(index), dim % network.rank(input))


def scatter(network: TensorRTNetwork, input: Any, dim: int, index: Any, src: Any) -> Any:
    """Replace an element for each element of the index."""
    mode, axis = setting("ScatterMode", "ELEMENT"), dim % network.rank(input)
    source = network.tensor(src, network.dtype(input))
    return network.add("scatter", network.tensor(input), network.tensor(index), source, mode, axis=axis)


def _replaces_all(operation: Operation) -> str | None:
    """Accept an index of the same sizes as the new elements."""
    index, source = (shape_of(operation, operation.arguments[place]) for place in (2, 3))
    return None if index == source else "its index and its new elements differ in size"


def top(
    network: TensorRTNetwork, input: Any, k: int, dim: int, largest: bool = True, sorted: bool = True
) -> tuple[Any, Any]:
    """Return the largest or the smallest elements along a dimension, and their positions."""
    kind = setting("TopKOperation", "MAX" if largest else "MIN")
    tensor = network.tensor(input)
    rank = network.rank(tensor)
    sizes = network.sizes(tensor)
    if rank == 1:  # the layer takes at least two dimensions
        tensor = network.reshape(tensor, [1, *sizes])
    axis = dim % rank + (rank == 1)
    values, indices = network.add("topk", tensor, kind, k, 1 << axis)
    indices = network.cast(indices, torch.int64)
    return tuple(network.reshape(part, [k]) if rank == 1 else part for part in (values, indices))  # type: ignore[return-value]


def _extreme(network: TensorRTNetwork, input: Any, dim: int, keepdim: bool, largest: bool) -> tuple[Any, Any]:
    rank = network.rank(input)
    parts = top(network, input, 1, dim, largest)
    if keepdim:
        return parts
    return tuple(_without(network, part, dim % rank) for part in parts)  # type: ignore[return-value]


def _without(network: TensorRTNetwork, tensor: Any, place: int) -> Any:
    sizes = network.sizes(tensor)
    return network.reshape(tensor, [*sizes[:place], *sizes[place + 1 :]])


def _register_argument(target: Any, largest: bool) -> None:
    def build(network: TensorRTNetwork, input: Any, dim: int | None, keepdim: bool) -> Any:
        assert dim is not None
        return _extreme(network, input, dim, keepdim, largest)[1]

    register(target, build, takes_floats("input"), is_one_of(dim=int, keepdim=int), _is_over_last_four)


def _register_extreme(target: Any, largest: bool) -> None:
    def build(network: TensorRTNetwork, input: Any, dim: int, keepdim: bool = False) -> Any:
        return _extreme(network, input, dim, keepdim, largest)

    register(target, build, takes_floats("input"), is_one_of(dim=int, keepdim=int), _is_over_last_four)


def _is_over_last_four(operation: Operation) -> str | None:
    """Accept a dimension among the last four, which are those that TensorRT sorts along."""
    shape, dim = shape_of(operation, operation.arguments["input"]), operation.arguments["dim"]
    if not shape:
        return "its input is a single number"
    return None if dim % len(shape) >= len(shape) - 4 else "TensorRT sorts only along the last four dimensions"


def _is_short(operation: Operation) -> str | None:
    count = operation.arguments["k"]
    return None if 0 < count <= _MOST else f"it takes {count} elements, and TensorRT at most {_MOST}"


def cumsum(network: TensorRTNetwork, input: Any, dim: int, dtype: Any = None) -> Any:
    """Add up along a dimension."""
    wanted = network.working(dtype) if dtype is not None else network.dtype(input)
    if not wanted.is_floating_point and dtype is None:
        wanted = torch.int64
    axis = network.tensor(torch.tensor(dim % network.rank(input)))
    kind = setting("CumulativeOperation", "SUM")
    return network.add("cumulative", network.tensor(input, wanted), axis, kind, False, False)


def embedding_bag(network: TensorRTNetwork, input: Any, weight: Any, mode: str, **options: Any) -> Any:
    """Gather rows of the weight, and combine those of each bag."""
    rows = network.add("gather", network.tensor(weight), network.tensor(input), 0)
    if (scales := options.get("per_sample_weights")) is not None:
        sizes = network.sizes(scales)
        rows = combine(network, "PROD", rows, network.reshape(network.tensor(scales), [*sizes, 1]))
    kind = setting("ReduceOperation", {"sum": "SUM", "mean": "AVG", "max": "MAX"}[mode])
    return network.add("reduce", rows, kind, 1 << 1, False)


def _is_one_bag_a_row(operation: Operation) -> str | None:
    return "its bags are given by offsets" if operation.arguments.get("offsets") is not None else None


def pick(network: TensorRTNetwork, input: Any, places: tuple[Any, ...]) -> Any:
    """Index by one tensor of the program for each of several dimensions that follow one another."""
    first = next(place for place, entry in enumerate(places) if not isinstance(entry, slice))
    indices = [entry for entry in places if not isinstance(entry, slice)]
    sizes = network.sizes(input)
    positions = torch.zeros((), dtype=torch.int64)
    for size, entry in zip(sizes[first : first + len(indices)], indices, strict=True):
        assert isinstance(size, int)
        positions = positions * size + torch.where(entry < 0, entry + size, entry)
    merged = network.reshape(network.tensor(input), [*sizes[:first], -1, *sizes[first + len(indices) :]])
    return network.add("gather", merged, network.tensor(positions), first)


def picks(operation: Operation, value: Node, entries: list[Any]) -> str | None:
    """Accept an index with constant tensors of integers for dimensions of fixed size that follow one another."""
    shape = shape_of(operation, value)
    assert shape is not None
    if not all(isinstance(entry, Node) or entry == slice(None) for entry in entries):
        return "its index mixes tensors with numbers"
    places = [place for place, entry in enumerate(entries) if isinstance(entry, Node)]
    if places != list(range(places[0], places[-1] + 1)):
        return "its indices are of dimensions that do not follow one another"
    for entry in (entries[place] for place in places):
        constant = operation.subject.constant(entry)
        if constant is None or constant.dtype is not torch.int64:
            return f"its index depends on the elements of `%{entry}`"
    if value.op != "get_attr" and len(places) > 1:
        least, _, most = sizes_of(value)
        if least[places[0] : places[-1] + 1] != most[places[0] : places[-1] + 1]:
            return "the size of a dimension that it indexes varies"
    return None


register(torch.gather, gather, is_one_of(dim=int), counts=0)
register(torch.index_select, index_select, is_one_of(dim=int), counts=0)
register(Tensor.scatter, scatter, takes_floats(0, 3), _replaces_all, counts=0)
_options = is_one_of(k=int, dim=int, largest=int)
register(torch.topk, top, takes_floats("input"), _options, _is_over_last_four, _is_short)
for _target, _largest in ((torch.argmax, True), (torch.argmin, False)):
    _register_argument(_target, _largest)
for _target, _largest in ((torch.max, True), (torch.min, False)):
    _register_extreme(_target, _largest)
register(torch.cumsum, cumsum, is_one_of(dim=int, dtype=(torch.dtype, type(None))))
register(
    F.embedding_bag,
    embedding_bag,
    takes_floats("weight"),
    has_rank("input", 2),
    has_values(max_norm=None, padding_idx=None),
    is_one_of(mode=str),
    _is_one_bag_a_row,
)
