"""Running a program on data without leaving traces in it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["state_kept"]


@contextmanager
def state_kept(module: nn.Module) -> Generator[None]:
    """Give buffers that are written to inside the block the values back that they had before it.

    >>> counter = nn.Module()
    >>> counter.register_buffer("calls", torch.zeros(()))
    >>> with state_kept(counter):
    ...     _ = counter.calls.add_(1)
    >>> counter.calls
    tensor(0.)
    """
    before = [(buffer, buffer._version, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, version, values in before:
                if buffer._version != version:
                    buffer.copy_(values)
