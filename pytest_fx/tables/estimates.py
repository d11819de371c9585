"""Estimated times beside measured ones, their errors, and the estimates of PyTorch's own estimators."""

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
from pytest_fx.timing.clock import unprofiled
from pytest_fx.timing.paired import median_interval

_LONGEST = 3.0
"""Total seconds of calls after which no further round is timed, once there are five."""
_SHORTEST_TURN, _SHORTEST_ROUND = 5e-4, 5e-2
"""Least seconds of a turn and of a round: the noise of single short calls exceeds the gain of most passes."""
_MOST_CALLS, _MOST_TURNS = 1000, 100
_FEWEST = 5
_WARM_UP = 2


class Estimator:
    """Estimates from both sources of times. This machine is measured once per process."""

    def __init__(self, folder: Path = Path(".pytest_fx")) -> None:
        self.device: Device = calibrated_here(folder)
        self.measured = MeasuredTimes(self.device, file_of_machine(folder, "times"))

    def both(self, program: GraphModule, inputs: Sequence[Any]) -> tuple[Simulation, Simulation]:
        """Estimate a program by the roofline, and by its kernels, each measured once."""
        calls = record_calls(program, *inputs)
        estimates = estimate_calls(calls, self.device), estimate_calls(calls, self.device, self.measured)
        self.measured.save()
        return estimates


