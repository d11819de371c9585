"""Estimated times beside measured ones, how far they are off, and the estimators of PyTorch on the same programs."""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from fx import GraphModule
from fx.analysis.kernel_calls import record_calls
from fx.simulation.calibration import calibrated_here, file_of_machine
from fx.simulation.devices import Device
from fx.simulation.measured_times import MeasuredTimes
from fx.simulation.run_times import Simulation, estimate_calls
from pytest_fx.tables.table import Entry, NotRun
from pytest_fx.timing.paired import median_interval

_LONGEST = 3.0
"""Seconds of calls from which on a program is called no more often than five times."""
_SHORTEST_TURN, _SHORTEST_ROUND = 5e-4, 5e-2
"""Seconds that turns and rounds take at least: single calls of microseconds differ by more than passes gain."""
_MOST_CALLS, _MOST_TURNS = 1000, 100
_FEWEST = 5
_WARM_UP = 2


class Estimator:
    """Estimates by both sources of times, with this machine measured once in a process."""

    def __init__(self, folder: Path = Path(".pytest_fx")) -> None:
        self.device: Device = calibrated_here(folder)
        self.measured = MeasuredTimes(self.device, file_of_machine(folder, "times"))

    def both(self, program: GraphModule, inputs: Sequence[Any]) -> tuple[Simulation, Simulation]:
        """Return what a program takes by the roofline, and by its kernels, each measured once."""
        calls = record_calls(program, *inputs)
        found = estimate_calls(calls, self.device), estimate_calls(calls, self.device, self.measured)
        self.measured.save()
        return found


