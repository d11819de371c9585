"""Times in pairs: eager and transformed alternate, so that other load on the machine affects both."""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import fx as torch_fx
from torch import nn

from fx import GraphModule
from pytest_fx.harness import evaluation
from pytest_fx.harness.evaluation import Arguments, same_random_numbers
from pytest_fx.harness.process import ProcessState
from pytest_fx.harness.run import Run, hidden
from pytest_fx.harness.structure import map_tensors
from pytest_fx.options import TOO_NOISY, WARMUP_ROUNDS, WIDEST_INTERVAL
from pytest_fx.timing.clock import CLOCK, COLLECTOR, unprofiled
from pytest_fx.timing.contents import Contents
from pytest_fx.timing.outputs import OutputCheck
from pytest_fx.timing.samples import Sample, SampledProgram, sample_on_cpu, sample_on_gpu

SHORTEST_SAMPLE = 2e-3
"""The least seconds of a sample; faster programs are called several times in each."""
LONGEST_SAMPLE = 2e-2
"""The most seconds of a sample of the slower program, unless one call takes longer."""
BETWEEN_COPIES = 0.01
"""The difference between two copies of one program at other addresses; `benchmarks/verdicts.py` measures it."""
RESOLUTION = 0.03
"""A difference; if the interval excludes it and shows none, no more pairs are needed."""
LOOKS = 6
"""The number of looks at the interval while pairs are added: at the first pairs, and at twice as many each time."""
LEAST_ADDED = 0.25
"""The least share of the pairs so far that is added."""
LONG_CALL = 1.0
"""Seconds of a call above which two warm-up pairs are enough; the first may have compiled something."""
LONG_TIMING = 60.0
"""Expected seconds above which a timing is announced before it starts."""
CONFIDENCE = 0.95
"""The share of intervals that contain the true value."""
RESAMPLES = 2000
"""The number of bootstrap samples for the interval."""
FENCE = 1.5
"""Interquartile ranges outside of the quartiles beyond which a ratio is an outlier (Tukey's fences)."""
LEAST_SHARE = 0.95
"""The share of the time for which a thread that computes alone has a processor; below it, there was other load."""
LAST, SOME = "last", "some"
"""The call of a sample whose outputs are compared: the last one, or a random one."""

Program = Callable[..., Any] | SampledProgram

_call_module = nn.Module.__call__  # bound here: a timed program may replace it


@dataclass(frozen=True, slots=True)
class PairedTiming:
    """The times of pairs of an eager call and a transformed call."""

    eager: tuple[float, ...]
    """Seconds of each eager call; on a GPU, seconds of the device."""
    transformed: tuple[float, ...]
    """Seconds of the transformed call in each pair."""
    threads: int
    """Threads that PyTorch computed with."""
    iterations: int
    """The most calls in a sample; the time of a sample is divided by its number of calls."""
    eager_host: tuple[float, ...] = ()
    """On a GPU, seconds until each eager call had launched its work; otherwise empty."""
    transformed_host: tuple[float, ...] = ()
    """The same for the transformed calls."""
    processors: float | None = None
    """The average number of processors that the process used during all samples: their seconds in each second."""
    looks: int = 1
    """The most looks at the interval while pairs are added."""
    is_open: bool = False
    """True if more pairs might have decided, but there was no time."""
    contents_repeat: bool = False
    """True if some calls got the contents of earlier ones: integers without other contents."""

    @property
    def loaded(self) -> bool:
        """Return whether other work used a part of the processor in the meantime, as far as that is known.

        It is known for one thread on the CPU: several threads wait for each other, and hosts wait for devices.
        """
        if self.processors is None or self.threads != 1 or self.eager_host:
            return False
        return self.processors < LEAST_SHARE

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
        """The bootstrap 95 % interval of :attr:`speedup`.

        To stop adding pairs when an interval is good enough selects the intervals that err. So the error is shared
        among the looks (Bonferroni): all of their intervals together contain the true values in 95 % of timings.
        """
        return median_interval(self.speedups, 1 - (1 - CONFIDENCE) / self.looks)

    @property
    def noisy(self) -> bool:
        """Return whether the interval is too wide for :attr:`speedup` to mean anything: 10 % of it, or more."""
        low, high = self.interval
        return high - low >= WIDEST_INTERVAL * self.speedup

    @property
    def verdict(self) -> str:
        """``"faster"`` or ``"slower"``, or that no difference is shown or too noisy, if the interval contains 1.

        An interval that excludes 1 by less than :data:`BETWEEN_COPIES` shows no difference either.
        """
        low, high = self.interval
        if low - BETWEEN_COPIES <= 1.0 <= high + BETWEEN_COPIES:
            return TOO_NOISY if self.noisy else "no difference shown"
        return "faster" if low > 1.0 else "slower"

    @property
    def decides(self) -> bool:
        """True if the interval shows a difference, or excludes one of :data:`RESOLUTION` in either direction."""
        low, high = self.interval
        return self.verdict in ("faster", "slower") or (low > 1 - RESOLUTION and high < 1 + RESOLUTION)

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
    budget: float = 0.0,
    decides: Callable[[PairedTiming], bool] = lambda timing: timing.decides,
    threads: int = 1,
    device: str = "cpu",
    announce: Callable[[float], None] | None = None,
    contents: Contents | None = None,
    outputs: OutputCheck | None = None,
) -> PairedTiming:
    """Return the times of ``rounds`` pairs, or of more, after warm-up calls that are not counted.

    Pairs are added while ``decides`` is false, :data:`LOOKS` times at most, until ``budget`` seconds have passed. The
    order within a pair alternates. :func:`steady_conditions` restores its settings, also if a program raises. Warm-up
    is :data:`~pytest_fx.options.WARMUP_ROUNDS` pairs, or two if calls take longer than :data:`LONG_CALL`.
    ``announce`` is called with the expected seconds of the pairs.

    Programs are called with ``contents``: new ones in each call, equal ones in both samples of a pair, copied outside
    of the clock to addresses that stay. Without it they are called with nothing. ``outputs`` checks the outputs. It
    raises :class:`~pytest_fx.errors.TimedOutputError` if they are not computed from the contents, or if the
    transformed program changes the process, which is compared before and after each sample.
    """
    contents = Contents(lambda number: Arguments()) if contents is None else contents
    pairs = _Pairs((entered(eager), entered(transformed)), device, contents, outputs)
    with steady_conditions(threads):
        calls = _warm_up(pairs)
        wanted = math.ceil(SHORTEST_SAMPLE / max(min(calls), 1e-7))
        iterations = max(1, min(wanted, math.ceil(LONGEST_SAMPLE / max(*calls, 1e-7))))
        iterations = contents.fitting(iterations)
        pairs.set_iterations(iterations)
        expected = rounds * iterations * sum(calls)
        if announce is not None:
            announce(expected)
        timing = _take(pairs, rounds, budget, decides, threads)
    if outputs is not None:
        outputs.require_followed()
    return timing