def seconds_in_turns(programs: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Time calls of programs in turns, by the clock of the thread, which excludes other processes.

    Returns the seconds per call, one value a round, for each program. Short calls are repeated in short turns, of which
    a round counts the median; long calls are made less often.
    """
    seconds: list[list[float]] = [[] for _ in programs]
    spent = 0.0
    with torch.no_grad():
        once = max(min(_seconds_of_calls(program, 1) for _ in range(_WARM_UP)) for program in programs)
        calls = max(1, min(round(_SHORTEST_TURN / max(once, 1e-9)), _MOST_CALLS))
        turns = max(1, min(round(_SHORTEST_ROUND / max(once * calls, 1e-9)), _MOST_TURNS))
        for place in range(rounds):
            with unprofiled():
                medians = _round(programs, turns, calls, place)
            for samples, median in zip(seconds, medians, strict=True):
                samples.append(median)
            spent += sum(medians) * turns * calls
            if place + 1 >= _FEWEST and spent > _LONGEST:
                break
    return seconds


def _round(programs: Sequence[Callable[[], Any]], turns: int, calls: int, first: int) -> list[float]:
    """Return the median seconds of a call of each program over some turns; the order reverses with each turn."""
    samples: list[list[float]] = [[] for _ in programs]
    for turn in range(first, first + turns):
        places = range(len(programs)) if turn % 2 else range(len(programs) - 1, -1, -1)
        for place in places:
            samples[place].append(_seconds_of_calls(programs[place], calls))
    return [statistics.median(times) for times in samples]


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
    """Return measured and estimated milliseconds with their intervals, and the relative error of each estimate."""
    low, high = median_interval(tuple(seconds))
    measured = statistics.median(seconds)
    numbers = {"measured": measured, "measured_low": low, "measured_high": high, **estimates}
    values = {name: value if name.endswith("_spread") else value * 1e3 for name, value in numbers.items()}
    for name in (source for source in ("roofline", "kernels") if source in numbers):
        values[f"{name}_ratio"] = numbers[name] / measured
        values[f"{name}_error"] = abs(numbers[name] / measured - 1)
    return {name: round(value, 6) for name, value in values.items()}


def accuracy(entries: Sequence[Entry], model_of: Callable[[str], str]) -> list[Entry]:
    """Return the accuracy of the estimates over all rows: one entry for each source.

    Coverage is cross-validated. The 90 % interval of a model's estimate is centred at the median ratio of all other
    models. Its width, in standard deviations, is the one that holds 90 % of their measurements.
    """
    totals: list[Entry] = []
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
            if (judged := [is_inside for is_inside in inside if is_inside is not None])
            else math.nan,
            "own_coverage": statistics.fmean(_in_own_interval(entry, name) for entry in rows),
            "rank": rank_correlation(
                [entry.numbers[name] for entry in rows], [entry.numbers["measured"] for entry in rows]
            ),
        }
        finite = {key: round(value, 6) for key, value in numbers.items() if not math.isnan(value)}
        totals.append(Entry(title, finite, {}, None))
    return totals


def _inside(entry: Entry, rows: Sequence[Entry], name: str, model_of: Callable[[str], str]) -> bool | None:
    """Return whether a measurement is in the interval from the other models; None for fewer than ten rows of them."""
    others = [other for other in rows if model_of(other.name) != model_of(entry.name)]
    if len(others) < 10:
        return None
    center = statistics.median(_off(other, name) for other in others)
    widths = sorted(abs(_off(other, name) - center) / other.numbers[f"{name}_spread"] for other in others)
    width = widths[min(math.ceil(0.9 * (len(widths) + 1)) - 1, len(widths) - 1)]
    return abs(_off(entry, name) - center) <= width * entry.numbers[f"{name}_spread"]


def _off(entry: Entry, name: str) -> float:
    return math.log(entry.numbers[f"{name}_ratio"])


def _in_own_interval(entry: Entry, name: str) -> bool:
    numbers = entry.numbers
    return numbers[f"{name}_low"] <= numbers["measured"] <= numbers[f"{name}_high"]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN for fewer than three pairs, or if all values of a side are equal.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.5
    """
    if len(first) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return math.nan
    return statistics.correlation(_ranks(first), _ranks(second))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values get the mean of their ranks."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def reachable_rank(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return the rank correlation of two halves of the measurements, and the highest that an exact estimate can reach.

    Measurements are noisy, and two halves agree less than two full sets would (Spearman-Brown formula). The exact
    values correlate with a full set by the square root of its reliability (correction for attenuation).

    >>> reachable_rank([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    (1.0, 1.0)
    """
    halves = rank_correlation(first, second)
    if math.isnan(halves):
        return math.nan, math.nan
    return halves, math.sqrt(max(2 * halves / (1 + halves), 0.0))


def pairs_in_order(measured: Sequence[tuple[float, float]], estimated: Sequence[float]) -> tuple[int, int]:
    """Count the pairs whose measured intervals do not overlap: those estimated in the right order, and all of them.

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
    """Return the seconds that ``torch.distributed._tools.RuntimeEstimator`` estimates.

    Raises:
        NotRun: the estimator fails, as without a CUDA device.
    """
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator  # noqa: PLC0415 - needs torch.distributed

    estimator: Any = RuntimeEstimator()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), mock.patch("builtins.print"):
            fake = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
            with estimator(estimate_mode_type=mode):
                module(*fake)
    except (AssertionError, RuntimeError) as error:
        raise NotRun(f"{type(error).__name__}: {error}".splitlines()[0]) from None
    return float(estimator.total_runtime) * 1e-3


def inductor_estimate(module: nn.Module, inputs: tuple[Any, ...]) -> float:
    """Return the seconds that inductor estimates: the sum of ``get_estimated_runtime`` over its scheduled nodes.

    Raises:
        NotRun: inductor does not compile the module, or estimates 0 s, as for a CPU.
    """
    from torch._inductor.scheduler import Scheduler  # noqa: PLC0415 - loads a compiler

    estimates: list[float] = []
    original: Any = Scheduler.codegen

    def listen(self: Any) -> Any:
        estimates.extend(float(node.get_estimated_runtime()) for node in self.nodes)
        return original(self)

    try:
        with torch.no_grad(), mock.patch.object(Scheduler, "codegen", listen), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the compiler's own modules
            torch.compile(module)(*inputs)
    except Exception as error:  # a missing compiler can raise anything
        raise NotRun(f"{type(error).__name__}: {error}".splitlines()[0]) from None
    finally:
        torch.compiler.reset()
    if not sum(estimates):
        raise NotRun(f"its estimate is 0 s for each of {len(estimates)} kernels: it knows accelerators only")
    return sum(estimates) * 1e-3
