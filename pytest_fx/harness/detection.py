"""What a green verdict would have caught: the smallest change of the outputs that would have turned it red."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from fx.passes import Approximate, Close, Contract, Exact
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.equality import Leaf

COARSE = 1e-3
"""The detection limit from which on a verdict is worth a warning, where the contract itself asks for more."""


@dataclass(frozen=True, slots=True)
class DetectionLimit:
    """The smallest relative changes that a contract would not have let pass, of the output where they are largest.

    >>> changed = torch.tensor([1.0, 2.0, 4.0])
    >>> same = Comparison("model", "pass", [changed], [changed], [changed.double()], [changed.double()])
    >>> limit = detection_limit(same, Close(rtol=1e-5, atol=0.0))
    >>> f"{limit.all_elements:.0e} {limit.largest_element:.0e}"
    '5e-07 5e-07'
    """

    all_elements: float
    """Of all elements by the same factor."""
    largest_element: float
    """Of the largest element alone."""
    median_element: float
    """Of an element of median size alone."""


def detection_limit(comparison: Comparison, contract: Contract) -> DetectionLimit | None:
    """Return what ``comparison`` would have caught, from the outputs that it has; None if no output is a float.

    A change counts as caught if either dtype shows it: a fault of a pass is one in both.
    """
    if isinstance(contract, Approximate):
        found = list(_of_noise(comparison, contract.sqnr_db))
    elif isinstance(contract, Close):
        found = list(_of_closeness(comparison, contract))
    else:
        assert isinstance(contract, Exact), "there are three contracts"
        found = [
            DetectionLimit(*[torch.finfo(leaf.actual.dtype).eps] * 3)
            for leaf in comparison.float_leaves(comparison.eager, comparison.actual)
        ]
    return _worst(found)


def _worst(found: Iterable[DetectionLimit]) -> DetectionLimit | None:
    limits = list(found)
    if not limits:
        return None
    return DetectionLimit(
        max(limit.all_elements for limit in limits),
        max(limit.largest_element for limit in limits),
        max(limit.median_element for limit in limits),
    )


def _of_closeness(comparison: Comparison, contract: Close) -> Iterable[DetectionLimit]:
    bounds = [bound for bound in comparison.rounding_bounds(contract) if bound.leaf.actual.is_floating_point()]
    found = [_smallest_changes(bound.leaf, bound.limits) for bound in bounds]
    if comparison.actual64 is None:
        return [limit for limit in found if limit is not None]
    wide = comparison.float_leaves(comparison.eager64, comparison.actual64)
    found64 = [_smallest_changes(leaf, leaf.limits(contract.rtol, contract.atol)) for leaf in wide]
    pairs = zip(found, found64, strict=False)
    return [_either(one, other) for one, other in pairs if one is not None and other is not None]


def _either(one: DetectionLimit, other: DetectionLimit) -> DetectionLimit:
    return DetectionLimit(
        min(one.all_elements, other.all_elements),
        min(one.largest_element, other.largest_element),
        min(one.median_element, other.median_element),
    )


def _smallest_changes(leaf: Leaf, limits: torch.Tensor) -> DetectionLimit | None:
    """The relative changes that bring elements beyond their limits; None where all are zero or not finite."""
    magnitude = leaf.actual.double().abs()
    counted = magnitude.isfinite() & (magnitude > 0)
    if not bool(counted.any()):
        return None
    magnitude = magnitude[counted]
    changes = (limits[counted] - leaf.errors[counted]).clamp_(min=0.0) / magnitude
    median = magnitude.argsort()[len(magnitude) // 2]
    return DetectionLimit(float(changes.min()), float(changes[magnitude.argmax()]), float(changes[median]))


def _of_noise(comparison: Comparison, sqnr_db: float) -> Iterable[DetectionLimit]:
    """The same where the noise of an output as a whole has a limit; the noise of a change adds to what there is."""
    for leaves in comparison.noisy_outputs().values():
        signal, noise = (sum(part) for part in zip(*(leaf.power for leaf in leaves), strict=True))
        magnitudes = torch.cat([leaf.actual.abs().double().flatten() for leaf in leaves])
        magnitudes = magnitudes[magnitudes.isfinite() & (magnitudes > 0)]
        if signal > 0 and magnitudes.numel():
            allowed = math.sqrt(max(0.0, signal * 10 ** (-sqnr_db / 10) - noise))
            yield DetectionLimit(
                allowed / math.sqrt(signal),
                allowed / float(magnitudes.max()),
                allowed / float(magnitudes.median()),
            )
