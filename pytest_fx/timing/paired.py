"""Times in pairs: eager and transformed alternate, so that what else the machine does falls on both."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from pytest_fx.harness import evaluation
from pytest_fx.harness.evaluation import Arguments, same_random_numbers
from pytest_fx.options import TOO_NOISY, WARMUP_ROUNDS, WIDEST_INTERVAL
from pytest_fx.timing.contents import Contents, Ring
from pytest_fx.timing.outputs import OutputCheck

SHORTEST_SAMPLE = 2e-3
"""Seconds that a sample takes at least; faster programs are called several times in each."""
LONGEST_SAMPLE = 2e-2
"""Seconds that a sample of the slower program takes at most, if one call does not take longer."""
LONG_CALL = 1.0
"""Seconds of a call from which on two pairs are warm-up enough; the first may have compiled something."""
LONG_TIMING = 60.0
"""Seconds from which on a timing is announced before it starts."""
RESAMPLES = 2000
"""Bootstrap samples that the interval is taken from."""
FENCE = 1.5
"""Interquartile ranges outside of the quartiles from which on a ratio is an outlier (Tukey's fences)."""

Program = Callable[..., Any]

# A program under the clock may put other functions in place of these.
_collect, _is_collecting, _collect_garbage, _keep_garbage = gc.collect, gc.isenabled, gc.enable, gc.disable
_Event, _synchronize = torch.cuda.Event, torch.cuda.synchronize


@dataclass(frozen=True, slots=True)
class PairedTiming:
    """What pairs of an eager call and a transformed call took."""

    eager: tuple[float, ...]
    """Seconds of each eager call; on a GPU those of the device."""
    transformed: tuple[float, ...]
    """Seconds of the transformed call that each was paired with."""
    threads: int
    """Threads that PyTorch computed with."""
    iterations: int
    """Calls in each sample; a sample's time is divided by it."""
    eager_host: tuple[float, ...] = ()
    """On a GPU, seconds until each eager call had launched its work; otherwise empty."""
    transformed_host: tuple[float, ...] = ()
    """The same of the transformed calls."""

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
    def noisy(self) -> bool:
        """Whether the interval is too wide for :attr:`speedup` to mean anything: 10 % of it, or more."""
        low, high = self.interval
        return high - low >= WIDEST_INTERVAL * self.speedup

    @property
    def verdict(self) -> str:
        """``"faster"`` or ``"slower"``, or that no difference is shown or too noisy, where the interval holds 1."""
        low, high = self.interval
        if low <= 1.0 <= high:
            return TOO_NOISY if self.noisy else "no difference shown"
        return "faster" if low > 1.0 else "slower"

    @property
    def outliers(self) -> float:
        """The share of :attr:`speedups` that lie more than 1.5 interquartile ranges outside of the quartiles."""
        if len(self.speedups) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.speedups, n=4, method="inclusive")
        reach = FENCE * (third - first)
        return sum(not first - reach <= ratio <= third + reach for ratio in self.speedups) / len(self.speedups)

    @property
    def noise(self) -> float:
        """The median absolute deviation of :attr:`speedups`, relative to :attr:`speedup`."""
        return statistics.median(abs(ratio - self.speedup) for ratio in self.speedups) / self.speedup


