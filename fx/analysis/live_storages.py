"""The storages that kernels allocate, from allocation until they are freed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from fx.container_kinds import leaves_of

Changed = Callable[[int, int], None]
"""A callback that takes the number of a storage and its size in bytes, negative when it is freed."""


class LiveStorages:
    """A tracker that numbers the storages that kernels allocate, in order, and reports when each is freed.

    Views, in-place results and aliases have the number of their base's storage. Storages that no kernel allocated, such
    as those of inputs and parameters, have no number. A fake tensor counts with the size of the real one.

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
        """Record one call of a kernel: its arguments, in any containers, and its result."""
        watched = self._known
        for storage in _storages(given):
            if storage._cdata not in watched:
                self._watch(storage, None, 0)
        for storage in _storages(result):
            if storage._cdata not in watched:
                number, size = self._count, storage.nbytes()
                self._count += 1
                self._watch(storage, number, size)
                self._changed(number, size)

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Return the number of a tensor's storage, or None if no kernel allocated it or the tensor has no storage."""
        if tensor.layout is not torch.strided:
            return None
        entry = self._known.get(tensor.untyped_storage()._cdata)
        return None if entry is None else entry[0]

    def _watch(self, storage: torch.UntypedStorage, number: int | None, size: int) -> None:
        address, watched, changed = storage._cdata, self._known, self._changed

        def forget(_: weakref.ref[Any]) -> None:
            if watched.pop(address, None) is not None and number is not None:
                changed(number, -size)

        watched[address] = number, weakref.ref(storage, forget)

    def stop(self) -> None:
        """Stop reporting: later frees are ignored."""
        self._known.clear()


def _storages(values: Any) -> list[torch.UntypedStorage]:
    tensors = (value for value in leaves_of(values) if isinstance(value, torch.Tensor))
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided]
