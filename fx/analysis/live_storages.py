"""The storages that kernels make, from when they are made until they are freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from fx.analysis.kernel_rules import tensors_in

Changed = Callable[[int, int], None]
"""Called with the number of a storage and its size in bytes, negative where it is freed."""


class LiveStorages:
    """Numbers the storages that kernels return in the order of their making, and tells when each is freed.

    Views, in-place results and aliases are in the storage that was there before. What a kernel takes and none has made,
    as inputs and parameters, has no number. On fake tensors the sizes are those that real ones would have.

    >>> changes = []
    >>> live = LiveStorages(lambda number, size: changes.append((number, size)))
    >>> zeros = torch.zeros(250)
    >>> live.record((), zeros), live.record((zeros,), zeros.view(10, 25))
    (None, None)
    >>> del zeros
    >>> changes
    [(0, 1000), (0, -1000)]
    """

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self._count = 0
        self._known: dict[int, tuple[int | None, weakref.ref[Any]]] = {}

    def record(self, given: Any, result: Any) -> None:
        """Take in one call of a kernel: what it was given, in any containers, and what it returned."""
        known = self._known
        for storage in _storages(given):
            if storage._cdata not in known:
                self._watch(storage, None, 0)
        for storage in _storages(result):
            if storage._cdata not in known:
                number, size = self._count, storage.nbytes()
                self._count += 1
                self._watch(storage, number, size)
                self._changed(number, size)

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of the storage that a tensor is in, or None where no kernel made it, or it has none."""
        if tensor.layout is not torch.strided:
            return None
        known = self._known.get(tensor.untyped_storage()._cdata)
        return None if known is None else known[0]

    def _watch(self, storage: torch.UntypedStorage, number: int | None, size: int) -> None:
        address, known, changed = storage._cdata, self._known, self._changed

        def forget(_: weakref.ref[Any]) -> None:
            if known.pop(address, None) is not None and number is not None:
                changed(number, -size)

        known[address] = number, weakref.ref(storage, forget)

    def stop(self) -> None:
        """Tell of nothing that is freed from now on."""
        self._known.clear()


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in tensors_in(values) if tensor.layout is torch.strided]
