"""``narrowed``: the range of many values that loses the least, judged by a sample of them."""

from __future__ import annotations

import torch
from torch import Tensor

from fx.quantize.affine import Affine

MANY = 1 << 24
"""From how many values on a sample is worth its time: the more values, the wider the range of all of them."""
_SAMPLE = 1 << 17
_PARTS = (1.0, 0.9, 0.8, 0.7)
"""Parts of the range that are tried."""
_REACH = 0.75
"""A sample must reach this far: then what it misses is a thin tail rather than a few large values that matter."""


def narrowed(values: Tensor, low: float, high: float) -> tuple[float, float]:
    """Return the part of a range outside of which values may saturate, so that the squared error of all is least.

    Args:
        values: on the CPU, ``MANY`` and more, all finite.
        low: the smallest one.
        high: the largest one.
    """
    flat = values.detach().reshape(-1)
    sample = flat[:: flat.numel() // _SAMPLE | 1].float().clone()  # an odd step meets all columns of most matrices
    if sample.amin() > _REACH * min(low, 0.0) or sample.amax() < _REACH * max(high, 0.0):
        return low, high
    errors = {part: _squared_error(sample, Affine.of_range(low * part, high * part)) for part in _PARTS}
    best = min(_PARTS, key=lambda part: errors[part])
    return low * best, high * best


def _squared_error(values: Tensor, affine: Affine) -> float:
    stored = torch.fake_quantize_per_tensor_affine(values, affine.scale, affine.zero_point, 0, affine.highest)
    return float((stored - values).square_().sum())
