"""Times in pairs: eager and transformed alternate, so that what else the machine does falls on both."""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from . import evaluation
from .options import WARMUP_ROUNDS

SHORTEST_SAMPLE = 2e-3
"""Seconds that a sample takes at least; faster programs are called several times in each."""
RESAMPLES = 2000
"""Bootstrap samples that the interval is taken from."""

Program = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PairedTiming:
    """What pairs of an eager call and a transformed call took."""

    eager: tuple[float, ...]
    """Seconds of each eager call."""
    transformed: tuple[float, ...]
    """Seconds of the transformed call that each was paired with."""
    threads: int
    """Threads that PyTorch computed with."""
    iterations: int
    """Calls in each sample; a sample's time is divided by it."""

    @property
    def speedups(self) -> tuple[float, ...]:
        """For each pair, how many times as long eager took."""
        return tuple(eager / transformed for eager, transformed in zip(self.eager, self.transformed, strict=True))

    @property
    def speedup(self) -> float:
        """The median of :attr:`speedups`; above 1 the transformed program is faster."""
        return statistics.median(self.speedups)

    @property
    def interval(self) -> tuple[float, float]:
        """The bootstrap 95 % interval of :attr:`speedup`."""
        return median_interval(self.speedups)

    @property
    def verdict(self) -> str:
        """``"faster"``, ``"slower"``, or ``"no difference shown"`` where the interval holds 1."""
        low, high = self.interval
        if low <= 1.0 <= high:
            return "no difference shown"
        return "faster" if low > 1.0 else "slower"


def time_pairs(
    eager: Program, transformed: Program, *, rounds: int = 30, threads: int = 1, device: str = "cpu"
) -> PairedTiming:
    """Return the times of ``rounds`` pairs, after :data:`~pytest_fx.options.WARMUP_ROUNDS` that are not counted.

    The order within a pair alternates. Garbage collection and gradients are off and PyTorch has ``threads`` threads
    while times are taken; all three are as they were afterwards.
    """
    seconds = _seconds_on_gpu if device.startswith("cuda") else _seconds_on_cpu
    times: dict[Program, list[float]] = {eager: [], transformed: []}
    with steady_conditions(threads):
        slowest = 0.0
        for _ in range(WARMUP_ROUNDS):
            slowest = max(seconds(eager, 1), seconds(transformed, 1))
        iterations = max(1, math.ceil(SHORTEST_SAMPLE / max(slowest, 1e-7)))
        for round_number in range(rounds):
            order = (eager, transformed) if round_number % 2 == 0 else (transformed, eager)
            for program in order:
                times[program].append(seconds(program, iterations) / iterations)
    return PairedTiming(tuple(times[eager]), tuple(times[transformed]), threads, iterations)


@contextmanager
def steady_conditions(threads: int) -> Generator[None]:
    """Set the threads, switch off gradients and garbage collection, and put everything back."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad(), evaluation.threads(threads):
            yield
    finally:
        if collecting:
            gc.enable()


def median_interval(values: tuple[float, ...], confidence: float = 0.95) -> tuple[float, float]:
    """Return the bootstrap percentile interval of the median of ``values``; the same values give the same interval."""
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    medians = torch.tensor(values, dtype=torch.float64)[picks].quantile(0.5, dim=1)
    tail = (1 - confidence) / 2
    low, high = medians.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return float(low), float(high)


def describe_torch() -> dict[str, str | int | None]:
    """Return what a timing of PyTorch depends on beside the machine, for pytest-benchmark's record."""
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _seconds_on_cpu(program: Program, iterations: int) -> float:
    start = time.perf_counter()
    for _ in range(iterations):
        program()
    return time.perf_counter() - start


def _seconds_on_gpu(program: Program, iterations: int) -> float:
    """Return the time between two events on the device, which launches that are still queued do not shorten."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(iterations):
        program()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3
