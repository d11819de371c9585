"""Detection limits of a passed comparison: the smallest changes of the outputs that would have failed it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass

import torch

from fx.passes import Approximate, Close, Contract, Exact
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.equality import Leaf


@dataclass(frozen=True, slots=True)
class DetectionLimit:
    """The smallest relative changes that violate a contract, for the output where they are largest.

    >>> changed = torch.tensor([1.0, 2.0, 4.0])
    >>> same = Comparison("model", "pass", [changed], [changed], [changed.double()], [changed.double()])
    >>> limit = detection_limit(same, Close(rtol=1e-5, atol=0.0))
    >>> f"{limit.all_elements:.0e} {limit.largest_element:.0e}"
    '5e-07 5e-07'
    """

    all_elements: float
    """A change of all elements by the same factor."""
    largest_element: float
    """A change of the largest element alone."""
    median_element: float
    """A change of an element of median size alone."""


def detection_limit(comparison: Comparison, contract: Contract) -> DetectionLimit | None:
    """Return the smallest changes of its outputs that ``comparison`` would have detected; None if none is a float.

    A change is detected if it exceeds a limit on any input set, in either dtype: a faulty pass is faulty in both.
    """
    limits_by_path: dict[str, list[DetectionLimit]] = {}
    for path, limit in _limits(comparison, contract):
        limits_by_path.setdefault(path, []).append(limit)
    finest = [[min(parts) for parts in zip(*map(astuple, limits), strict=True)] for limits in limits_by_path.values()]
    return DetectionLimit(*map(max, zip(*finest, strict=True))) if limits_by_path else None


def _limits(comparison: Comparison, contract: Contract) -> Iterator[tuple[str, DetectionLimit]]:
    """Yield the limit of each compared tensor, with its path in the output."""
    if isinstance(contract, Approximate):
        yield from _limits_of_approximate(comparison, contract.sqnr_db)
    elif isinstance(contract, Close):
        yield from _limits_of_close(comparison, contract)
    elif isinstance(contract, Exact):
        for leaf in comparison.float_leaves(comparison.eager, comparison.actual):
            yield leaf.path, DetectionLimit(*[torch.finfo(leaf.actual.dtype).eps] * 3)


def _limits_of_close(comparison: Comparison, contract: Close) -> Iterator[tuple[str, DetectionLimit]]:
    pairs = [(bound.leaf, bound.limits) for bound in comparison.rounding_bounds(contract)]
    if comparison.actual64 is not None:
        float64_leaves = comparison.float_leaves(comparison.eager64, comparison.actual64)
        pairs += [(leaf, leaf.limits(contract.rtol, contract.atol)) for leaf in float64_leaves]
    for leaf, limits in pairs:
        limit = _smallest_changes(leaf, limits) if leaf.actual.is_floating_point() else None
        if limit is not None:
            yield leaf.path, limit


def _smallest_changes(leaf: Leaf, limits: torch.Tensor) -> DetectionLimit | None:
    """Return the relative changes that bring elements beyond their limits; None if all are zero or not finite."""
    magnitude = leaf.actual.double().abs()
    counted = magnitude.isfinite() & (magnitude > 0)
    if not bool(counted.any()):
        return None
    magnitude = magnitude[counted]
    changes = (limits[counted] - leaf.errors[counted]).clamp_(min=0.0) / magnitude
    median = magnitude.argsort()[len(magnitude) // 2]
    return DetectionLimit(float(changes.min()), float(changes[magnitude.argmax()]), float(changes[median]))


def _limits_of_approximate(comparison: Comparison, sqnr_db: float) -> Iterator[tuple[str, DetectionLimit]]:
    """Yield the limits for a contract on the noise of a whole output. A change adds its noise to the present noise."""
    for path, leaves in comparison.noisy_outputs().items():
        signal, noise = (sum(part) for part in zip(*(leaf.power for leaf in leaves), strict=True))
        magnitudes = torch.cat([leaf.actual.abs().double().flatten() for leaf in leaves])
        magnitudes = magnitudes[magnitudes.isfinite() & (magnitudes > 0)]
        if signal > 0 and magnitudes.numel():
            allowed = math.sqrt(max(0.0, signal * 10 ** (-sqnr_db / 10) - noise))
            sizes = math.sqrt(signal), float(magnitudes.max()), float(magnitudes.median())
            yield path, DetectionLimit(*(allowed / size for size in sizes))
