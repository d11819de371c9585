"""How far two answers of the same structure are apart, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .structure import describe, leaves, skeleton


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of an answer beside the tensor that it should equal."""

    path: str
    """Where it is in the answer, such as ``['scores'].logits``; empty if it is the whole answer."""
    expected: torch.Tensor
    """What the reference answers."""
    actual: torch.Tensor
    """What the program answers."""

    @property
    def errors(self) -> torch.Tensor:
        """The distance of each pair of elements, float64; 0 for two NaNs, infinite for a NaN beside a number."""
        wide = torch.complex128 if self.expected.is_complex() or self.actual.is_complex() else torch.float64
        distance = (self.actual.to(wide) - self.expected.to(wide)).abs()
        # Equal infinities have no distance, and 64-bit integers may lose theirs on the way to float64.
        same = (self.expected == self.actual) | (_is_nan(self.expected) & _is_nan(self.actual))
        if not (self.expected.is_floating_point() or self.expected.is_complex()):
            distance = distance.clamp(min=1)
        distance = torch.where(same, torch.zeros_like(distance), distance)
        return distance.nan_to_num(nan=torch.inf, posinf=torch.inf)

    @property
    def scale(self) -> float:
        """The largest finite magnitude of the reference."""
        magnitude = self.expected.to(_wide_real(self.expected)).abs()
        magnitude = magnitude[magnitude.isfinite()]
        return float(magnitude.max()) if magnitude.numel() else 0.0

    def limits(self, rtol: float, atol: float) -> torch.Tensor:
        """Return the error that each element may have; no tolerance makes up for a lost infinity or a wrong integer."""
        if not (self.expected.is_floating_point() or self.expected.is_complex()):
            return torch.zeros(self.expected.shape, dtype=torch.float64)
        magnitude = self.expected.to(_wide_real(self.expected)).abs()
        limit = atol + rtol * magnitude
        return torch.where(magnitude.isfinite(), limit, torch.zeros_like(limit)).to(torch.float64)

    @property
    def bits_differ(self) -> torch.Tensor:
        """For each element, whether any of its bits differ. Two NaNs are taken for the same one."""
        size = self.expected.element_size()
        expected, actual = (
            tensor.detach().contiguous().reshape(-1, 1).view(torch.uint8).reshape(-1, size)
            for tensor in (self.expected, self.actual)
        )
        different = (expected != actual).any(1).reshape(self.expected.shape)
        return different & ~(_is_nan(self.expected) & _is_nan(self.actual))


@dataclass(frozen=True, slots=True)
class Difference:
    """The worst element of a pair of tensors that differ, and how many others do."""

    path: str
    """Where the tensor is in the answer."""
    index: tuple[int, ...]
    """Where the element is in the tensor."""
    expected: Any
    """The element as it should be."""
    actual: Any
    """The element as it is."""
    error: float
    """Their distance."""
    limit: float
    """The distance allowed."""
    count: int
    """Elements that are further apart than allowed."""
    size: int
    """Elements in all."""
    dtype: torch.dtype
    """The dtype of the tensor that differs."""

    @property
    def place(self) -> str:
        """The place in words: which output, which element, how many more."""
        index = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"output{self.path}{index}, the worst of {self.count} wrong in {self.size} element(s), {dtype}"


def pair_leaves(expected: Any, actual: Any, same_dtype: bool = True) -> list[Leaf] | str:
    """Return the tensors of two answers side by side, or a sentence on why that is impossible.

    Numbers count as tensors without dimensions; what is no number must be equal. Structures and shapes must agree, and
    dtypes if ``same_dtype``.
    """
    if skeleton(expected) != skeleton(actual):
        return f"eager returns {describe(expected)}, the program {describe(actual)}"
    pairs: list[Leaf] = []
    for (path, wanted), (_, found) in zip(leaves(expected), leaves(actual), strict=True):
        if not isinstance(wanted, torch.Tensor | bool | int | float | complex):
            if wanted is not found and wanted != found:
                return f"output{path} is {wanted!r} in eager and {found!r} in the program"
            continue
        leaf = Leaf(path, _as_tensor(wanted), _as_tensor(found))
        if leaf.expected.shape != leaf.actual.shape:
            shapes = f"{list(leaf.expected.shape)} in eager and {list(leaf.actual.shape)} in the program"
            return f"output{path} has the shape {shapes}"
        if same_dtype and leaf.expected.dtype != leaf.actual.dtype:
            return f"output{path} is {leaf.expected.dtype} in eager and {leaf.actual.dtype} in the program"
        pairs.append(leaf)
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
    )


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else torch.tensor(value)


def _is_nan(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.isnan()
    return torch.zeros(tensor.shape, dtype=torch.bool)


def _wide_real(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
