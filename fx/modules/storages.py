"""The memory of the tensors in a module hierarchy: a number for each storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fx.modules.attributes import find_attribute

NUMBERS = (int, float, complex, str, bool, type(None), torch.dtype, torch.device, torch.Size, torch.layout)
"""Types of values that hold no memory."""


class Storages:
    """Numbers for the memory of attributes and submodules of one module, each looked up once.

    Tensors with a common storage, such as tied parameters and views, have the same number. All values without an
    accessible storage share one number as well.
    """

    def __init__(self, owner: torch.nn.Module | None, new_cell: Callable[[], int]) -> None:
        self._owner = owner
        self._new_cell = new_cell
        self._cells: dict[int, int] = {}
        self._ranges: list[tuple[int, int, int]] = []
        self._fetched: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self.paths: dict[int, str] = {}
        """For each number, the first path to its memory."""

    def fetch(self, path: str) -> tuple[Any, tuple[int, ...]]:
        """Return the attribute at ``path``, or ``None`` if there is none, and the numbers of its memory."""
        fetched = self._fetched.get(path)
        if fetched is None:
            value = find_attribute(self._owner, path)
            fetched = self._fetched[path] = (value, self._cells_in(path, value))
        return fetched

    def cells_of(self, path: str) -> tuple[int, ...]:
        """Return the numbers of the memory of the attribute at ``path``."""
        return self.fetch(path)[1]

    def all_cells(self) -> tuple[int, ...]:
        """Return the numbers of all memory of the module."""
        if self._owner is not None:
            for name, value in (*self._owner.named_parameters(), *self._owner.named_buffers()):
                self._cell(name, value)
        return tuple(self.paths)

    def is_composite(self, path: str) -> bool:
        """Return whether the module at ``path`` calls others, or is a program."""
        module = self.fetch(path)[0]
        return bool(getattr(module, "_modules", None)) or hasattr(module, "graph")

    def overlapping(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of different storages that overlap, by number; enough pairs to connect all that overlap."""
        reached, last = 0, -1
        for start, end, cell in sorted(self._ranges):
            if start < reached:
                yield last, cell
            if end > reached:
                reached, last = end, cell

    def _cells_in(self, path: str, value: Any) -> tuple[int, ...]:
        if isinstance(value, torch.nn.Module):
            tensors = (*value.named_parameters(), *value.named_buffers())
            return tuple(dict.fromkeys(self._cell(f"{path}.{name}", tensor) for name, tensor in tensors))
        if self._owner is not None and isinstance(value, NUMBERS):
            return ()
        return (self._cell(path, value),)

    def _cell(self, path: str, value: Any) -> int:
        start, end = _extent(value) if isinstance(value, torch.Tensor) else (0, 0)
        cell = self._cells.get(start)
        if cell is None:
            cell = self._cells[start] = self._new_cell()
            self.paths[cell] = path
            if end > start > 0:
                self._ranges.append((start, end, cell))
        return cell


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the start and end of the memory of ``tensor``.

    The result is zeros if the tensor gives no access to its storage, and a negative start and zero if it has no memory.
    """
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors, some subclasses
        return 0, 0
    try:
        start = storage.data_ptr()
    except RuntimeError:  # tensors without real memory, such as fake tensors
        start = 0
    return (start, start + storage.nbytes()) if start else (-storage._cdata, 0)


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that is equal for tensors with the same memory, as long as one of them lives."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
