"""``empty``: memory for large results, in pages that a processor gets a few hundred of rather than a hundred thousand.

The system clears fresh memory page by page when it is first written. For results of hundreds of megabytes that takes as
long as computing them; in large pages it takes a fifth.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["LARGE", "empty"]

LARGE = 1 << 25
"""Bytes from which on allocators ask the system for fresh memory each time."""


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor on the CPU with anything in it, whose memory is in large pages where it is large.

    >>> empty((2, 3), torch.float32).shape
    torch.Size([2, 3])
    """
    tensor = torch.empty(tuple(shape), dtype=dtype)
    advise = _advise()
    size = tensor.numel() * dtype.itemsize
    if size >= LARGE and advise is not None and type(tensor) is Tensor:  # none that only says its shape
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = (tensor.data_ptr() + size - start) // mmap.PAGESIZE * mmap.PAGESIZE
        advise(start, whole, mmap.MADV_HUGEPAGE)  # it is advice: whether it is taken makes no difference but in time
    return tensor


@functools.lru_cache(maxsize=1)
def _advise() -> Callable[[int, int, int], Any] | None:
    """The system's function that takes advice on memory, or None where there are no large pages to ask for."""
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    advise: Any = getattr(ctypes.CDLL(None), "madvise", None)
    if advise is not None:
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
