"""Copies of tensors that take no memory while nobody reads them: large ones are in a temporary file."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pytest_fx.harness.snapshot import is_strided

LARGE = 2**20
"""Bytes of a tensor from which on it is stored in the file: fewer are not worth a mapping."""


class StoredTensors(Mapping[str, torch.Tensor]):
    """Copies of tensors by name, to compare with and to copy from; never change them.

    A large tensor is read from the file on access, and takes memory while the returned tensor exists. The file has no
    name, and is removed with this object. If there is no room for it, all copies are in memory.

    >>> stored = StoredTensors()
    >>> total = torch.zeros(2)
    >>> stored["total"] = total
    >>> total.add_(1), stored["total"]
    (tensor([1., 1.]), tensor([0., 0.]))
    """

    def __init__(self) -> None:
        self._in_memory: dict[str, torch.Tensor] = {}
        self._in_file: dict[str, tuple[int, torch.Tensor]] = {}
        """The offset of each tensor in the file, and a tensor of its dtype, shape and device that takes no memory."""
        self._file: Any = None
        self._end = 0

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        """Add a copy of ``tensor``."""
        tensor = tensor.detach()
        is_plain = type(tensor) is torch.Tensor and is_strided(tensor) and not tensor.is_quantized
        if not is_plain or tensor.nbytes < LARGE or not self._write(name, tensor):
            self._in_memory[name] = tensor.clone()

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a tensor with the values that the tensor ``name`` had when it was added."""
        if name in self._in_memory:
            return self._in_memory[name]
        start, like = self._in_file[name]
        size = like.numel() * like.element_size()
        memory = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_COPY, offset=start)
        values = torch.frombuffer(memory, dtype=like.dtype, count=like.numel()).view(like.shape)
        return values.to(like.device)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._in_memory, *self._in_file])

    def __len__(self) -> int:
        return len(self._in_memory) + len(self._in_file)

    def _write(self, name: str, tensor: torch.Tensor) -> bool:
        """Append ``tensor`` to the file; return whether there was room."""
        octets: Any = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
                weakref.finalize(self, self._file.close)
            self._file.seek(self._end)
            self._file.write(memoryview(octets))
            self._file.flush()
        except OSError:
            return False
        # A meta tensor would have no device; a single element, expanded to the shape, takes next to no memory.
        like = torch.empty(1, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        self._in_file[name] = self._end, like
        page = mmap.ALLOCATIONGRANULARITY
        self._end = -(-(self._end + octets.nbytes) // page) * page
        return True
