"""The most memory that the tensors of one call take at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fx.analysis.kernel_calls import KernelMode
from fx.analysis.live_storages import LiveStorages
from pytest_fx.harness.layouts import uncompiled


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
    """Adds up the storages that operators make while they are alive."""

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
