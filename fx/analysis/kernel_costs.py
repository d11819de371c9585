"""The cost of one kernel call: floating-point operations, and bytes of memory read and written."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch._ops import OpOverload

from fx.analysis.flop_formulas import flops_of, name_of, tensors_in

Traffic: TypeAlias = Literal["all", "picked", "none"]
"""The memory traffic of a kernel.

``"all"``: it reads its operands and writes its results. ``"picked"``: it reads no more of its operands than it writes,
besides indexes. ``"none"``: it moves nothing.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one or more kernel calls."""

    flops: int = 0
    """Floating-point operations of kernels with a formula, two per multiply-add."""
    most_flops: int = 0
    """``flops`` plus an upper bound for kernels without a formula; equal to ``flops`` if all have one."""
    multiply_adds: int = 0
    """Multiply-adds of products, convolutions and attention."""
    read: int = 0
    """Bytes that kernels read, counted at each read."""
    written: int = 0
    """Bytes that kernels write."""
    kernels: int = 0
    """Kernel calls that do any work; views do none."""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.most_flops + other.most_flops,
            self.multiply_adds + other.multiply_adds,
            self.read + other.read,
            self.written + other.written,
            self.kernels + other.kernels,
        )

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: floating-point operations per byte read or written."""
        return self.flops / self.moved if self.moved else 0.0


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One call of a kernel."""

    name: str
    """The operator, such as ``aten.addmm.default``."""
    dtype: torch.dtype | None
    """The dtype of its first result; None if it returns no tensor."""
    work: Work
    """The work of the call."""
    is_known: bool
    """Whether there is a formula for its floating-point operations."""


NO_WORK = Work()

_UNWRITTEN = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided empty_permuted lift detach alias _unsafe_view"
    " _reshape_alias sym_size sym_stride sym_numel sym_storage_offset is_same_size resolve_conj resolve_neg"
    " set_data requires_grad_ _assert_tensor_metadata resize_ set_ is_pinned".split()
)
_INDEXING = frozenset("index index_select gather embedding slice_scatter _embedding_bag masked_select".split())


def cost_of_kernel(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> KernelCost | None:
    """Return the cost of a kernel call, or None if it only makes a view or queries a size.

    Args:
        func: the operator.
        args: its arguments, real or fake; only their sizes and dtypes matter.
        kwargs: its keyword arguments.
        result: its return value.
    """
    operands, results = tensors_in((args, kwargs)), tensors_in(result)
    traffic = _traffic(func)
    if traffic == "none" or not (operands or results) or _is_view(func, operands, results):
        return None
    written = sum(map(_bytes, results))
    read = 0 if traffic == "picked" and not operands else sum(map(_bytes, operands))
    if traffic == "picked":
        read = min(read, written + sum(_bytes(tensor) for tensor in operands if not tensor.is_floating_point()))
    flops, multiply_adds = flops_of(func, args, kwargs, result)
    is_known = flops is not None
    most = flops
    if most is None:  # bound: a multiply-add for each pair of an element of the results and one of the largest operand
        most = 2 * sum(tensor.numel() for tensor in results) * max((tensor.numel() for tensor in operands), default=1)
    work = Work(flops or 0, most, multiply_adds, read, written, 1)
    return KernelCost(str(func), results[0].dtype if results else None, work, is_known)


def _is_view(func: Any, operands: list[torch.Tensor], results: list[torch.Tensor]) -> bool:
    """Return whether a kernel only returns views, without writing to memory."""
    if not isinstance(func, OpOverload) or func.is_view:
        return True
    return (
        bool(results)
        and not func._schema.is_mutable
        and all(any(_share(result, operand) for operand in operands) for result in results)
    )


def _share(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.layout is not torch.strided or second.layout is not torch.strided:
        return False
    return first.untyped_storage()._cdata == second.untyped_storage()._cdata


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor in memory; the repetitions of an expanded tensor are not counted."""
    size = tensor.numel() * tensor.element_size()
    return min(size, tensor.untyped_storage().nbytes()) if tensor.layout is torch.strided else size


@functools.cache
def _traffic(func: Any) -> Traffic:
    if not isinstance(func, OpOverload):
        return "all"
    namespace, name = name_of(func)
    if namespace in ("prim", "prims") or (namespace == "aten" and name in _UNWRITTEN):
        return "none"
    return "picked" if namespace == "aten" and name in _INDEXING else "all"
