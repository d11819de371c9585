"""What one call of a kernel costs: floating-point operations, and bytes of memory that it reads and writes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch._ops import OpOverload

from fx.analysis.flop_formulas import flops_of, name_of, tensors_in

Traffic: TypeAlias = Literal["all", "picked", "none"]
"""What a kernel reads and writes: its operands and results; of its operands as much as it writes; nothing."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one or many calls of kernels."""

    flops: int = 0
    """Floating-point operations that are known of, two a multiply-add."""
    most_flops: int = 0
    """The same with an upper bound for kernels of which it is not known; equal to ``flops`` where there is none."""
    multiply_adds: int = 0
    """Multiplications with addition in products, convolutions and attention."""
    read: int = 0
    """Bytes that kernels read, each time they do."""
    written: int = 0
    """Bytes that kernels write."""
    kernels: int = 0
    """Calls of kernels that do anything; views do not."""

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
        """Arithmetic intensity: floating-point operations for each byte read or written."""
        return self.flops / self.moved if self.moved else 0.0


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One call of a kernel."""

    name: str
    """The operator, as ``aten.addmm.default``."""
    dtype: torch.dtype | None
    """The dtype of its result; None where that is not a tensor."""
    work: Work
    """What it does."""
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
    """Return what a call of a kernel costs, or None where it only makes a view or asks for a size.

    Args:
        func: the operator.
        args: its arguments, real or fake; only their sizes and dtypes count.
        kwargs: its keyword arguments.
        result: what it returned.
    """
    given, made = tensors_in((args, kwargs)), tensors_in(result)
    traffic = _traffic(func)
    if traffic == "none" or not (given or made) or _is_view(func, given, made):
        return None
    written = sum(map(_bytes, made))
    read = 0 if traffic == "picked" and not given else sum(map(_bytes, given))
    if traffic == "picked":
        read = min(read, written + sum(_bytes(tensor) for tensor in given if not tensor.is_floating_point()))
    flops, multiply_adds = flops_of(func, args, kwargs, result)
    known = flops is not None
    most = flops
    if most is None:  # a multiply-add for each element of the results with each of the largest operand
        most = 2 * sum(one.numel() for one in made) * max((one.numel() for one in given), default=1)
    work = Work(flops or 0, most, multiply_adds, read, written, 1)
    return KernelCost(str(func), made[0].dtype if made else None, work, known)


def _is_view(func: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    """Return whether a kernel returns only views, and writes to nothing."""
    if not isinstance(func, OpOverload) or func.is_view:
        return True
    return bool(made) and not func._schema.is_mutable and all(any(_share(one, of) for of in given) for one in made)


def _share(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.layout is not torch.strided or second.layout is not torch.strided:
        return False
    return first.untyped_storage()._cdata == second.untyped_storage()._cdata


def _bytes(tensor: torch.Tensor) -> int:
    """Return what there is of a tensor in memory: of an expanded one not each repetition."""
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
