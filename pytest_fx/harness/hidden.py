"""What eager answered, made unreadable while a program runs that is compared with it."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch

from pytest_fx.harness.run import Run
from pytest_fx.harness.snapshot import is_strided
from pytest_fx.harness.structure import leaves

_C: Any = torch._C


@contextmanager
def hidden(runs: Iterable[Run]) -> Generator[None]:
    """Change every bit pattern that ``runs`` hold inside the block, in place, and change it back afterwards.

    A program finds the tensors among all live objects, but no output in them. Memory that somebody else holds as well,
    a parameter that eager returns say, stays as it is.
    """
    memory, key = _own_memory(runs), random.SystemRandom().randrange(1, 256)
    for octets in memory:
        octets.bitwise_xor_(key)
    try:
        yield
    finally:
        for octets in memory:
            octets.bitwise_xor_(key)


def _own_memory(runs: Iterable[Run]) -> list[torch.Tensor]:
    """Return the memory of the tensors of ``runs`` that nothing else has."""
    tensors: dict[int, torch.Tensor] = {}
    for run in runs:
        for part in (run.output, run.inputs, run.state, run.rewritten):
            for _, leaf in leaves(part):
                if isinstance(leaf, torch.Tensor) and is_strided(leaf):
                    tensors[id(leaf)] = leaf
    holders: dict[int, int] = {}
    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors.values():
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        holders[storage._cdata] = holders.get(storage._cdata, 0) + 1
    return [
        torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        for number, storage in storages.items()
        # One more for the object that stands for the memory in Python; what torch did not allocate is somebody else's.
        if _C._storage_Use_Count(number) == holders[number] + 1 and storage.resizable() and storage.nbytes()
    ]
