"""``fastest``: which ways to compute something are right on this processor, and which of those is the fastest.

No flag tells what a library will run: instructions, shapes, threads and variables of the environment have a say. So
each way is tried where the program runs, with the largest integers there are, and the choice is remembered.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ENOUGH = 0.004
"""Seconds of calls of one way from which on its shortest time is trusted."""
_MOST_CALLS = 24
_CLOSE = 1.5
"""How many times the shortest time another way may take at first to be tried again, ..."""
_IN_A_ROW = 3
"""Calls of one way after each other where they are short: in a program, a call finds its own code in the cache."""
_SHORT = 0.0005
"""Seconds of a short call."""
_FIRST = 0.0005
"""... beside as many seconds, which a first call may wait for memory that later ones find in the cache."""


def rounded_up(size: int) -> int:
    """The power of two that is not less than ``size``: sizes with the same one share a trial.

    >>> [rounded_up(size) for size in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << max(0, size - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute something."""

    name: str
    """What it is called."""
    prepare: Callable[[], Callable[[], Tensor]]
    """Returns what computes it once; raises a RuntimeError where that cannot be."""
    is_right: Callable[[Tensor], bool]
    """Whether a result is what it should be."""


class Choices:
    """The ways that were chosen, by what was to be computed; one for a process."""

    def __init__(self) -> None:
        self._names: dict[Hashable, str | None] = {}
        self._lock = threading.Lock()

    def fastest(self, problem: Hashable, ways: Callable[[], Iterable[Sequence[Way]]]) -> str | None:
        """Return the name of the fastest way that is right, tried at most once for each problem; None if none is.

        Args:
            problem: all that makes a difference to the time, and the names of the ways.
            ways: makes them, where they have to be tried; of those in one sequence the first that is right is.
        """
        with self._lock:
            if problem not in self._names:
                self._names[problem] = _fastest(ways())
            return self._names[problem]

    def clear(self) -> None:
        """Forget all choices, as in a new process."""
        with self._lock:
            self._names.clear()


CHOICES = Choices()
"""Those of this process."""


def _fastest(ways: Iterable[Sequence[Way]]) -> str | None:
    runs: dict[str, Callable[[], Any]] = {}
    for alternatives in ways:
        for way in alternatives:
            if (run := _right_run(way)) is not None:
                runs[way.name] = run
                break
    return _shortest(runs) if len(runs) > 1 else next(iter(runs), None)


def _right_run(way: Way) -> Callable[[], Any] | None:
    try:
        run = way.prepare()
        return run if way.is_right(run()) else None
    except RuntimeError:  # torch's, for what a kernel does not take
        return None


def _shortest(runs: dict[str, Callable[[], Any]]) -> str:
    """The name of the run that takes the shortest time, of calls in turn."""
    times = {name: _times(run) for name, run in runs.items()}
    best = min(map(min, times.values()))
    close = [name for name in runs if min(times[name]) <= _CLOSE * best + _FIRST]
    while len(close) > 1 and not all(_is_enough(times[name]) for name in close):
        for name in close:
            times[name] += _times(runs[name])
    return min(close, key=lambda name: min(times[name]))


def _times(run: Callable[[], Any]) -> list[float]:
    """The time of a call, in seconds, or of some in a row where they are short."""
    first = _seconds(run)
    return [first, *(_seconds(run) for _ in range(_IN_A_ROW - 1))] if first < _SHORT else [first]


def _seconds(run: Callable[[], Any]) -> float:
    # alone, a thread's own time is what others on the machine leave it
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def _is_enough(times: Sequence[float]) -> bool:
    return len(times) >= 3 and (math.fsum(times) >= _ENOUGH or len(times) >= _MOST_CALLS)
