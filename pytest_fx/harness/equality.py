"""Distances between two outputs of the same structure: by element, in ulp, and as signal-to-noise ratio."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pytest_fx.errors import ComparisonError
from pytest_fx.harness.snapshot import dense, in_pieces, is_plain
from pytest_fx.harness.structure import describe, dtype_name, leaves, skeleton

MANY_ULPS = 1000
"""Distance in ulp from which on it is no rounding error, and the number says nothing."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of an output beside the tensor that it should equal."""

    path: str
    """Path in the output, such as ``['scores'].logits``; empty if the tensor is the whole output."""
    expected: torch.Tensor
    """The reference's tensor."""
    actual: torch.Tensor
    """The program's tensor."""

    @property
    def errors(self) -> torch.Tensor:
        """The distance of each pair of elements in float64: 0 for two NaNs, infinite for a NaN beside a number."""
        dtype = torch.complex128 if self.expected.is_complex() or self.actual.is_complex() else torch.float64
        distance = self.actual.to(dtype) - self.expected.to(dtype)
        if distance._is_zerotensor():  # a derivative by forward mode, which nothing may write to
            distance = distance.clone()
        distance = distance.abs() if distance.is_complex() else distance.abs_()  # in place, to save memory
        # The difference of equal infinities is NaN, and different 64-bit integers may be equal in float64.
        same = (self.expected == self.actual) | (_is_nan(self.expected) & _is_nan(self.actual))
        if not (self.expected.is_floating_point() or self.expected.is_complex()):
            distance.clamp_(min=1)
        return distance.masked_fill_(same, 0.0).nan_to_num_(nan=torch.inf, posinf=torch.inf)

    @property
    def is_float(self) -> bool:
        """True if distances of elements have a meaning; those of integers, such as two indices, have none."""
        return self.actual.is_floating_point() or self.actual.is_complex()

    def pieces(self) -> Iterator[Leaf]:
        """Yield parts of a large pair, whose errors take little memory."""
        for expected, actual in in_pieces(self.expected, self.actual):
            yield Leaf(self.path, expected, actual)

    @property
    def largest_error(self) -> float:
        """The largest of :attr:`errors`; 0 if there are no elements."""
        return max((float(piece.errors.max()) for piece in self.pieces() if piece.expected.numel()), default=0.0)

    @property
    def power(self) -> tuple[float, float]:
        """The sums of squares of the reference and of the errors: signal and noise."""
        signal = self.expected.to(_float64_of(self.expected)).abs().pow(2).sum()
        return float(signal), float(self.errors.pow(2).sum())

    @property
    def scale(self) -> float:
        """The largest finite magnitude of the reference."""
        return max((_largest_finite(piece) for (piece,) in in_pieces(self.expected)), default=0.0)

    def limits(self, rtol: float, atol: float) -> torch.Tensor:
        """Return the error that each element may have: 0 for integers, infinities and NaNs, whatever the tolerances.

        ``atol`` is meant for magnitudes about 1; if the largest element is smaller, ``atol`` is scaled down by it.
        """
        if not (self.expected.is_floating_point() or self.expected.is_complex()):
            return torch.zeros(self.expected.shape, dtype=torch.float64, device=self.expected.device)
        magnitude = self.expected.to(_float64_of(self.expected)).abs()
        limit = atol * min(1.0, self.scale or 1.0) + rtol * magnitude
        return torch.where(magnitude.isfinite(), limit, torch.zeros_like(limit)).to(torch.float64)

    @property
    def bits_differ(self) -> torch.Tensor:
        """A mask of the elements whose bits differ; two NaNs count as equal."""
        size = self.expected.element_size()
        expected, actual = (
            tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).reshape(-1, size)
            for tensor in (self.expected, self.actual)
        )
        different = (expected != actual).any(1).reshape(self.expected.shape)
        return different & ~(_is_nan(self.expected) & _is_nan(self.actual))


