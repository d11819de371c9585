"""The table of queries on tensors: the methods and attributes whose results are not tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

Reads: TypeAlias = Literal["sizes", "kind", "memory", "autograd", "value", "values"]
"""The property of a tensor on which the result depends. ``sizes``: the shape. ``kind``: dtype, device and the like.
``memory``: the memory layout. ``autograd``: the computation of the tensor. ``value``: its one element. ``values``: its
elements."""


@dataclass(frozen=True, slots=True)
class TensorQuery:
    """A method or an attribute of tensors."""

    name: str
    """Its name."""
    reads: Reads
    """The property on which the result depends."""
    result: Any
    """The type of the result; ``object`` if there are several."""
    is_method: bool
    """True if it is called."""


def _rows(reads: Reads, result: Any, methods: str, attributes: str = "") -> Iterator[TensorQuery]:
    yield from (TensorQuery(name, reads, result, is_method=True) for name in methods.split())
    yield from (TensorQuery(name, reads, result, is_method=False) for name in attributes.split())


QUERIES: tuple[TensorQuery, ...] = (
    *_rows("sizes", int, "dim ndimension numel nelement __len__", "ndim"),
    *_rows("sizes", torch.Size, "size", "shape"),
    *_rows("sizes", bool, "is_same_size"),
    *_rows("kind", int, "element_size get_device __hash__", "itemsize"),
    *_rows("kind", bool, "is_complex is_floating_point is_signed is_conj is_neg is_inference"),
    *_rows("kind", bool, "", "is_cpu is_cuda is_meta is_quantized is_sparse"),
    *_rows("kind", torch.dtype, "", "dtype"),
    *_rows("kind", torch.device, "", "device"),
    *_rows("kind", torch.layout, "", "layout"),
    *_rows("kind", object, "", "name names"),
    *_rows("memory", int, "data_ptr storage_offset", "nbytes"),
    *_rows("memory", bool, "is_contiguous is_pinned is_set_to is_shared"),
    *_rows("memory", tuple, "dim_order"),
    *_rows("memory", object, "stride"),
    *_rows("autograd", bool, "", "requires_grad is_leaf retains_grad"),
    *_rows("autograd", int, "", "output_nr _version"),
    *_rows("value", bool, "__bool__ is_nonzero"),
    *_rows("value", int, "__index__ __int__"),
    *_rows("value", float, "__float__"),
    *_rows("value", object, "item"),
    *_rows("values", bool, "__contains__ allclose equal"),
)
"""Every query. Those of one element or several read computed values; the others do not."""

METHODS: dict[str, TensorQuery] = {row.name: row for row in QUERIES if row.is_method}
"""The methods by name."""
ATTRIBUTES: dict[str, TensorQuery] = {row.name: row for row in QUERIES if not row.is_method}
"""The attributes by name."""
FUNCTIONS = frozenset(
    "is_complex is_floating_point is_storage is_tensor numel sym_float sym_int sym_ite sym_max sym_min sym_not "
    "sym_sqrt sym_sum typename".split()
)
"""Functions of ``torch`` without effects whose results are not tensors."""


def names_of(*reads: Reads) -> frozenset[str]:
    """Return the names of queries that depend on one of these properties, without special methods.

    >>> sorted(names_of("value"))
    ['is_nonzero', 'item']
    """
    return frozenset(row.name for row in QUERIES if row.reads in reads and not row.name.startswith("__"))
