"""Programs timed in pairs or in turns: the values of a row, the reported numbers, and their formats."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from pytest_fx.harness.structure import leaves
from pytest_fx.tables.table import Role, Series
from pytest_fx.timing.clock import unprofiled
from pytest_fx.timing.paired import PairedTiming, steady_conditions, time_pairs

_RTOL, _ATOL = 1e-5, 1e-8
"""The paper's bound on the difference between a transformed program's outputs and eager's."""

_WARM_UP = 1


def in_rounds(samples: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Call each of ``samples`` once a round, and return the results by name.

    Rounds spread the load of other processes over all samples. The order is shuffled in each round, by a fixed seed,
    so that no sample always runs with the memory and caches that the same other sample leaves.
    """
    results: dict[str, list[float]] = {name: [] for name in samples}
    names, order = list(samples), random.Random(0)
    for _ in range(rounds):
        for name in order.sample(names, len(names)):
            results[name].append(samples[name]())
    return results


def time_rounds(
    programs: Mapping[str, Callable[[], Any]], *, baseline: str, rounds: int, threads: int
) -> dict[str, PairedTiming]:
    """Time the baseline in pairs with each other program, and return the timings by name.

    All programs run once in each of ``rounds`` rounds, after two rounds of warm-up. Results are freed between runs,
    outside of the measured time.
    """
    with steady_conditions(threads):
        samples = {name: partial(_sample, program) for name, program in programs.items()}
        in_rounds(samples, 1)
        with unprofiled():
            samples_of = in_rounds(samples, _WARM_UP + rounds)
    seconds = {name: tuple(each[_WARM_UP:]) for name, each in samples_of.items()}
    before = seconds.pop(baseline)
    return {name: PairedTiming(before, after, threads, iterations=1) for name, after in seconds.items()}


def time_beside(
    baseline: Callable[[], Any], programs: Mapping[str, Callable[[], Any]], *, rounds: int, threads: int, device: str
) -> dict[str, PairedTiming]:
    """Time each program beside ``baseline``: on a CPU all in the same rounds, on a GPU each in pairs of its own."""
    if device == "cpu":
        return time_rounds({"": baseline, **programs}, baseline="", rounds=rounds, threads=threads)
    timed = partial(time_pairs, baseline, rounds=rounds, threads=threads, device=device)
    return {name: timed(program) for name, program in programs.items()}


def _sample(program: Callable[[], Any]) -> float:
    start = time.perf_counter()
    result = program()
    seconds = time.perf_counter() - start
    del result
    return seconds


def record_pairs(timing: PairedTiming, before: str, after: str) -> dict[str, Any]:
    """Return the seconds of every trial, under the keys ``before`` and ``after``, and the interval of their ratio."""
    low, high = timing.interval
    return {
        before: to_nanoseconds(timing.eager),
        after: to_nanoseconds(timing.transformed),
        f"{after}_speedup_interval": [round(low, 6), round(high, 6)],
        "threads": timing.threads,
        "iterations": timing.iterations,
    }


def tell_pairs(values: Mapping[str, Any], before: str, after: str) -> dict[str, float]:
    """Return the mean, standard deviation and median of both, and the median of the pairs' ratios with its interval."""
    ratios = [old / new for old, new in zip(values[before], values[after], strict=True)]
    low, high = values[f"{after}_speedup_interval"]
    numbers: dict[str, float] = {"trials": len(ratios)}
    for name in (before, after):
        numbers[f"{name}_median"] = statistics.median(values[name])
        numbers[f"{name}_mean"] = statistics.fmean(values[name])
        numbers[f"{name}_stdev"] = statistics.stdev(values[name]) if len(values[name]) > 1 else 0.0
    speedup = round(statistics.median(ratios), 6)
    return {
        **{name: round(number, 9) for name, number in numbers.items()},
        f"{after}_speedup": speedup,
        f"{after}_speedup_low": low,
        f"{after}_speedup_high": high,
        f"{after}_relative": round(1 / speedup, 6),
        f"{after}_relative_low": round(1 / high, 6),
        f"{after}_relative_high": round(1 / low, 6),
    }


def tell_others(values: Mapping[str, Any], before: str, names: Iterable[str]) -> dict[str, float]:
    """Return the numbers of :func:`tell_pairs` for each of ``names`` that was measured."""
    numbers: dict[str, float] = {}
    for name in names:
        if name in values:
            numbers |= tell_pairs(values, before, name)
    return numbers


def paper(**seconds: tuple[float, float]) -> dict[str, float]:
    """Return the paper's numbers under the names of :func:`tell_pairs`.

    >>> paper(eager=(3.0, 0.1), fused=(2.0, 0.2))["fused_speedup"]
    1.5
    """
    before, after = seconds
    (old, old_stdev), (new, new_stdev) = seconds.values()
    return {
        f"{before}_mean": old,
        f"{before}_stdev": old_stdev,
        f"{after}_mean": new,
        f"{after}_stdev": new_stdev,
        f"{after}_speedup": round(old / new, 3),
        f"{after}_relative": round(new / old, 3),
    }


def seconds_of(name: str) -> str:
    """Return the format of the seconds of a program."""
    return f"{{{name}_mean:.4g}} ± {{{name}_stdev:.2g}}"


def speedup_of(name: str, digits: int = 3, between: str = " ") -> str:
    """Return the format of a program's speed-up, ``between``, and its interval.

    >>> speedup_of("fused", digits=1)
    '{fused_speedup:.1f} ({fused_speedup_low:.1f} to {fused_speedup_high:.1f})'
    """
    speedup, low, high = (f"{{{name}_speedup{end}:.{digits}f}}" for end in ("", "_low", "_high"))
    return f"{speedup}{between}({low} to {high})"


def with_interval(label: str, number: str, role: Role) -> Series:
    """Return the bars of a number with its interval."""
    return Series(label, number, role, f"{number}_low", f"{number}_high")


def joined(output: Any) -> torch.Tensor:
    """Concatenate the elements of all tensors of an output."""
    return torch.cat([leaf.flatten() for _, leaf in leaves(output) if isinstance(leaf, torch.Tensor)])


def outside(found: torch.Tensor, wanted: torch.Tensor) -> int:
    """Count the elements that differ by more than the paper's bound."""
    return int((~torch.isclose(found, wanted, rtol=_RTOL, atol=_ATOL)).sum())


def to_nanoseconds(samples: Iterable[float]) -> list[float]:
    """Round seconds to the nanoseconds that a record keeps."""
    return [round(seconds, 9) for seconds in samples]
