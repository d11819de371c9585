"""Nested values that programs take and return: their leaves, each with its path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from fx.container_kinds import container_kind, map_leaves


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
    """Return the kinds, sizes and keys of the containers in a value; if equal, two values can be compared by leaf."""
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


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """Return ``value`` with every tensor replaced by ``function`` of it; containers are new ones."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """Return the parts of a container, each with its key in Python syntax, or None for a leaf."""
    kind = None if isinstance(value, torch.Tensor) else container_kind(value)
    if kind is None:
        return None
    by_name = not kind.is_keyed and any(isinstance(label, str) for label in kind.labels(value))
    keys = [f".{label}" if by_name else f"[{label!r}]" for label in kind.labels(value)]
    return list(zip(keys, kind.parts(value), strict=True))


def _kind(value: Any) -> str:
    """Return the name of a container's kind: ``list`` for any list, since captured programs may use a subclass."""
    for kind in (list, Mapping):
        if isinstance(value, kind):
            return "dict" if kind is Mapping else kind.__name__
    return type(value).__name__
