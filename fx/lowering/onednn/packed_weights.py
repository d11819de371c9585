"""Weights in the layouts that oneDNN's kernels want, which depend on the number of threads and on the input's size."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

Use: TypeAlias = "tuple[int, torch.Size]"
"""How many threads work on an input, and its size."""

_MOST_USES = 32
"""Uses that are remembered: of a program that gets inputs of ever new sizes there would be more and more."""
_kernels: Any = torch.ops.mkldnn


class PackedWeights:
    """The packed copies of a weight as it was at one time.

    A kernel that gets another layout than it wants converts the weight in each call, which can take twenty times as
    long as its own work. Stages of ResNet-50 then take up to 3.9 times as long where the layout is for another number
    of threads, and 3.6 where it is for another size; limited to AVX2, 6.1 and 9.2. Uses for which oneDNN wants the same
    layout share a copy; two layouts are kept, the one that was used last and the newest.
    """

    __slots__ = ("_came_once", "_copies", "_latest", "_uses", "_version", "_weight")

    def __init__(self, weight: Tensor) -> None:
        """No copy yet of ``weight``."""
        self._weight = weight
        self._version = _version(weight)
        self._copies: tuple[Tensor, ...] = ()
        self._latest: Tensor | None = None
        self._uses: dict[Use, Tensor] = {}
        self._came_once: tuple[Use, ...] = ()

    def are_of(self, weight: Tensor) -> bool:
        """Return whether ``weight`` is what was packed, and was not written to since."""
        return self._weight is weight and self._version == _version(weight)

    def find(self, size: torch.Size, pack: Callable[[Tensor, torch.Size], Tensor]) -> Tensor:
        """The copy for inputs of ``size`` under as many threads as there are now, made by ``pack`` if there is none.

        A size that comes for the first time takes a copy for another one, which costs less than packing if it does not
        come again: where each new size is packed for, stages of ResNet-50 take up to 1.6 times as long, and limited to
        AVX2 perceptrons 6.7 times.
        """
        use = (torch.get_num_threads(), size)
        found = self._uses.get(use)
        if found is None:
            found = self._choose(use, pack)
        self._latest = found
        return found

    def _choose(self, use: Use, pack: Callable[[Tensor, torch.Size], Tensor]) -> Tensor:
        # Several threads may get here at a time: what one of them reads is replaced, not changed; at worst they pack
        # twice.
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
        kept = [(one, copy) for one, copy in uses.items() if any(copy is other for other in self._copies)]
        self._uses = dict(kept[-_MOST_USES:])
        return uses[use]


def _version(weight: Tensor) -> int | None:
    return None if weight.is_inference() else weight._version


def _is_same_layout(packed: Tensor, other: Tensor) -> bool:
    """Return whether two copies of a weight lie in memory alike; some bytes in oneDNN's descriptions mean nothing."""
    return torch.equal(_memory(packed), _memory(other))


def _memory(packed: Tensor) -> Tensor:
    """The bytes of a packed weight, while that is there."""
    buffer = (ctypes.c_char * _kernels._nbytes(packed)).from_address(_kernels.data_ptr(packed))
    return torch.frombuffer(buffer, dtype=torch.uint8)
