"""``empty``: memory for large results, in pages that a processor gets a few hundred of rather than a hundred thousand.

The system clears fresh memory page by page when it is first written. For results of hundreds of megabytes that takes as
long as computing them; in large pages it takes a fifth.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["LARGE", "empty"]

LARGE = 1 << 25
"""Bytes from which on allocators ask the system for fresh memory each time."""

_mmap: Any = mmap


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor on the CPU with anything in it, whose memory is in large pages where it is large.

    >>> empty((2, 3), torch.float32).shape
    torch.Size([2, 3])
    """
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):  # systems other than Linux have none to ask for
        return torch.empty(tuple(shape), dtype=dtype)
    memory = _mmap.mmap(-1, size, flags=_mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS)
    memory.madvise(_mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(tuple(shape))  # which keeps the memory
