"""Tensors as short expressions: their shapes, dtypes, values and layouts."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from hypothesis import strategies as st

from fx.argument_types import Bounds, checked
from fx.arguments import refusal
from fx.errors import FxError
from pytest_fx.generation.productions import Choices, spell
from pytest_fx.harness.domains import Domain

Shape = tuple[int, ...]

MOST_DIMENSIONS = 64
"""The most dimensions of a shape; NumPy's arrays have no more."""
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ORDINARY = (1.0, 0.0, 2.0, -1.0, 0.5, -0.5, 3.0, 0.1, -2.7, 1 / 3)
FEW_VALUES = 64
"""The most values of integers and masks that a recipe copies from a tensor."""
MANY_VALUES = 4096
"""The most values of a tensor from which a recipe takes the range."""
WIDE = 16.0
"""The width from which on a recipe keeps a range with both signs."""
LAST_DIAGONAL = 4
"""The largest distance of a triangle's diagonal from the main one that is tried."""
SPECIAL = (0.0, float("nan"), float("inf"), -float("inf"), -0.0, 1e-40, 1e30, -1e30, 65504.0, 1e-8, 88.8)


@dataclass(frozen=True, slots=True)
class Triangle:
    """One value on one side of a diagonal of the last two dimensions, as in a causal mask, and 0 on the other side."""

    value: Any
    """The value of each element on the one side."""
    diagonal: int = 0
    """The last diagonal of that side; 0 is the main one, and those above have positive numbers."""
    upper: bool = False
    """True if the side is on and above the diagonal, not on and below."""


