"""How large the values are that go from one part of a lowered program to another."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata


def size_of(node: Node) -> int | None:
    """The bytes of the tensors in a recorded value, or ``None`` if none is recorded."""
    recorded: Any = node.meta.get("tensor_meta") if node._meta else None
    if recorded is None:
        return None
    tensors = pytree.tree_leaves(recorded, is_leaf=lambda value: isinstance(value, TensorMetadata))
    return sum(_bytes(one.shape, one.dtype) for one in tensors if isinstance(one, TensorMetadata))


def _bytes(shape: Sequence[Any], dtype: torch.dtype) -> int:
    return int(prod(shape)) * dtype.itemsize
