"""Measured shares of a GPU's published peak figures, which ``simulate`` assumes.

``python -m benchmarks.accelerator`` prints these figures:

- the seconds to launch a kernel, and the seconds of the smallest kernel;
- the bandwidth of the memory, in bytes a second;
- the share of the peak rate that matrix products and convolutions reach, in float32 as PyTorch has it by default
  (TF32 in convolutions) and in bfloat16.

It needs a GPU. It does not run the models that estimates are evaluated on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from fx.simulation.known_devices import get_device
from pytest_fx.tables.rows.simulation import gpu_in_machine

_CONVOLUTIONS = (
    *((64, 64, 56, 3), (128, 128, 28, 3), (256, 256, 14, 3), (512, 512, 7, 3)),
    *((64, 256, 56, 1), (512, 128, 28, 1), (1024, 256, 14, 1), (512, 2048, 7, 1)),
    *((64, 64, 256, 3), (128, 128, 128, 3), (3, 64, 224, 7)),
)
"""Input channels, output channels, image size, kernel size."""
_BATCHES = (1, 32, 256)
_REPEATS = 20


def main() -> None:
    """Print the figures of the GPU in this machine."""
    device = get_device(gpu_in_machine())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    small = torch.ones(1, device="cuda")
    host, on_device = _seconds(lambda: torch.relu(small), 2000)
    print(f"launch {host * 1e6:.2f} us; the smallest kernel, one after the other, {on_device * 1e6:.2f} us")
    large = torch.ones(2**28, device="cuda")
    _, seconds = _seconds(lambda: torch.relu(large), _REPEATS)
    rate = 2 * large.nbytes / seconds
    print(f"memory {rate / 1e9:.0f} GB/s, {rate / device.memory.value:.2f} of it")
    for dtype in (torch.float32, torch.bfloat16):
        shares: dict[int, list[float]] = {batch: [] for batch in _BATCHES}
        for size in (1024, 4096, 8192):
            square = torch.randn(size, size, device="cuda", dtype=dtype)
            _, seconds = _seconds(lambda left=square: left @ left, _REPEATS)
            print(f"{dtype} product {size}: {2 * size**3 / seconds / device.rate(dtype).value:.2f} of its rate")
        for channels, out, side, kernel in _CONVOLUTIONS:
            lines: list[str] = []
            for batch in _BATCHES:
                images = torch.randn(batch, channels, side, side, device="cuda", dtype=dtype)
                weight = torch.randn(out, channels, kernel, kernel, device="cuda", dtype=dtype)
                call = lambda images=images, weight=weight, kernel=kernel: functional.conv2d(  # noqa: E731
                    images, weight, padding=kernel // 2
                )
                _, seconds = _seconds(call, _REPEATS)
                operations = 2 * batch * out * side * side * channels * kernel * kernel
                shares[batch].append(operations / seconds / device.rate(dtype, convolution=True).value)
                lines.append(f"{shares[batch][-1]:.2f} ({seconds * 1e6:.0f} us)")
            print(f"{dtype} convolution {channels} to {out}, {side}x{side}, {kernel}x{kernel}: {', '.join(lines)}")
        for batch, reached in shares.items():
            print(f"{dtype} convolutions, batch {batch}: median {statistics.median(reached):.2f} of their rate")


def _seconds(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the seconds of a call on the host and on the device, from calls in a row."""
    call()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    host = time.perf_counter() - start
    end.record()
    torch.cuda.synchronize()
    return host / repeats, begin.elapsed_time(end) * 1e-3 / repeats


if __name__ == "__main__":
    main()
