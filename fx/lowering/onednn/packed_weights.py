"""Weights packed in oneDNN's preferred layouts, which depend on the number of threads and on the input's size."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Use: TypeAlias = "tuple[int, torch.Size]"
"""The number of threads that work on an input, and the size of the input."""

_MOST_USES = 32
"""The most uses that are remembered, since a program may get inputs of ever new sizes."""
_kernels: Any = torch.ops.mkldnn


class PackedWeights:
    """The packed copies of one version of a weight.

    If a weight is not in the kernel's preferred layout, each call converts it, which can take twenty times as long as
    the kernel's own work. Stages of ResNet-50 take up to 3.9 times as long with the layout for another number of
    threads, and up to 3.6 times with the layout for another size. Limited to AVX2, these figures are 6.1 and 9.2. Uses
    with the same preferred layout share a copy. Two layouts are kept: the last used and the newest.
    """

    __slots__ = ("_came_once", "_copies", "_latest", "_uses", "_version", "_weight")

    def __init__(self, weight: Tensor) -> None:
        """Start without any copy of ``weight``."""
        self._weight = weight
        self._version = _version(weight)
        self._copies: tuple[Tensor, ...] = ()
        self._latest: Tensor | None = None
        self._uses: dict[Use, Tensor] = {}
        self._came_once: tuple[Use, ...] = ()

    def are_of(self, weight: Tensor) -> bool:
        """Return whether ``weight`` is the tensor that was packed, and has not been written to since."""
        return self._weight is weight and self._version == _version(weight)

    def find(self, size: torch.Size, pack: Callable[[Tensor, torch.Size], Tensor]) -> Tensor:
        """Return the copy for inputs of ``size`` and the current number of threads; make it by ``pack`` if needed.

        The first input of a new size uses the copy for another size, since packing does not pay unless the size comes
        again. If every new size is packed for, stages of ResNet-50 take up to 1.6 times as long, and perceptrons
        limited to AVX2 take 6.7 times as long.
        """
        use = (torch.get_num_threads(), size)
        packed = self._uses.get(use)
        if packed is None:
            packed = self._choose(use, pack)
        self._latest = packed
        return packed

    def _choose(self, use: Use, pack: Callable[[Tensor, torch.Size], Tensor]) -> Tensor:
        # Several threads may run this at the same time, so the attributes are replaced and never changed in place. At
        # worst two threads pack the same weight.
        uses = self._uses.copy()
        others = [packed for (threads, _), packed in uses.items() if threads == use[0]]
        if others and use not in self._came_once:
            self._came_once = (*self._came_once[1 - _MOST_USES :], use)
            return others[-1]
        packed = pack(self._weight.detach(), use[1])
        shared = next((copy for copy in self._copies if _is_same_layout(copy, packed)), None)
        if shared is None:
            self._copies = (packed,) if self._latest is None else (self._latest, packed)
        uses[use] = packed if shared is None else shared
        current = [(key, copy) for key, copy in uses.items() if any(copy is other for other in self._copies)]
        self._uses = dict(current[-_MOST_USES:])
        return uses[use]


def _version(weight: Tensor) -> int | None:
    return None if weight.is_inference() else weight._version


def _is_same_layout(packed: Tensor, other: Tensor) -> bool:
    """Return whether two copies of a weight are laid out alike.

    Their bytes are compared, because oneDNN's descriptions of layouts contain bytes without meaning.
    """
    return torch.equal(_memory(packed), _memory(other))


def _memory(packed: Tensor) -> Tensor:
    """Return the bytes of a packed weight as a view, which is valid only as long as the weight lives."""
    buffer = (ctypes.c_char * _kernels._nbytes(packed)).from_address(_kernels.data_ptr(packed))
    return torch.frombuffer(buffer, dtype=torch.uint8)