def time_pairs(
    eager: Program,
    transformed: Program,
    *,
    rounds: int = 30,
    threads: int = 1,
    device: str = "cpu",
    announce: Callable[[float], None] | None = None,
    contents: Contents | None = None,
    outputs: OutputCheck | None = None,
) -> PairedTiming:
    """Return the times of ``rounds`` pairs, after warm-up calls that are not counted.

    The order within a pair alternates. Everything that :func:`steady_conditions` holds still is as it was afterwards,
    also if a program raises. Warm-up is :data:`~pytest_fx.options.WARMUP_ROUNDS` pairs, or two where calls take longer
    than :data:`LONG_CALL`. ``announce`` is called with the expected seconds before a timing that will take more than
    :data:`LONG_TIMING`.

    Programs are called with ``contents``: other ones in each call, the same ones in both samples of a pair, copied
    outside of the clock to addresses that stay. Without it they are called with nothing. ``outputs`` sees what they
    return, and raises :class:`~pytest_fx.errors.TimedOutputError` where that is not computed from the contents.
    """
    contents = Contents(lambda number: Arguments()) if contents is None else contents
    pairs = _Pairs((eager, transformed), device, contents, outputs)
    samples: tuple[list[tuple[float, ...]], ...] = ([], [])
    with steady_conditions(threads):
        calls = _warm_up(pairs)
        wanted = math.ceil(SHORTEST_SAMPLE / max(min(calls), 1e-7))
        iterations = max(1, min(wanted, math.ceil(LONGEST_SAMPLE / max(*calls, 1e-7))))
        iterations = contents.fitting(iterations)
        pairs.set_iterations(iterations)
        expected = rounds * iterations * sum(calls)
        if announce is not None and expected > LONG_TIMING:
            announce(expected)
        compared = {0, rounds // 2, rounds - 1}
        for round_number in range(rounds):
            order = (0, 1) if round_number % 2 == 0 else (1, 0)
            for known, sample in zip(samples, pairs.measure(order, compare=round_number in compared), strict=True):
                known.append(sample)
    if outputs is not None:
        outputs.require_followed()
    (eager_times, *eager_host), (times, *host) = (_per_call(clocks, iterations) for clocks in samples)
    return PairedTiming(
        eager_times,
        times,
        threads,
        iterations,
        eager_host=eager_host[0] if eager_host else (),
        transformed_host=host[0] if host else (),
    )


@contextmanager
def steady_conditions(threads: int) -> Generator[None]:
    """Hold still what times depend on inside the block, and put everything back as it was, also after an error.

    PyTorch has ``threads`` threads, records no gradients, and Python collects no garbage. cuDNN chooses its
    algorithms the same way in every run, as PyTorch does by default: no search, not only deterministic ones, TF32
    allowed in convolutions and recurrent layers.
    """
    collecting = _is_collecting()
    _collect()
    _keep_garbage()
    try:
        with torch.no_grad(), evaluation.threads(threads), _cudnn_defaults():
            yield
    finally:
        (_collect_garbage if collecting else _keep_garbage)()


@contextmanager
def _cudnn_defaults() -> Generator[None]:
    backends: Any = torch.backends
    cudnn, allowed = backends.cudnn, backends.__allow_nonbracketed_mutation  # torch's utilities for tests freeze flags
    # TF32 has two switches, which the old one, allow_tf32, refuses to speak of where they differ.
    defaults = [
        (cudnn, "benchmark", False),
        (cudnn, "deterministic", False),
        (cudnn.conv, "fp32_precision", "tf32"),
        (cudnn.rnn, "fp32_precision", "tf32"),
    ]
    before = [getattr(owner, name) for owner, name, _ in defaults]
    try:
        with allowed():
            for owner, name, value in defaults:
                setattr(owner, name, value)
        yield
    finally:
        with allowed():
            for (owner, name, _), value in zip(defaults, before, strict=True):
                setattr(owner, name, value)


def median_interval(values: tuple[float, ...], confidence: float = 0.95) -> tuple[float, float]:
    """Return the bootstrap percentile interval of the median of ``values``; the same values give the same interval."""
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    medians = torch.tensor(values, dtype=torch.float64)[picks].quantile(0.5, dim=1)
    tail = (1 - confidence) / 2
    low, high = medians.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return float(low), float(high)


class _Pairs:
    """Takes samples of both programs in one and the same way, each with argument sets of its own."""

    def __init__(
        self, programs: tuple[Program, Program], device: str, contents: Contents, outputs: OutputCheck | None
    ) -> None:
        self._programs = programs
        self._sample = _sample_on_gpu if device.startswith("cuda") else _sample_on_cpu
        self._contents = contents
        self._outputs = outputs
        self._rings = (contents.ring(1), contents.ring(1))
        self._next = 0
        self._compared = 0

    def set_iterations(self, iterations: int) -> None:
        """Call the programs so often in each sample from now on."""
        for _ in range(iterations - 1):
            for ring in self._rings:  # in turns, so that neither program has all of its arguments in newer memory
                ring.extend(self._contents.ring(1))

    def measure(
        self, order: tuple[int, int], *, compare: bool, timed: bool = True
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return a sample of each program, on the same contents, which none of them has seen."""
        samples: list[tuple[float, ...]] = [(), ()]
        results: list[Any] = [None, None]
        # Outputs that are compared are of different input sets: what one of them makes inaccurate is no cache.
        input_set = self._compared if compare else self._next
        for role in order:
            ring = self._rings[role]
            self._contents.fill(ring, self._next, input_set)
            with same_random_numbers(ring.arguments[0]):
                samples[role], results[role] = self._sample(self._programs[role], ring)
            if self._outputs is not None:
                (self._outputs.learn, self._outputs.require_computed)[role](results[role])
            if not compare:
                results[role] = None
        if self._outputs is not None and compare:
            self._outputs.observe(*results, timed=timed)
        self._next += len(self._rings[0].calls)
        self._compared += compare
        return samples[0], samples[1]


def _warm_up(pairs: _Pairs) -> list[float]:
    """Call the programs until they are warm, and return the shortest time of each: one hiccup does not mislead."""
    shortest = [math.inf, math.inf]
    for count in range(1, WARMUP_ROUNDS + 1):
        samples = pairs.measure((0, 1), compare=count == 1, timed=False)
        shortest = [min(known, max(sample)) for known, sample in zip(shortest, samples, strict=True)]
        if count > 1 and max(shortest) > LONG_CALL:
            break
    return shortest


def _per_call(samples: Sequence[tuple[float, ...]], iterations: int) -> tuple[tuple[float, ...], ...]:
    """Return the samples of each clock, divided by the calls in them."""
    return tuple(tuple(seconds / iterations for seconds in clock) for clock in zip(*samples, strict=True))


def _sample_on_cpu(program: Program, ring: Ring) -> tuple[tuple[float], Any]:
    """Return the seconds of the calls, and what the last one returned; what others return is freed at once."""
    *calls, (args, kwargs) = ring.calls
    start = perf_counter()
    for others, other_kwargs in calls:
        program(*others, **other_kwargs)
    output = program(*args, **kwargs)
    return (perf_counter() - start,), output


def _sample_on_gpu(program: Program, ring: Ring) -> tuple[tuple[float, float], Any]:
    """Return the seconds between two events on the device, and those until everything was launched, with an output.

    Work that is still queued does not shorten the first, and waiting for the device does not lengthen the second.
    """
    *calls, (args, kwargs) = ring.calls
    start, end = _Event(enable_timing=True), _Event(enable_timing=True)
    _synchronize()
    start.record()
    launched = perf_counter()
    for others, other_kwargs in calls:
        program(*others, **other_kwargs)
    output = program(*args, **kwargs)
    launched = perf_counter() - launched
    end.record()
    _synchronize()
    return (start.elapsed_time(end) / 1e3, launched), output
