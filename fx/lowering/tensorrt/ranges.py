"""Sizes that vary from run to run: the user's ranges for inputs, and the resulting ranges for every value."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._subclasses import FakeTensorMode

from fx.errors import LoweringError
from fx.graph_module import GraphModule
from fx.node import Node
from fx.passes.shape_prop import ShapeProp
from fx.passes.tensor_metadata import TensorMetadata

Ranges: TypeAlias = Mapping[str, Mapping[int, Any]]
"""The smallest and the largest size, as a pair or as a ``torch.export.Dim``, by name of the input and dimension."""

_NOTE = "tensorrt_sizes"


def sizes_of(node: Node) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the smallest, typical and largest sizes of a value with a recorded shape."""
    typical = tuple(node.meta["tensor_meta"].shape)
    least, most = node.meta.get(_NOTE, (typical, typical))
    return least, typical, most


def varies(node: Node) -> bool:
    """Return whether a number may differ from run to run, as sizes that vary do."""
    if node.target is operator.getitem and isinstance(sizes := node.args[0], Node) and _is_shape(sizes):
        return _has_other_sizes(sizes.all_input_nodes[0], node.args[1])
    if _is_shape(node):
        return _has_other_sizes(node.all_input_nodes[0], node.kwargs.get("dim"))
    return any(
        _has_other_sizes(used, None)
        if isinstance(used.meta.get("tensor_meta"), TensorMetadata)
        else used.op == "placeholder" or varies(used)
        for used in node.all_input_nodes
    )


def _is_shape(node: Node) -> bool:
    return node.target is torch.Tensor.size or (node.target is getattr and node.args[1] == "shape")


def _has_other_sizes(tensor: Node, dim: Any) -> bool:
    """Return whether the size of a dimension of a tensor varies, or any of its sizes if ``dim`` is no number."""
    least, _, most = sizes_of(tensor)
    place = slice(None) if type(dim) is not int else slice(dim, dim + 1 or None)
    return least[place] != most[place]


def record_ranges(program: GraphModule, example_inputs: Sequence[Any], ranges: Ranges) -> None:
    """Record the smallest and largest sizes of every value of a program.

    The program runs on fake tensors, once with the smallest inputs and once with the largest.

    Args:
        program: the program, whose nodes have recorded shapes for the example inputs.
        example_inputs: inputs of a typical run.
        ranges: the sizes that vary.

    Raises:
        LoweringError: a range is invalid, is not for an input, or excludes the example; or the program cannot run on
            inputs of such sizes.
    """
    if not ranges:
        return
    recorded = {node: dict(node.meta) for node in program.graph.nodes}
    bounds = [_bounds(program, example_inputs, ranges, end) for end in (0, 1)]
    shapes: list[dict[Node, tuple[int, ...]]] = []
    try:
        shapes += (_shapes(program, example_inputs, sizes) for sizes in bounds)
    finally:
        for node, meta in recorded.items():
            node.meta = meta
    for node, least in shapes[0].items():
        if node in shapes[1]:
            node.meta[_NOTE] = (least, shapes[1][node])


def _bounds(
    program: GraphModule, example_inputs: Sequence[Any], ranges: Ranges, end: int
) -> list[tuple[int, ...] | None]:
    """Return the size of each input, with all varying ones at the lower (0) or upper (1) end of their range."""
    names = [str(node.target) for node in program.graph.find_nodes(op="placeholder")]
    if unknown := sorted(set(ranges) - set(names)):
        raise LoweringError(
            f"there is no input {unknown[0]!r} whose sizes could vary", why=f"the inputs are {', '.join(names)}"
        )
    sizes: list[tuple[int, ...] | None] = []
    for name, value in zip(names, example_inputs, strict=False):
        if not isinstance(value, torch.Tensor):
            sizes.append(None)
            continue
        size = list(value.shape)
        for dimension, bounds in ranges.get(name, {}).items():
            least, most = _ends(name, dimension, bounds)
            if not (-len(size) <= dimension < len(size) and least <= size[dimension] <= most):
                raise LoweringError(
                    f"the sizes of dimension {dimension} of the input {name!r} exclude the example",
                    value=f"{least} to {most}, and an example of shape {tuple(value.shape)}",
                )
            size[dimension] = (least, most)[end]
        sizes.append(tuple(size))
    return sizes


def _ends(name: str, dimension: int, bounds: Any) -> tuple[int, int]:
    ends: Any = (bounds.min, bounds.max) if hasattr(bounds, "min") and hasattr(bounds, "max") else bounds
    if not (isinstance(ends, (tuple, list)) and len(ends) == 2 and all(type(end) is int for end in ends)):
        raise LoweringError(
            f"the sizes of dimension {dimension} of the input {name!r} are not a range",
            value=repr(bounds),
            remedy="give the smallest and the largest: (1, 32)",
        )
    least, most = ends
    if not 0 < least <= most:
        raise LoweringError(f"no size of dimension {dimension} of the input {name!r} is in its range", value=repr(ends))
    return least, most


def _shapes(
    program: GraphModule, example_inputs: Sequence[Any], sizes: Sequence[tuple[int, ...] | None]
) -> dict[Node, tuple[int, ...]]:
    """Return the shape of every value for inputs of these sizes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        inputs = [
            value if size is None else torch.empty(size, dtype=value.dtype, device=value.device)
            for value, size in zip(example_inputs, sizes, strict=True)
        ]
    try:
        ShapeProp(program, mode).propagate(*inputs)
    except Exception as error:
        raise LoweringError(
            "the program does not run on inputs at an end of their ranges",
            value=", ".join(str(size) for size in sizes if size is not None),
            why=f"{type(error).__name__}: {error}",
            remedy="give ranges that it runs on",
        ) from error
    pairs = ((node, node.meta.get("tensor_meta")) for node in program.graph.nodes)
    return {node: tuple(metadata.shape) for node, metadata in pairs if isinstance(metadata, TensorMetadata)}
