"""Several programs timed in turns, so that what else the machine does falls on all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from pytest_fx.timing.paired import PairedTiming, steady_conditions

_WARM_UP = 2


def time_rounds(
    programs: Mapping[str, Callable[[], Any]], *, baseline: str, rounds: int, threads: int
) -> dict[str, PairedTiming]:
    """Return the pairs of the baseline and each other program, by its name.

    In each of ``rounds`` rounds all programs run once, in another order, the same in every process, so that none always
    finds the memory and caches that one of the others leaves; two rounds before are not counted. What a program returns
    is freed before the next one runs, and that is not counted either.
    """
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    names, order = list(programs), random.Random(0)
    with steady_conditions(threads):
        for turn in range(-_WARM_UP, rounds):
            for name in order.sample(names, len(names)):
                taken = _sample(programs[name])
                if turn >= 0:
                    seconds[name].append(taken)
    before = tuple(seconds[baseline])
    return {
        name: PairedTiming(before, tuple(after), threads, iterations=1)
        for name, after in seconds.items()
        if name != baseline
    }


def _sample(program: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = program()
    taken = time.perf_counter() - start
    del result
    return taken
