"""Paired timing: every round runs all contenders, and the median of the ratios within rounds is reported.

A busy machine slows all contenders of a round alike, so the ratio of a round holds where absolute times do not.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.fx

import fx
from pytest_fx.tables.pairs import in_rounds
from pytest_fx.timing.paired import median_interval

LIBRARIES: dict[str, ModuleType] = {"torch.fx": torch.fx, "fx": fx}
"""The libraries under comparison, by the name of their column."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work."""

    run: Callable[[Any], Any]
    """The function that does the work once; it takes the result of ``prepare``."""
    prepare: Callable[[], Any] | None = None
    """A function that makes a fresh input for each call, outside the measured time; if None, the input is None."""


def each(work: Callable[[Any], Any], subjects: Mapping[str, Any]) -> dict[str, Contender]:
    """Return contenders that repeat the same work, each on its own subject."""
    return {label: Contender(lambda _, subject=subject: work(subject)) for label, subject in subjects.items()}


def each_afresh(work: Callable[[Any], Any], makers: Mapping[str, Callable[[], Any]]) -> dict[str, Contender]:
    """Return contenders that do the same work, with a fresh subject for each call."""
    return {label: Contender(work, prepare) for label, prepare in makers.items()}


@dataclass(frozen=True, slots=True)
class Ratio:
    """The time of one contender in units of another's."""

    median: float
    """Median over the rounds of this contender's time by the other's."""
    low: float
    """Lower end of the bootstrap 95 % interval of the median."""
    high: float
    """Upper end of this interval."""

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The times of several contenders for the same work."""

    name: str
    """The name of the task."""
    seconds: dict[str, list[float]]
    """Seconds of one call by contender, one entry a round; the others are compared with the first contender."""
    operations: int = 1
    """Number of operations of a call; times are printed by operation."""
    goal: str = ""
    """The ratio or time to reach, in words."""

    def ratio(self, contender: str) -> Ratio:
        """Compare a contender with the first, round by round."""
        return median_ratio(self.seconds[contender], next(iter(self.seconds.values())))

    def each(self, contender: str) -> float:
        """Return the median time of one operation, in seconds."""
        return float(np.median(self.seconds[contender])) / self.operations


def median_ratio(times: list[float], baseline: list[float]) -> Ratio:
    """Return the median of the paired ratios with its bootstrap 95 % interval (fixed seed, percentile method)."""
    ratios = tuple(time / other for time, other in zip(times, baseline, strict=True))
    return Ratio(statistics.median(ratios), *median_interval(ratios))


def measure(
    name: str,
    contenders: Mapping[str, Contender],
    *,
    rounds: int,
    operations: int = 1,
    goal: str = "",
    shortest: float = 0.01,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Time all contenders in ``rounds`` rounds, each in another order, after a discarded warm-up round.

    Args:
        name: the name of the task in the table.
        contenders: the contenders by name; the others are compared with the first.
        rounds: the number of ratios.
        operations: the number of operations of one call, for the printed times.
        goal: the ratio or time to reach, in words.
        shortest: a sample repeats its call until it takes about this many seconds, unless each call is prepared.
        clock: the clock, in seconds; ``time.thread_time`` excludes other processes, if this thread does all the work.
    """
    repeats = {label: _repeats(contender, shortest, clock) for label, contender in contenders.items()}
    samples = {label: partial(_sample, contender, repeats[label], clock) for label, contender in contenders.items()}
    return Measurement(name, in_rounds(samples, rounds), operations, goal)


def _repeats(contender: Contender, shortest: float, clock: Callable[[], float]) -> int:
    """Warm up, and return the number of calls in a sample."""
    once = _sample(contender, 1, clock)
    if contender.prepare is not None:
        return 1
    return max(1, round(shortest / min(once, _sample(contender, 1, clock))))


def _sample(contender: Contender, repeats: int, clock: Callable[[], float]) -> float:
    prepared = None if contender.prepare is None else contender.prepare()
    gc.collect()
    gc.freeze()  # collections during the sample visit only its own objects
    try:
        start = clock()
        for _ in range(repeats):
            contender.run(prepared)
        return (clock() - start) / repeats
    finally:
        gc.unfreeze()


def parse(description: str | None, *, rounds: int, **others: Mapping[str, Any]) -> argparse.Namespace:
    """Read the options that all benchmarks share, and set the number of threads.

    ``others`` are the options of one benchmark: their names, with arguments of ``add_argument``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few rounds, small programs: a check, not a verdict")
    parser.add_argument("--rounds", type=int, default=None, help=f"rounds per measurement (default {rounds})")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    for name, how in others.items():
        parser.add_argument(f"--{name}", **how)
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 5 if options.quick else rounds
    torch.set_num_threads(options.threads)
    return options


class Table:
    """A table that prints each measurement at once, as a row of times and of ratios to the first contender."""

    def __init__(self, *contenders: str) -> None:
        self.contenders = contenders
        compared = "  ".join(f"{f'{label} / {contenders[0]}':>24}" for label in contenders[1:])
        print(f"{'':<62}{''.join(f'{label:>12}' for label in contenders)}  {compared}  goal", flush=True)

    def add(self, measurement: Measurement) -> None:
        """Print a row."""
        done = measurement.seconds
        each = {label: duration(measurement.each(label)) for label in done}
        times = "".join(f"{each.get(label, '-'):>12}" for label in self.contenders)
        compared = {label: str(measurement.ratio(label)) for label in done if self.contenders[0] in done}
        ratios = "  ".join(f"{compared.get(label, '-'):>24}" for label in self.contenders[1:])
        print(f"{measurement.name:<62}{times}  {ratios}  {measurement.goal}", flush=True)

    def measure(self, name: str, contenders: Mapping[str, Contender], **how: Any) -> Measurement:
        """Measure, print the result as a row, and return it; the arguments are those of :func:`measure`."""
        measurement = measure(name, contenders, **how)
        self.add(measurement)
        return measurement

    def measure_operations(
        self, name: str, size: int, contenders: Mapping[str, Contender], *, rounds: int, **how: Any
    ) -> None:
        """Print the times of one operation of ``size``, in fewer rounds for longer programs."""
        name = f"{name}, one operation of {size:,}"
        self.measure(name, contenders, rounds=rounds_for(size, rounds), operations=size, **how)


def sizes(options: argparse.Namespace) -> list[int]:
    """Return the numbers of operations of the programs in most benchmarks."""
    return [1_000] if options.quick else [1_000, 10_000, 100_000]


def rounds_for(size: int, rounds: int) -> int:
    """Return the number of rounds: fewer for longer programs, and at least three."""
    return max(3, rounds * 1000 // max(size, 1000))


def duration(seconds: float) -> str:
    """Format a time with three digits and its unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1.0:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
