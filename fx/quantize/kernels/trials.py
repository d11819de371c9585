"""``fastest``: the choice of the fastest way to compute something, among those that are right on this processor.

No flag predicts the code that a library will run: it depends on instructions, shapes, threads and environment
variables. So each way is tried where the program runs, with the largest possible integers, and the choice is
remembered.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fx.quantize.affine import Affine
from fx.quantize.kernels.kernel import Form, Kernel, LayerData

_ENOUGH = 0.004
"""The total seconds of calls of one way from which on its shortest time is trusted."""
_MOST_CALLS = 24
_CLOSE = 1.5
"""The largest ratio of a way's first time to the shortest for which the way is tried again."""
_IN_A_ROW = 3
"""The number of consecutive calls of one way if they are short: in a program, the code of a call is in the cache. With
single calls, a third of the choices between FBGEMM and oneDNN are wrong, by up to 12 %."""
_SHORT = 0.0005
"""The largest time of a short call, in seconds."""


def rounded_up(size: int) -> int:
    """Return the least power of two that is not less than ``size``: sizes with the same one share a trial.

    >>> [rounded_up(size) for size in (1, 2, 3, 64, 65)]
    [1, 2, 4, 64, 128]
    """
    return 1 << max(0, size - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute something."""

    name: str
    """Its name."""
    prepare: Callable[[], Callable[[], Tensor]]
    """The function that returns a single computation to run; it raises a RuntimeError if this way is impossible."""
    is_right: Callable[[Tensor], bool]
    """The check that a result is correct."""


class KernelChoices:
    """The chosen ways of a process, by problem."""

    def __init__(self) -> None:
        self._names: dict[Hashable, str | None] = {}
        self._lock = threading.Lock()

    def fastest(self, problem: Hashable, ways: Callable[[], Iterable[Sequence[Way]]]) -> str | None:
        """Return the name of the fastest way that is right, tried at most once for each problem; None if none is.

        Args:
            problem: everything that affects the time, and the names of the ways.
            ways: returns the ways to try; from each sequence only the first right one is timed.
        """
        with self._lock:
            if problem not in self._names:
                self._names[problem] = _fastest(ways())
            return self._names[problem]


CHOICES = KernelChoices()
"""The choices of this process."""


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
    except RuntimeError:  # from torch, for inputs that a kernel does not support
        return None


def _shortest(runs: dict[str, Callable[[], Any]]) -> str:
    """Return the name of the run with the shortest time, in alternating calls."""
    times = {name: _times(run) for name, run in runs.items()}
    best = min(map(min, times.values()))
    close = [name for name in runs if min(times[name]) <= _CLOSE * best]
    while len(close) > 1 and not all(_is_enough(times[name]) for name in close):
        for name in close:
            times[name] += _times(runs[name])
    return min(close, key=lambda name: min(times[name]))


def _times(run: Callable[[], Any]) -> list[float]:
    """Return the time of a call in seconds, or of several in a row if they are short."""
    first = _seconds(run)
    return [first, *(_seconds(run) for _ in range(_IN_A_ROW - 1))] if first < _SHORT else [first]


def _seconds(run: Callable[[], Any]) -> float:
    # with one thread, its own time excludes the time that other processes take
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def _is_enough(times: Sequence[float]) -> bool:
    return len(times) >= 3 and (math.fsum(times) >= _ENOUGH or len(times) >= _MOST_CALLS)


# Layers with the largest possible integers, to try kernels with.

LARGEST_WEIGHT = 127
"""The largest integer of a weight of 8 bits."""
NARROW = 64
"""The largest weight for which the sum of two products with activations fits into 16 bits: 2 * 64 * 255 < 32768."""
_SUMMED = 1 << 15
"""The number of products of the largest integers whose sum fits into 32 bits, as the sums of real layers do."""
_TOLERANCE = 0.02
"""The largest error, relative to the largest result: saturation halves a result, and one integer of the output is a
hundredth."""


def largest_weight(weight: Tensor) -> int:
    """Return the largest weight for which a kernel has to be right: of 7 bits if all of ``weight`` fit, else of 8."""
    is_narrow = weight.numel() == 0 or (weight.amax() <= NARROW and weight.amin() >= -NARROW)
    return NARROW if is_narrow else LARGEST_WEIGHT


def alternating(size: int, like: Sequence[int]) -> Tensor:
    """Return a weight of shape ``like`` whose output channels alternate between ``size`` and its negative.

    If there are very many input channels, only the first of them have this value, and the others zero.
    """
    weight = torch.full(tuple(like), size, dtype=torch.int8)
    weight[1::2] = -size
    weight[:, summed_channels(like) :] = 0
    return weight


def summed_channels(like: Sequence[int]) -> int:
    """Return how many input channels of :func:`alternating` are not zero.

    >>> summed_channels((8, 16, 3, 3)), summed_channels((8, 100_000))
    (16, 32768)
    """
    return min(like[1], max(1, _SUMMED // math.prod(like[2:])))


@dataclass(frozen=True, slots=True, eq=False)
class LayerTrial:
    """One call of a layer, with the largest integers for which a kernel has to be right."""

    data: LayerData
    """The layer: scales are 1, and biases 0."""
    shape: tuple[int, ...]
    """The shape of the input, as kernels take it."""
    of_ones: Tensor
    """The exact results for the first row or image, if all integers of the input are 1."""
    form: Form
    """The types of the call's input and output."""

    def way(self, kernel: Kernel) -> Way:
        """Return the call by this kernel, with the largest activation for which it claims to be right."""
        expected = self.of_ones * kernel.largest
        output = Affine(float(expected.abs().max()) / 100, 128) if self.form == "integers" else None
        is_right = functools.partial(_is_right, expected, output)
        return Way(kernel.name, lambda: self._prepared(kernel, output), is_right)

    def _prepared(self, kernel: Kernel, output: Affine | None) -> Callable[[], Tensor]:
        compute = kernel.pack(self.data, self.shape)
        input = torch.full(self.shape, kernel.largest, dtype=torch.float32 if self.form == "dynamic" else torch.uint8)
        return lambda: compute(input, 1.0, 0, output)


def _is_right(expected: Tensor, output: Affine | None, result: Tensor) -> bool:
    values = result[0].double()
    if output is not None:
        values = (values - output.zero_point) * output.scale
    return bool((values - expected).abs().max() <= _TOLERANCE * expected.abs().max())