def _take(
    pairs: _Pairs, rounds: int, budget: float, decides: Callable[[PairedTiming], bool], threads: int
) -> PairedTiming:
    """Take ``rounds`` pairs, and more while they do not decide and there is time."""
    looks = LOOKS if budget else 1
    begun, more = CLOCK.wall(), rounds
    for _ in range(looks):
        with unprofiled():
            pairs.take(more)
        timing = pairs.timing(threads, looks)
        if not budget or decides(timing):
            return timing
        count, passed = len(timing.eager), max(CLOCK.wall() - begun, 1e-9)
        more = min(count, int((budget - passed) / passed * count))
        if more < LEAST_ADDED * count:
            break
    return replace(pairs.timing(threads, looks), is_open=True)


def _per_call(samples: list[Sample]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of a call in each sample, and on a GPU those of the host."""
    seconds = tuple(sample.seconds / sample.calls for sample in samples)
    return seconds, tuple(sample.host / sample.calls for sample in samples if sample.host is not None)


def entered(program: Program) -> Program:
    """Return a callable that enters ``program`` like any module, without the code that explains errors.

    That code takes a third of a microsecond, which a program of five microseconds should not be charged for.
    """
    if isinstance(program, SampledProgram):
        return program
    kind: Any = type(program)
    explains = kind.__call__ is GraphModule.__call__
    if isinstance(program, torch_fx.GraphModule):
        explains = getattr(vars(kind).get("_wrapped_call"), "cls_call", program) is None
    return MethodType(_call_module, program) if explains or kind.__call__ is _call_module else program


@contextmanager
def steady_conditions(threads: int) -> Generator[None]:
    """Fix, inside the block, the settings that times depend on, and restore all of them, also after an error.

    PyTorch has ``threads`` threads and records no gradients, and Python collects no garbage. cuDNN has the
    defaults of PyTorch in every run. It does not search for algorithms, may use nondeterministic ones, and may compute
    convolutions and recurrent layers in TF32.
    """
    collecting = COLLECTOR.is_on()
    COLLECTOR.collect()
    COLLECTOR.stop()
    try:
        with torch.no_grad(), evaluation.threads(threads), _cudnn_defaults():
            yield
    finally:
        (COLLECTOR.start if collecting else COLLECTOR.stop)()


@contextmanager
def _cudnn_defaults() -> Generator[None]:
    backends: Any = torch.backends
    cudnn, allowed = backends.cudnn, backends.__allow_nonbracketed_mutation  # torch's utilities for tests freeze flags
    before = cudnn.benchmark, cudnn.deterministic
    try:
        with allowed():
            cudnn.benchmark = cudnn.deterministic = False
        with evaluation.tf32_in_cudnn(allowed=True):
            yield
    finally:
        with allowed():
            cudnn.benchmark, cudnn.deterministic = before


@functools.lru_cache(maxsize=16)
def median_interval(values: tuple[float, ...], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the bootstrap percentile interval of the median of ``values``; the same values give the same interval."""
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    medians = torch.tensor(values, dtype=torch.float64)[picks].quantile(0.5, dim=1)
    tail = (1 - confidence) / 2
    low, high = medians.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return float(low), float(high)


class _Pairs:
    """Takes samples of both programs in the same way, each with argument sets of its own."""

    def __init__(
        self, programs: tuple[Program, Program], device: str, contents: Contents, outputs: OutputCheck | None
    ) -> None:
        sample = sample_on_gpu if device.startswith("cuda") else sample_on_cpu
        self._samplers = [
            program.sample if isinstance(program, SampledProgram) else functools.partial(sample, program)
            for program in programs
        ]
        self._contents = contents
        self._outputs = outputs
        self._rings = (contents.ring(1), contents.ring(1))
        self._next = 0
        self._compared = 0
        self._samples: tuple[list[Sample], list[Sample]] = ([], [])

    def set_iterations(self, iterations: int) -> None:
        """Set the number of calls in each sample from now on."""
        for _ in range(iterations - 1):
            for ring in self._rings:  # in turns, so that neither program has all of its arguments in newer memory
                ring.extend(self._contents.ring(1))

    def take(self, count: int) -> None:
        """Take ``count`` pairs, in alternating order. Some of their outputs are compared, the very first among them."""
        start = len(self._samples[0])
        looked_at = {start + count // 3: SOME, start + 2 * count // 3: SOME, 0: LAST, start + count - 1: LAST}
        for number in range(start, start + count):
            measured = self.measure((0, 1) if number % 2 == 0 else (1, 0), looked_at.get(number))
            for samples, sample in zip(self._samples, measured, strict=True):
                samples.append(sample)

    def timing(self, threads: int, looks: int) -> PairedTiming:
        """Return the times of the pairs so far."""
        every = [*self._samples[0], *self._samples[1]]
        times, hosts = zip(*map(_per_call, self._samples), strict=True)
        return PairedTiming(
            times[0],
            times[1],
            threads,
            len(self._rings[0].calls),
            eager_host=hosts[0],
            transformed_host=hosts[1],
            processors=sum(sample.processor for sample in every) / max(sum(sample.wall for sample in every), 1e-9),
            looks=looks,
            contents_repeat=self._contents.repeat,
        )

    def measure(
        self, order: tuple[int, int], compared: str | None = None, *, timed: bool = True
    ) -> tuple[Sample, Sample]:
        """Return a sample of each program, on the same contents, which neither of them has seen.

        ``compared`` is the call whose outputs are compared, if any: the last one, or a random one. The sample ends with
        it, so that no later call overwrites its output. Eager is called second then: its output does not exist while
        the program is timed.
        """
        check = None if compared is None else self._outputs
        order = (1, 0) if check is not None and timed else order
        count = len(self._rings[0].calls)
        if check is not None and compared == SOME:
            count = random.SystemRandom().randint(-(-count // 2), count)
        samples: dict[int, Sample] = {}
        outputs: dict[int, Any] = {}
        for role in order:
            ring = self._rings[role].first(count)
            self._contents.fill(ring, self._next, None if check is None else self._compared)
            COLLECTOR.stop()  # the other program may have started it
            runs = [Run(output) for output in outputs.values()]
            with same_random_numbers(ring.arguments[0]), hidden(runs):
                before = ProcessState.now()  # even if it is not compared: both start with equal caches
                samples[role], output = self._samplers[role](ring.calls)
                COLLECTOR.stop()
                if role and self._outputs is not None:
                    self._outputs.require_process_kept(before)
                if check is not None:
                    outputs[role] = map_tensors(_copied, output)  # at once: a thread may still write to it
            if self._outputs is not None:
                (self._outputs.learn, self._outputs.require_computed)[role](output)
            del output
        if check is not None:
            check.observe(outputs[0], outputs[1], timed=timed)
            self._compared += 1
        self._next += count
        return samples[0], samples[1]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a plain tensor's present values; a tensor of another class may have none yet."""
    return tensor.clone() if type(tensor) is torch.Tensor else tensor


def _warm_up(pairs: _Pairs) -> list[float]:
    """Call the programs until they are warm, and return the shortest time of each, which one hiccup does not change."""
    shortest = [math.inf, math.inf]
    for count in range(1, WARMUP_ROUNDS + 1):
        samples = pairs.measure((0, 1), LAST if count == 1 else None, timed=False)
        shortest = [min(best, max(each.seconds, each.wall)) for best, each in zip(shortest, samples, strict=True)]
        if count > 1 and max(shortest) > LONG_CALL:
            break
    return shortest
