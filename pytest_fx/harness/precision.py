"""How large an error is: in steps of the number format, and as a ratio of signal to noise."""

from __future__ import annotations

import math
import sys

import torch


def ulps_apart(expected: torch.Tensor, actual: torch.Tensor) -> int | None:
    """Return how many representable numbers lie between two elements, in the format of ``actual``, plus one.

    Complex numbers are as far apart as the worse of their parts. None where no count means anything: integers, which
    have their distance, and anything beside a NaN.

    >>> ulps_apart(torch.tensor(1.0), torch.tensor(1.0000001))
    1
    """
    expected = expected.to(actual.dtype)
    if actual.is_complex():
        parts = [ulps_apart(part(expected), part(actual)) for part in (torch.real, torch.imag)]
        return None if None in parts else max(part for part in parts if part is not None)
    if not actual.is_floating_point() or bool(expected.isnan()) or bool(actual.isnan()):
        return None
    return abs(_ordinal(expected) - _ordinal(actual))


def _ordinal(element: torch.Tensor) -> int:
    """The position of a floating-point number among all of its format; 0 for both zeros."""
    octets = bytes(element.detach().reshape(1).view(torch.uint8).tolist())
    bits, sign = int.from_bytes(octets, sys.byteorder), 1 << (8 * len(octets) - 1)
    return sign - bits if bits & sign else bits


def decibels(signal: float, noise: float) -> float:
    """Return the signal-to-quantization-noise ratio of two powers; infinite without noise, minus that if it is lost.

    >>> decibels(100.0, 1.0)
    20.0
    """
    if noise == 0.0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0.0 and math.isfinite(noise) else -math.inf
