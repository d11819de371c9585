"""Copies of tensors that take no memory while nobody reads them: large ones lie in a temporary file."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pytest_fx.harness.snapshot import is_strided

LARGE = 2**20
"""Bytes of a tensor from which on it goes to the file: less is not worth a mapping."""


class StoredTensors(Mapping[str, torch.Tensor]):
    """Tensors by name, each as it was when it was added: to be compared with, and copied, never to be changed.

    A large one is read from the file when it is asked for, and takes memory as long as somebody holds what was
    returned. The file has no name, and is gone with this. Where there is no room for it, all is kept in memory.

    >>> stored = StoredTensors()
    >>> total = torch.zeros(2)
    >>> stored["total"] = total
    >>> total.add_(1), stored["total"]
    (tensor([1., 1.]), tensor([0., 0.]))
    """

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}
        self._placed: dict[str, tuple[int, torch.Tensor]] = {}
        """Where each tensor starts in the file, with one without memory that has its dtype, shape and device."""
        self._file: Any = None
        self._end = 0

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        """Add a copy of ``tensor``."""
        tensor = tensor.detach()
        is_plain = type(tensor) is torch.Tensor and is_strided(tensor) and not tensor.is_quantized
        if not is_plain or tensor.nbytes < LARGE or not self._write(name, tensor):
            self._held[name] = tensor.clone()

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a tensor that holds what the one called ``name`` held."""
        if name in self._held:
            return self._held[name]
        start, like = self._placed[name]
        size = like.numel() * like.element_size()
        memory = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_COPY, offset=start)
        values = torch.frombuffer(memory, dtype=like.dtype, count=like.numel()).view(like.shape)
        return values.to(like.device)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._held, *self._placed])

    def __len__(self) -> int:
        return len(self._held) + len(self._placed)

    def _write(self, name: str, tensor: torch.Tensor) -> bool:
        """Append ``tensor`` to the file; say whether there was room."""
        octets: Any = tensor.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this is there
                weakref.finalize(self, self._file.close)
            self._file.seek(self._end)
            self._file.write(memoryview(octets))
            self._file.flush()
        except OSError:
            return False
        # A tensor without memory would have no device; one element seen in every place takes next to none.
        like = torch.empty(1, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        self._placed[name] = self._end, like
        page = mmap.ALLOCATIONGRANULARITY
        self._end = -(-(self._end + octets.nbytes) // page) * page
        return True
