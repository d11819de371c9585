"""The clocks of timings and the switches of the garbage collector, bound when the plugin starts.

Programs are imported later, and a module may replace ``time.perf_counter`` by a function of its own: to fool a timing,
or because it tests with a clock that stands still.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Functions of clocks, kept in an object: code that stops clocks replaces attributes of modules."""

    wall: Callable[[], float] = time.perf_counter
    """The wall-clock time in seconds."""
    processor: Callable[[], float] = time.process_time
    """The processor time of this process in seconds, over all threads."""


@dataclass(frozen=True, slots=True)
class Collector:
    """Functions of the garbage collector, kept in the same way."""

    is_on: Callable[[], bool] = gc.isenabled
    """True if it collects by itself."""
    collect: Callable[[], int] = gc.collect
    """Collect now."""
    start: Callable[[], None] = gc.enable
    """Let it collect by itself."""
    stop: Callable[[], None] = gc.disable
    """Keep it from collecting by itself."""


CLOCK = Clock()
COLLECTOR = Collector()


@contextmanager
def unprofiled() -> Generator[None]:
    """Suspend the profiler of this thread inside the block: each call of a Python function would take longer."""
    profiler = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profiler)