def seconds_in_turns(programs: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Return the seconds of calls of some programs in turns: of the thread, so that other processes do not count.

    Short ones are called more often, in short turns, the median of which counts; long ones less often.
    """
    seconds: list[list[float]] = [[] for _ in programs]
    spent = 0.0
    with torch.no_grad():
        once = max(min(_seconds_of_calls(program, 1) for _ in range(_WARM_UP)) for program in programs)
        calls = max(1, min(round(_SHORTEST_TURN / max(once, 1e-9)), _MOST_CALLS))
        turns = max(1, min(round(_SHORTEST_ROUND / max(once * calls, 1e-9)), _MOST_TURNS))
        for place in range(rounds):
            found = _round(programs, turns, calls, place)
            for each, taken in zip(seconds, found, strict=True):
                each.append(taken)
            spent += sum(found) * turns * calls
            if place + 1 >= _FEWEST and spent > _LONGEST:
                break
    return seconds


def _round(programs: Sequence[Callable[[], Any]], turns: int, calls: int, first: int) -> list[float]:
    """Return the median time of a call of each program over some turns, whose order is the other one each time."""
    found: list[list[float]] = [[] for _ in programs]
    for turn in range(first, first + turns):
        places = range(len(programs)) if turn % 2 else range(len(programs) - 1, -1, -1)
        for place in places:
            found[place].append(_seconds_of_calls(programs[place], calls))
    return [statistics.median(one) for one in found]


def _seconds_of_calls(program: Callable[[], Any], calls: int) -> float:
    start = time.thread_time()
    for _ in range(calls):
        program()
    return (time.thread_time() - start) / calls


def numbers_of(found: Simulation, name: str) -> dict[str, float]:
    """Return the numbers of an estimate under names that begin with ``name``."""
    low, high = found.interval
    return {name: found.seconds, f"{name}_low": low, f"{name}_high": high, f"{name}_spread": found.spread}


def compare(seconds: Sequence[float], estimates: Mapping[str, float]) -> dict[str, float]:
    """Measured milliseconds with their interval, estimated ones, and how far each estimate is off."""
    low, high = median_interval(tuple(seconds))
    measured = statistics.median(seconds)
    numbers = {"measured": measured, "measured_low": low, "measured_high": high, **estimates}
    values = {name: value if name.endswith("_spread") else value * 1e3 for name, value in numbers.items()}
    for name in (one for one in ("roofline", "kernels") if one in numbers):
        values[f"{name}_ratio"] = numbers[name] / measured
        values[f"{name}_error"] = abs(numbers[name] / measured - 1)
    return {name: round(value, 6) for name, value in values.items()}


def accuracy(entries: Sequence[Entry], model_of: Callable[[str], str]) -> list[Entry]:
    """Return how far estimates are off over all rows: a row for each source, each model judged by the others.

    The 90 % interval of a model's estimate is as many of its standard deviations wide as holds 90 % of the measurements
    of all other models, around the median of their ratios.
    """
    found: list[Entry] = []
    for name, title in (("roofline", "all, by roofline"), ("kernels", "all, by kernels measured once")):
        rows = [entry for entry in entries if f"{name}_ratio" in entry.numbers]
        if not rows:
            continue
        errors = [entry.numbers[f"{name}_error"] for entry in rows]
        inside = [_inside(entry, rows, name, model_of) for entry in rows]
        numbers = {
            "rows": len(rows),
            "error": statistics.median(errors),
            "coverage": statistics.fmean(judged)
            if (judged := [one for one in inside if one is not None])
            else math.nan,
            "own_coverage": statistics.fmean(_in_own_interval(entry, name) for entry in rows),
            "rank": rank_correlation(
                [entry.numbers[name] for entry in rows], [entry.numbers["measured"] for entry in rows]
            ),
        }
        known = {key: round(value, 6) for key, value in numbers.items() if not math.isnan(value)}
        found.append(Entry(title, known, {}, None))
    return found


def _inside(entry: Entry, rows: Sequence[Entry], name: str, model_of: Callable[[str], str]) -> bool | None:
    """Return whether a measurement is in the interval that the other models give; None where there are too few."""
    others = [one for one in rows if model_of(one.name) != model_of(entry.name)]
    if len(others) < 10:
        return None
    center = statistics.median(_off(one, name) for one in others)
    widths = sorted(abs(_off(one, name) - center) / one.numbers[f"{name}_spread"] for one in others)
    width = widths[min(math.ceil(0.9 * (len(widths) + 1)) - 1, len(widths) - 1)]
    return abs(_off(entry, name) - center) <= width * entry.numbers[f"{name}_spread"]


def _off(entry: Entry, name: str) -> float:
    return math.log(entry.numbers[f"{name}_ratio"])


def _in_own_interval(entry: Entry, name: str) -> bool:
    numbers = entry.numbers
    return numbers[f"{name}_low"] <= numbers["measured"] <= numbers[f"{name}_high"]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's coefficient of rank correlation; not a number for less than three pairs, or where all are equal.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.5
    """
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return math.nan
    return statistics.correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    """The place of each value in order; equal ones have the mean of theirs."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def reachable_rank(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return how far two halves of the measurements agree on ranks, and how far an exact estimate would with both.

    A measurement is what is there plus noise, so that ranks by two halves agree less than those by all of it (Spearman
    and Brown's formula), and those of what is there agree with that by the root (the correction for attenuation).

    >>> reachable_rank([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    (1.0, 1.0)
    """
    halves = rank_correlation(first, second)
    if math.isnan(halves):
        return math.nan, math.nan
    return halves, math.sqrt(max(2 * halves / (1 + halves), 0.0))


def pairs_in_order(measured: Sequence[tuple[float, float]], estimated: Sequence[float]) -> tuple[int, int]:
    """Return how many pairs, of those whose measured intervals do not overlap, are estimated in order, and all.

    >>> pairs_in_order([(1.0, 1.1), (1.2, 1.3), (1.25, 1.4)], [1.0, 2.0, 0.5])
    (1, 2)
    """
    right = count = 0
    for (_, high), low_estimate in zip(measured, estimated, strict=True):
        for (low, _), high_estimate in zip(measured, estimated, strict=True):
            if high < low:
                count += 1
                right += low_estimate < high_estimate
    return right, count


def torch_estimate(module: nn.Module, inputs: tuple[Any, ...], mode: str) -> float:
    """Seconds by ``torch.distributed._tools.RuntimeEstimator``.

    Raises:
        NotRun: it needs a CUDA device, which it asks for.
    """
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator  # noqa: PLC0415 - needs torch.distributed

    estimator: Any = RuntimeEstimator()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), mock.patch("builtins.print"):
            fake = [one.clone() if isinstance(one, torch.Tensor) else one for one in inputs]
            with estimator(estimate_mode_type=mode):
                module(*fake)
    except (AssertionError, RuntimeError) as error:
        raise NotRun(f"{type(error).__name__}: {error}".splitlines()[0]) from None
    return float(estimator.total_runtime) * 1e-3


def inductor_estimate(module: nn.Module, inputs: tuple[Any, ...]) -> float:
    """Seconds by the ``get_estimated_runtime`` of the nodes that inductor schedules.

    Raises:
        NotRun: it does not compile, or estimates nothing, as of what runs on a CPU.
    """
    from torch._inductor.scheduler import Scheduler  # noqa: PLC0415 - loads a compiler

    found: list[float] = []
    original: Any = Scheduler.codegen

    def listen(self: Any) -> Any:
        found.extend(float(node.get_estimated_runtime()) for node in self.nodes)
        return original(self)

    try:
        with torch.no_grad(), mock.patch.object(Scheduler, "codegen", listen), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a compiler says of its own modules
            torch.compile(module)(*inputs)
    except Exception as error:  # whatever a compiler that is not there raises
        raise NotRun(f"{type(error).__name__}: {error}".splitlines()[0]) from None
    finally:
        torch.compiler.reset()
    if not sum(found):
        raise NotRun(f"its estimate is 0 s for each of {len(found)} kernels: it knows accelerators only")
    return sum(found) * 1e-3
