"""The clocks of timings and the switches of the garbage collector, bound when the plugin starts.

Programs are imported later, and a module may put functions of its own in place of ``time.perf_counter``: to fool a
timing, or because it tests with a clock that stands still.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """Functions in an object: those that stop clocks replace what modules hold."""

    wall: Callable[[], float] = time.perf_counter
    """Seconds that have passed."""
    processor: Callable[[], float] = time.process_time
    """Seconds that processors have computed for this process, those of all threads."""


@dataclass(frozen=True, slots=True)
class Collector:
    """The same for the garbage collector."""

    is_on: Callable[[], bool] = gc.isenabled
    """Whether it collects by itself."""
    collect: Callable[[], int] = gc.collect
    """Collects now."""
    start: Callable[[], None] = gc.enable
    """Lets it collect by itself."""
    stop: Callable[[], None] = gc.disable
    """Keeps it from that."""


CLOCK = Clock()
COLLECTOR = Collector()
