"""The most memory that the tensors of one call take at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_fx.harness.structure import leaves


def peak_memory(program: Callable[[], Any], device: str = "cpu") -> int:
    """Return the most bytes that one call of ``program`` holds at a time beside what there was before it.

    Counted are intermediate values and outputs, and not parameters, inputs and views of them. On the CPU these are the
    tensors that operators return, without what an operator needs and gives back while it runs. On a GPU they are what
    PyTorch's allocator hands out, with that. Gradients are off. The call is not for timing: it is watched.

    >>> peak_memory(lambda: (torch.zeros(250) + 1) * 2)  # three tensors of 1000 bytes, two of them at a time
    2000
    """
    with torch.no_grad():
        if device.startswith("cuda"):
            return _peak_on_gpu(program)
        with _LiveTensors() as live:
            program()
        return live.peak


def _peak_on_gpu(program: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    program()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


class _LiveTensors(TorchDispatchMode):
    """Adds up the storages that operators make while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._known: dict[int, weakref.finalize[..., Any]] = {}

    def __exit__(self, *exception: Any) -> None:
        for watcher in self._known.values():
            watcher.detach()
        super().__exit__(*exception)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._watch(_storages((args, kwargs)), counted=False)  # what an operator takes and none made was there before
        result = func(*args, **(kwargs or {}))
        self._watch(_storages(result), counted=True)
        return result

    def _watch(self, storages: Iterable[torch.UntypedStorage], *, counted: bool) -> None:
        for storage in storages:
            address = storage._cdata
            if address not in self._known:
                size = storage.nbytes() if counted else 0
                self._known[address] = weakref.finalize(storage, self._forget, address, size)
                self._now += size
                self.peak = max(self.peak, self._now)

    def _forget(self, address: int, size: int) -> None:
        self._now -= size
        del self._known[address]


def _storages(values: Any) -> Iterable[torch.UntypedStorage]:
    for _, leaf in leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            yield leaf.untyped_storage()
