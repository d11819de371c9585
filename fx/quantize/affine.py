"""``Affine``: the map between 8-bit integers and floating-point numbers (Jacob et al. 2017; paper, section 6.2.1)."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from fx.argument_types import Bounds, checked
from fx.arguments import shown
from fx.errors import QuantizationError
from fx.quantize import pages

_SMALLEST_SCALE = 2.0**-100
"""The inverse of this scale, and the product of two inverses, stay finite in float32."""

Bits = Annotated[int, Bounds(2, 8)]
Size = Annotated[int, Bounds(0)]
"""The number of elements in a dimension."""
Percentile = Annotated[float, Bounds(50, 100, excludes_least=True)]
"""The percentage of values inside a range."""


@dataclass(frozen=True, slots=True)
class Affine:
    """The map from integers ``q`` of 0 to ``highest`` to real ones: ``(q - zero_point) * scale``.

    >>> Affine.of_range(-1.0, 1.55).scale
    0.009999999776482582
    """

    scale: float
    """The difference between neighbours, in units of the float value; a float32."""
    zero_point: int
    """The integer that represents zero, exactly."""
    highest: int = 255
    """The largest integer in use; less than 255 for fewer bits."""

    def __post_init__(self) -> None:
        try:
            fits = 0 < self.scale < math.inf and 0 <= self.zero_point <= self.highest <= 255
        except (TypeError, RuntimeError):  # not numbers; a check beforehand would cost time in each call of a layer
            fits = False
        if not fits:
            raise QuantizationError(
                "a scale is positive, and a zero point is an integer of 0 to `highest`, which is at most 255",
                value=shown(self),
                remedy="make it with Affine.of_range(low, high)",
            )

    @classmethod
    @checked(QuantizationError)
    def of_range(cls, low: float, high: float, *, bits: Bits = 8, symmetric: bool = False) -> Affine:
        """Return the map that covers ``low`` to ``high``, and zero, with the smallest scale.

        Args:
            low: smallest float value to represent.
            high: largest float value to represent.
            bits: how many bits the integers have, 2 to 8.
            symmetric: put zero in the middle, so that a value and its negative are stored alike.
        """
        highest = 2**bits - 1
        low, high = min(float(low), 0.0), max(float(high), 0.0)
        if symmetric:
            middle = 2 ** (bits - 1)
            return cls(_step(max(-low, high) / (middle - 1)), middle, highest)
        scale = _step((high - low) / highest)
        return cls(scale, min(max(round(-low / scale), 0), highest), highest)

    @checked(QuantizationError)
    def quantized(self, value: float) -> int:
        """Return the integer nearest to ``value``; at the end of the range if ``value`` is outside."""
        return min(max(round(min(max(value / self.scale, -1e9), 1e9)) + self.zero_point, 0), self.highest)

    def values(self) -> Tensor:
        """Return the float values of all 256 integers as float32, also of those above ``highest``."""
        return (torch.arange(256) - self.zero_point).float() * self.scale

    @property
    def settings(self) -> dict[str, Any]:
        """The fields as keyword arguments of the functions in :mod:`fx.quantize.arithmetic`."""
        settings: dict[str, Any] = {"scale": self.scale, "zero_point": self.zero_point}
        return settings if self.highest == 255 else {**settings, "highest": self.highest}


def _step(width: float) -> float:
    """Return ``width`` as a float32 that can be a scale; for a width of zero any scale will do."""
    if width == 0:
        return 1.0
    return struct.unpack("f", struct.pack("f", max(width, _SMALLEST_SCALE)))[0]


@checked(QuantizationError)
def quantize_channels(weight: Tensor, *, bits: Bits = 8, per_channel: bool = True) -> tuple[Tensor, Tensor]:
    """Return ``weight`` as int8 and the scale of each of its channels, both symmetric about zero.

    Args:
        weight: floating point, of shape (channels, ...).
        bits: how many bits the integers have, 2 to 8: with 8 they are -127 to 127.
        per_channel: give each channel its own scale; otherwise all have the largest.

    Returns:
        Integers of the shape of ``weight``, and float32 scales of shape (channels,).
    """
    highest = 2 ** (bits - 1) - 1
    flat = weight.detach().reshape(len(weight), math.prod(weight.shape[1:]))
    width = flat.shape[1]
    if width == 0:
        flat = flat.new_zeros(len(flat), 1)
    rows = max(1, _CHUNK // flat.shape[1])
    scales = None
    if not per_channel:
        largest = torch.cat([_largest(part) for part in flat.split(rows)] or [flat.new_zeros(1)]).max()
        scales = _scales_of(largest.float(), highest)
    on_cpu = flat.device.type == "cpu"
    quantized = pages.empty(flat.shape, torch.int8) if on_cpu else torch.empty_like(flat, dtype=torch.int8)
    scale = torch.empty(len(flat), dtype=torch.float32, device=flat.device)
    for part, into, part_scale in zip(flat.split(rows), quantized.split(rows), scale.split(rows), strict=True):
        part_scale.copy_(_scales_of(_largest(part).float(), highest) if scales is None else scales)
        into.copy_((part * part_scale.reciprocal()[:, None]).round_().clamp_(-highest, highest))
    return quantized[:, :width].view(weight.shape), scale


def _largest(rows: Tensor) -> Tensor:
    """Return the largest absolute value in each row; two passes are several times as fast as ``aminmax``."""
    return torch.maximum(-rows.amin(1), rows.amax(1))


def _scales_of(largest: Tensor, highest: int) -> Tensor:
    return torch.where(largest > 0, (largest / highest).clamp_min(_SMALLEST_SCALE), torch.ones_like(largest))


_CHUNK = 1 << 18
"""Elements processed at a time, so that intermediate results stay in the cache: 4096 x 4096 elements take a fourth of
the time."""


# Ranges of very many values.

MANY = 1 << 24
"""The number of values from which on a sample is worth its time: the more values, the wider their range."""
_SAMPLE = 1 << 17
_PARTS = (1.0, 0.9, 0.8, 0.7)
"""The parts of the range to try."""
_REACH = 0.75
"""The part of the range that a sample must reach: then it misses a thin tail, not a few large values that matter."""


def narrowed(values: Tensor, low: float, high: float) -> tuple[float, float]:
    """Return the part of a range with the least squared error of all values; values outside of it saturate.

    ``values`` are on the CPU. There are at least ``MANY`` of them, all finite and in this range.
    """
    flat = values.detach().reshape(-1)
    sample = flat[:: flat.numel() // _SAMPLE | 1].float().clone()  # an odd step visits all columns of most matrices
    if sample.amin() > _REACH * min(low, 0.0) or sample.amax() < _REACH * max(high, 0.0):
        return low, high
    errors = {part: _error(sample, Affine.of_range(low * part, high * part)) for part in _PARTS}
    best = min(_PARTS, key=lambda part: errors[part])
    return low * best, high * best


def _error(values: Tensor, affine: Affine) -> float:
    stored = torch.fake_quantize_per_tensor_affine(values, affine.scale, affine.zero_point, 0, affine.highest)
    return float((stored - values).square_().sum())
