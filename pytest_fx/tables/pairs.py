"""Paired timings as values of a row, and the numbers that are reported of them; outputs as one tensor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import torch

from pytest_fx.harness.structure import leaves
from pytest_fx.timing.paired import PairedTiming


def record_pairs(timing: PairedTiming, before: str, after: str) -> dict[str, Any]:
    """Return the seconds of every trial under ``before`` and ``after``, and the interval of their median ratio."""
    low, high = timing.interval
    return {
        before: [_to_nanosecond(seconds) for seconds in timing.eager],
        after: [_to_nanosecond(seconds) for seconds in timing.transformed],
        f"{after}_speedup_interval": [round(low, 6), round(high, 6)],
        "threads": timing.threads,
        "iterations": timing.iterations,
    }


def tell_pairs(values: Mapping[str, Any], before: str, after: str) -> dict[str, float]:
    """Return mean, standard deviation and median of both, and the median of the pairs' ratios with its interval."""
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


def joined(output: Any) -> torch.Tensor:
    """Return the elements of all tensors of an output in one."""
    return torch.cat([leaf.flatten() for _, leaf in leaves(output) if isinstance(leaf, torch.Tensor)])


def _to_nanosecond(seconds: float) -> float:
    return round(seconds, 9)