@dataclass(frozen=True, slots=True)
class Difference:
    """The worst element of two tensors that differ, and the number of all wrong elements."""

    path: str
    """Path of the tensor in the output."""
    index: tuple[int, ...]
    """Index of the element in the tensor."""
    expected: Any
    """The element in the reference."""
    actual: Any
    """The element in the program's output."""
    error: float
    """Their distance."""
    limit: float
    """The distance allowed."""
    count: int
    """Number of elements that are further apart than allowed."""
    size: int
    """Number of all elements."""
    dtype: torch.dtype
    """The dtype of the tensor that differs."""
    ulps: int | None
    """Their distance in ulp of that dtype; None for integers and NaNs."""
    sqnr_db: float | None
    """Signal-to-quantization-noise ratio of the whole tensor; None for integers."""

    @property
    def element(self) -> str:
        """The index as Python writes it; empty for a tensor without dimensions."""
        return f"[{', '.join(map(str, self.index))}]" if self.index else ""

    @property
    def extent(self) -> str:
        """The number of wrong elements, and the dtype, in words."""
        return f"{self.count_wrong}, {dtype_name(self.dtype)}"

    @property
    def count_wrong(self) -> str:
        """The number of wrong elements, in words."""
        return f"the worst of {self.count} wrong in {self.size} element(s)"

    @property
    def steps(self) -> str:
        """The distance in ulp; empty if it is unknown, or too large to have a meaning."""
        return "" if self.ulps is None or self.ulps >= MANY_ULPS else f"{self.ulps} ulp"

    @property
    def distance(self) -> str:
        """The distance of the elements, and the signal-to-noise ratio of the tensor, in words."""
        parts = [f"{self.error:.2g} apart", self.steps]
        if self.sqnr_db is not None and math.isfinite(self.sqnr_db):
            parts.append(f"SQNR {self.sqnr_db:.1f} dB")
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The reason why two outputs cannot be compared element by element."""

    kind: str
    """The property that differs: structure, value, class, device, layout, shape or dtype."""
    text: str
    """A sentence that gives the property of both outputs."""


def pair_leaves(
    expected: Any, actual: Any, same_dtype: bool = True, place: Callable[[str], str] = "output{}".format
) -> list[Leaf] | Mismatch:
    """Return the tensors of two outputs side by side, or the mismatch that prevents it; ``place`` names a path in it.

    Numbers count as tensors without dimensions; other values must be equal. Structures, shapes, devices and layouts
    must agree, and dtypes if ``same_dtype``. Sparse and quantized tensors are compared by their dense values.

    Raises :class:`~pytest_fx.errors.ComparisonError` for meta tensors, which have no values, and nested tensors, which
    have no shape.
    """
    if skeleton(expected) != skeleton(actual):
        return Mismatch("structure", f"eager returns {describe(expected)}, the program {describe(actual)}")
    pairs: list[Leaf] = []
    for (path, reference), (_, output) in zip(leaves(expected), leaves(actual), strict=True):
        if not isinstance(reference, torch.Tensor | bool | int | float | complex):
            if reference is not output and reference != output:
                return Mismatch("value", f"{place(path)} is {reference!r} in eager and {output!r} in the program")
            continue
        for kind, verb, trait, other in _traits(reference, output, same_dtype):
            if trait != other:
                return Mismatch(kind, f"{place(path)} {verb} {trait} in eager and {other} in the program")
        pairs.append(Leaf(path, _as_tensor(reference, path), _as_tensor(output, path)))
    return pairs


def worst_difference(leaf: Leaf, wrong: torch.Tensor, errors: torch.Tensor, limits: torch.Tensor) -> Difference | None:
    """Return the element of ``leaf`` that exceeds its limit most, or None if no element is ``wrong``."""
    if not bool(wrong.any()):
        return None
    excess = torch.where(wrong, errors - limits, torch.full_like(errors, -torch.inf))
    index = tuple(int(position) for position in torch.unravel_index(excess.argmax(), wrong.shape)) if wrong.ndim else ()
    return Difference(
        path=leaf.path,
        index=index,
        expected=leaf.expected[index].item(),
        actual=leaf.actual[index].item(),
        error=float(errors[index]),
        limit=float(limits[index]),
        count=int(wrong.sum()),
        size=wrong.numel(),
        dtype=leaf.actual.dtype,
        ulps=ulps_apart(leaf.expected[index], leaf.actual[index]),
        sqnr_db=decibels(*leaf.power) if leaf.is_float else None,
    )


def _traits(reference: Any, output: Any, same_dtype: bool) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield the traits that must agree before values are compared, with words for each; numbers have a dtype only."""
    if isinstance(reference, torch.Tensor):
        if not is_plain(output):
            yield "class", "is", type(reference).__qualname__, type(output).__qualname__
        yield "device", "is on", reference.device, output.device
        yield "layout", "is", reference.layout, output.layout
        if not (reference.is_nested or output.is_nested):  # those have no shape
            yield "shape", "has the shape", list(reference.shape), list(output.shape)
    else:
        reference, output = _as_tensor(reference, ""), _as_tensor(output, "")
    if same_dtype:
        yield "dtype", "is", reference.dtype, output.dtype


def _as_tensor(value: Any, path: str) -> torch.Tensor:
    """Return a number or tensor as a dense tensor on the CPU."""
    if isinstance(value, torch.Tensor):
        if value.is_nested or value.is_meta:
            raise ComparisonError(
                f"output{path} cannot be compared",
                value=f"a {'nested' if value.is_nested else 'meta'} tensor",
                why="its parts differ in shape" if value.is_nested else "it has a shape, but no values",
                remedy="let the model return dense tensors: x.to_padded_tensor(0.0)" if value.is_nested else None,
            )
        return dense(value).cpu()
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else torch.tensor(value)


def _largest_finite(tensor: torch.Tensor) -> float:
    magnitude = tensor.to(_float64_of(tensor)).abs()
    magnitude = magnitude[magnitude.isfinite()]
    return float(magnitude.max()) if magnitude.numel() else 0.0


def _is_nan(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.isnan()
    return torch.zeros_like(tensor, dtype=torch.bool)


def _float64_of(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def ulps_apart(expected: torch.Tensor, actual: torch.Tensor) -> int | None:
    """Return the distance of two elements in ulp: in steps from one number of the dtype of ``actual`` to the next.

    For complex numbers it is that of the worse part. Return None for integers, whose difference says it all, and for
    NaNs.

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
    """Return the position of a floating-point number among all of its dtype; 0 for both zeros."""
    octets = bytes(element.detach().reshape(1).view(torch.uint8).tolist())
    bits, sign = int.from_bytes(octets, sys.byteorder), 1 << (8 * len(octets) - 1)
    return sign - bits if bits & sign else bits


def decibels(signal: float, noise: float) -> float:
    """Return the signal-to-quantization-noise ratio of two powers: inf without noise, -inf without signal.

    >>> decibels(100.0, 1.0)
    20.0
    """
    if noise == 0.0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0.0 and math.isfinite(noise) else -math.inf