@dataclass(frozen=True, slots=True)
class TensorRecipe:
    """A description of a tensor from which an expression for any shape can be written."""

    shape: Shape
    """Its size."""
    dtype: torch.dtype = torch.float32
    """The dtype of its elements."""
    elements: tuple[Any, ...] | str | Triangle = "ones"
    """The name of a pattern, a triangle, or values that are repeated.

    The patterns are ``"ones"``, ``"waves"`` (a sine, no two elements equal), ``"swings"`` (a high one), ``"depths"`` (a
    low one, all negative), ``"gaps"`` (the last row is zero) and ``"counts"`` (0, 1, 2…).
    """
    layout: str = "contiguous"
    """``"contiguous"``, ``"transposed"`` (the last two dimensions), ``"stepped"`` (every second element),
    ``"channels last"``, ``"expanded"`` (along the first dimension) or ``"windows"`` (overlapping rows)."""
    limit: int = 4
    """The bound below which drawn integers are."""
    wave: tuple[float, float] = (1.0, 0.0)
    """Half the height and the middle of waves."""

    @classmethod
    def like(cls, tensor: torch.Tensor) -> TensorRecipe:
        """Return a recipe of a tensor with similar values: a mask, few integers, numbers in the same range.

        >>> TensorRecipe.like(torch.ones(3, 3).tril(1)).text, TensorRecipe.like(torch.tensor([0.5, 9.5])).text
        ('torch.full((3, 3), 1.0).tril(1)', 'torch.arange(2.0).add(1).sin().mul(4.5).add(5.0)')
        """
        shape, dtype = tuple(tensor.shape), tensor.dtype
        tensor = tensor.detach().cpu()
        if not tensor.numel() or tensor.is_complex():
            return cls(shape, dtype, "waves")
        flat = tensor.flatten()
        if bool((flat[:FEW_VALUES] == flat[0]).all()) and bool((flat == flat[0]).all()):
            value = flat[0].item()
            return cls(shape, dtype, "ones" if value == 1 and dtype is not torch.bool else (value,))
        if (triangle := _triangle(tensor)) is not None:
            return cls(shape, dtype, triangle)
        if not dtype.is_floating_point:
            if dtype is torch.bool or int(tensor.min()) < 0 or tensor.numel() <= FEW_VALUES:
                return cls(shape, dtype, tuple(flat[:FEW_VALUES].tolist()))
            return cls(shape, dtype, "waves", limit=int(tensor.max()) + 1)
        some = flat[:: 1 + len(flat) // MANY_VALUES]
        finite = some[some.isfinite()].double()
        if not finite.numel():
            return cls(shape, dtype, tuple(flat[:FEW_VALUES].tolist()))
        low, high = float(finite.min()), float(finite.max())
        if low < 0 < high and high - low < WIDE:
            return cls(shape, dtype, "waves")
        height, middle = (float(f"{number:.3g}") for number in ((high - low) / 2, (high + low) / 2))
        return cls(shape, dtype, "waves", wave=(height, middle))

    @property
    def text(self) -> str:
        """The expression, in terms of ``torch``."""
        shape = self.shape
        if self.layout == "transposed":
            return f"{_contiguous(self, (*shape[:-2], shape[-1], shape[-2]))}.mT"
        if self.layout == "stepped":
            return f"{_contiguous(self, (*shape[:-1], 2 * shape[-1]))}[..., ::2]"
        if self.layout == "channels last":
            return f"{_contiguous(self, shape)}.contiguous(memory_format=torch.channels_last)"
        if self.layout == "expanded":
            return f"{_contiguous(self, (1, *shape[1:]))}.expand({', '.join(map(str, shape))})"
        if self.layout == "windows":
            rows = (*shape[:-2], shape[-2] + shape[-1] - 1)
            return f"{_contiguous(self, rows)}.unfold(-1, {shape[-1]}, 1)"
        return _contiguous(self, shape)

    def with_batch(self, size: int) -> TensorRecipe:
        """Return the recipe with another first dimension."""
        return replace(self, shape=(size, *self.shape[1:]))


@dataclass(frozen=True, slots=True)
class RecipeInDomain:
    """A tensor that is moved into a domain, such as an input of a model with a declared one."""

    recipe: TensorRecipe
    """The tensor."""
    domain: Domain
    """The domain."""

    @property
    def shape(self) -> Shape:
        """The size of the tensor."""
        return self.recipe.shape


def _contiguous(recipe: TensorRecipe, shape: Shape) -> str:
    size = ", ".join(map(str, shape)) if shape else "()"
    count, dtype = math.prod(shape), recipe.dtype
    suffix = "" if dtype is torch.float32 else f", dtype={dtype}"
    if recipe.elements == "ones":
        return f"torch.ones({size}{'' if dtype is torch.float32 else suffix})"
    if isinstance(recipe.elements, Triangle):
        part = recipe.elements
        side = f"{'triu' if part.upper else 'tril'}({part.diagonal or ''})"
        return f"torch.full({spell(shape)}, {spell(part.value)}{suffix}).{side}"
    if isinstance(recipe.elements, tuple):
        return _from_values(recipe.elements, shape, size, count, dtype, suffix)
    if dtype.is_complex:
        return f"{_contiguous(replace(recipe, dtype=torch.float32), shape)}.to({dtype})"
    if dtype in FLOATING:
        text = f"torch.arange({count}.0{suffix})"
        text = text if recipe.elements == "counts" else f"{text}.add(1).sin()"
        if recipe.elements == "waves" and recipe.wave != (1.0, 0.0):
            text = f"{text}.mul({recipe.wave[0]!r}).add({recipe.wave[1]!r})"
        text += {"swings": ".mul(150)", "depths": ".sub(2)"}.get(str(recipe.elements), "")
    elif dtype is torch.bool:
        text = f"torch.arange({count}).remainder(3).bool()"
    else:
        suffix = "" if dtype is torch.int64 else suffix
        text = f"torch.arange({count}{suffix}).remainder({max(1, recipe.limit)})"
    text = text if len(shape) == 1 else f"{text}.reshape({size})"
    has_gap = recipe.elements == "gaps" and dtype in FLOATING and math.prod(shape[:1]) > 1
    return f"{text}.index_fill(0, torch.tensor([{shape[0] - 1}]), 0)" if has_gap else text


def _from_values(values: tuple[Any, ...], shape: Shape, size: str, count: int, dtype: torch.dtype, suffix: str) -> str:
    suffix = "" if dtype in (torch.float32, torch.int64, torch.bool) else suffix
    if shape == ():
        return f"torch.tensor({spell(values[0])}{suffix})"
    repeats = -(-count // len(values))
    if repeats > 1:
        text = f"torch.tensor({spell(list(values))}{suffix}).repeat({repeats})"
        text = text if repeats * len(values) == count else f"{text}[:{count}]"
    else:
        text = f"torch.tensor({spell(list(values[:count]))}{suffix if count else f', dtype={dtype}'})"
    return text if len(shape) == 1 else f"{text}.reshape({size})"


def _triangle(tensor: torch.Tensor) -> Triangle | None:
    """Return the triangle that equals a tensor, if there is one."""
    if tensor.dim() < 2 or min(tensor.shape[-2:]) < 2:
        return None
    rows = tensor[(0,) * (tensor.dim() - 2)]
    values = rows[rows != 0]
    if not len(values) or not bool((values[:FEW_VALUES] == values[0]).all()):
        return None
    value, full = values[0], torch.full_like(tensor, values[0].item())
    for diagonal in range(1 - min(LAST_DIAGONAL, tensor.shape[-2]), min(LAST_DIAGONAL, tensor.shape[-1])):
        for upper in (False, True):
            if torch.equal(full.triu(diagonal) if upper else full.tril(diagonal), tensor):
                return Triangle(value.item(), diagonal, upper)
    return None


def draw_tensor(
    choices: Choices, shape: Shape, dtype: torch.dtype = torch.float32, *, extreme_values: bool = False, limit: int = 4
) -> TensorRecipe:
    """Draw the values and the layout of a tensor.

    Args:
        choices: the source of decisions.
        shape: its size.
        dtype: the dtype of its elements.
        extreme_values: true to have not-a-numbers, infinities, denormals and extreme magnitudes among the values.
        limit: the bound below which integers are; none is negative.
    """
    kind = choices.pick(
        ("ones", "waves", "waves", "waves", "waves", "counts", "given", "given", "swings", "swings", "depths", "gaps")
    )
    kind = "given" if extreme_values and kind == "waves" else kind
    elements: Any = kind if kind != "given" else _draw_elements(choices, dtype, extreme_values, limit)
    layouts = ("contiguous",) * 8 + ("transposed",) * (len(shape) > 1) + ("stepped",) * (len(shape) > 0)
    return TensorRecipe(shape, dtype, elements, choices.pick(layouts), limit)


def in_unusual_form(choices: Choices, recipe: TensorRecipe) -> TensorRecipe:
    """Return a recipe, mostly of integers up to the limits of their dtype, and sometimes of an unusual layout."""
    dtype, rank = recipe.dtype, len(recipe.shape)
    if not (dtype.is_floating_point or dtype is torch.bool):
        limits = torch.iinfo(dtype)
        edges = (limits.max, limits.min, 0, 1, 3, max(limits.min, -2), limits.max - 1, 7)
        recipe = replace(recipe, elements=tuple(choices.pick(edges) for _ in range(1 + choices.below(6))))
    if recipe.layout != "contiguous" or rank == 0 or 0 in recipe.shape or choices.mostly(4):
        return recipe
    layouts = ("expanded",) + ("windows",) * (rank > 1) + ("channels last",) * 2 * (rank == 4)
    return replace(recipe, layout=choices.pick(layouts))


def _draw_elements(choices: Choices, dtype: torch.dtype, extreme_values: bool, limit: int) -> tuple[Any, ...]:
    count = 1 + choices.below(6)
    if dtype is torch.bool:
        return tuple(choices.below(2) == 0 for _ in range(count))
    if dtype not in FLOATING:
        return tuple(choices.below(max(1, limit)) for _ in range(count))
    return tuple(_draw_number(choices, extreme_values) for _ in range(count))


def _draw_number(choices: Choices, extreme_values: bool) -> float:
    if extreme_values and choices.sometimes(2):
        return struct.unpack("f", struct.pack("I", choices.below(2**32)))[0]
    return choices.pick(SPECIAL if extreme_values else ORDINARY)


@checked(FxError)
def shapes(*, least: int = 0, most: int = 4, empty: bool = True) -> st.SearchStrategy[Shape]:
    """Return a strategy of sizes with ``least`` to ``most`` dimensions; some are 1, and with ``empty`` few are 0."""
    if not (type(least) is type(most) is int and 0 <= least <= most <= MOST_DIMENSIONS):
        raise refusal(
            f"shapes have least= to most= dimensions, at most {MOST_DIMENSIONS}", (least, most), error=FxError
        )
    return _shapes(least, most, empty)


@st.composite
def _shapes(draw: st.DrawFn, least: int, most: int, empty: bool) -> Shape:
    choices = Choices(draw)
    return tuple(draw_size(choices, empty=empty) for _ in range(least + choices.below(most - least + 1)))


def draw_size(choices: Choices, *, empty: bool = False) -> int:
    """Return a size of 1 to 6, or with ``empty`` in a few cases 0; 2 after shrinking."""
    return choices.pick((2, 3, 4, 2, 3, 4, 2, 3, 4, 5, 6, 1, 1) + (0,) * empty)


def draw_extent(choices: Choices) -> int:
    """Return a height or width of an image, of 1 to 8: enough for two windows in a row; 4 after shrinking."""
    return choices.pick((4, 3, 6, 4, 2, 5, 8, 1))


@checked(FxError)
def tensors(
    shape: st.SearchStrategy[Shape] | tuple[Annotated[int, Bounds(0, 2**31 - 1)], ...] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    extreme_values: bool = False,
) -> st.SearchStrategy[torch.Tensor]:
    """Return a strategy of tensors of ``shape``, contiguous or not, whose values shrink to ones.

    Args:
        shape: a size, or a strategy of sizes; any if None.
        dtype: the dtype of the elements.
        extreme_values: true to have not-a-numbers, infinities, denormals and extreme magnitudes among the values.
    """
    return _tensors(tuple(shape) if isinstance(shape, list) else shape, dtype, extreme_values)


@st.composite
def _tensors(
    draw: st.DrawFn, shape: st.SearchStrategy[Shape] | Shape | None, dtype: torch.dtype, extreme_values: bool
) -> torch.Tensor:
    size = shape if isinstance(shape, tuple) else draw(shapes() if shape is None else shape)
    return eval(draw_tensor(Choices(draw), size, dtype, extreme_values=extreme_values).text, {"torch": torch})
