"""The peak memory of the tensors of one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fx.analysis.kernel_calls import KernelMode
from fx.analysis.live_storages import LiveStorages
from pytest_fx.harness.layouts import uncompiled


def peak_memory(program: Callable[[], Any], device: str = "cpu") -> int:
    """Return the most bytes that one call of ``program`` holds at a time, beyond those held before it.

    Intermediate values and outputs count; parameters, inputs and views of them do not. On the CPU these are the tensors
    that operators return, without the workspace that an operator frees before it returns. On a GPU they are the
    allocations of PyTorch's allocator, with that workspace. Gradients are off. The call is observed, so it is not for
    timing.
    >>> peak_memory(lambda: (torch.zeros(250) + 1) * 2)  # three tensors of 1000 bytes, two of them at a time
    2000
    """
    with torch.no_grad():
        if device.startswith("cuda"):
            return _peak_on_gpu(program)
        with uncompiled(), _LiveTensors() as live:
            program()
        return live.peak


def _peak_on_gpu(program: Callable[[], Any]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    program()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


class _LiveTensors(KernelMode):
    """Sums the sizes of the storages that operators allocate while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._live = LiveStorages(self._change)

    def __exit__(self, *exception: Any) -> None:
        self._live.stop()
        super().__exit__(*exception)

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        self._live.record((args, kwargs), result)
        return result

    def _change(self, number: int, size: int) -> None:
        self._now += size
        self.peak = max(self.peak, self._now)
