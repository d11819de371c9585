"""Values that programs take and return, of any nesting: their leaves, each with the path that leads to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of nested tuples, lists, named tuples, dicts and dataclasses, with its path.

    >>> list(leaves({"boxes": [1, 2], "name": None}))
    [("['boxes'][0]", 1), ("['boxes'][1]", 2), ("['name']", None)]
    """
    children = _children(value)
    if children is None:
        yield path, value
    else:
        for key, child in children:
            yield from leaves(child, path + key)


def skeleton(value: Any) -> Any:
    """Return what two values must share to be compared leaf by leaf: kinds of containers, their sizes and keys."""
    children = _children(value)
    if children is None:
        return "tensor" if isinstance(value, torch.Tensor) else "value"
    return _kind(value), tuple((key, skeleton(child)) for key, child in children)


def describe(value: Any) -> str:
    """Return the structure of a value in few words, such as ``dict(tuple(tensor, tensor), list(tensor))``."""
    children = _children(value)
    if children is None:
        return "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
    return f"{_kind(value)}({', '.join(describe(child) for _, child in children)})"


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Return ``value`` with every tensor replaced by what ``function`` makes of it; containers are new ones."""

    def mapped(part: Any) -> Any:
        return map_tensors(function, part)

    if isinstance(value, torch.Tensor):
        return function(value)
    if _is_named_tuple(value):
        return type(value)(*map(mapped, value))
    if isinstance(value, tuple | list):
        return _like(value, [mapped(part) for part in cast("Sequence[Any]", value)])
    if isinstance(value, Mapping):
        return {key: mapped(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{field.name: mapped(getattr(value, field.name)) for field in dataclasses.fields(value)}
        )
    return value


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a container with their keys as one writes them in Python, or None for a leaf."""
    if _is_named_tuple(value):
        return [(f".{name}", getattr(value, name)) for name in value._fields]
    if isinstance(value, tuple | list):
        return [(f"[{index}]", item) for index, item in enumerate(cast("Sequence[Any]", value))]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in cast("Mapping[Any, Any]", value).items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(cast("object", value), "_fields")


def _like(sequence: tuple[Any, ...] | list[Any], parts: list[Any]) -> Any:
    """Return ``parts`` in the kind of ``sequence``, where lists of other classes become plain ones.

    >>> _like(torch.Size((2, 3)), [2, 3]), _like(torch.ones(2).max(0), [1, 0])
    (torch.Size([2, 3]), torch.return_types.max(
    values=1,
    indices=0))
    """
    if isinstance(sequence, list):
        return parts
    try:
        return type(sequence)(parts)
    except Exception:  # a class of the user's that is made of something else
        return tuple(parts)


def _kind(value: Any) -> str:
    """Return the container's kind; a list is one whatever its class, since captured programs may use their own."""
    for kind in (list, Mapping):
        if isinstance(value, kind):
            return "dict" if kind is Mapping else kind.__name__
    return type(value).__name__
