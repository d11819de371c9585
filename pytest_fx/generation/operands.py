"""Kinds of operands of operations, and constants that fit them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_fx.generation.productions import OMITTED, Argument, Choices, Drawing, NewTensor, Operand
from pytest_fx.generation.tensor_expressions import Shape, draw_extent, draw_size

MOST_OF_A_SIZE = 64
"""The largest number asked for that becomes a size."""


SMALL_SIZE = 8
"""The largest size that is reused for another dimension."""
ANOTHER_SIZE = 3
"""In one of so many cases a size is that of another dimension: a pass may take one for the other."""


def _size(builder: Drawing) -> int:
    return size_beside(builder.choices, builder.sizes)


def size_beside(choices: Choices, sizes: Sequence[int], *, empty: bool = False) -> int:
    """Return a size, sometimes one of those of other dimensions."""
    others = [size for size in sizes if 1 < size <= SMALL_SIZE]
    if others and choices.sometimes(ANOTHER_SIZE):
        return choices.pick(others)
    return draw_size(choices, empty=empty)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _float_with(least: int, most: int) -> Operand:
    """Return a floating-point tensor with ``least`` to ``most`` dimensions."""
    return tensor_with(least, most, torch.float32)


def tensor_with(least: int, most: int, dtype: torch.dtype, *, equal: int = 0) -> Operand:
    """Return a tensor operand with ``least`` to ``most`` dimensions, of this dtype; float32 also accepts other floats.

    The last ``equal`` dimensions have the same size.
    """

    def fits(value: Any, earlier: list[Any]) -> bool:
        is_of_dtype = _is_floating(value) if dtype is torch.float32 else _is_tensor(value) and value.dtype is dtype
        return is_of_dtype and least <= value.dim() <= most and len(set(value.shape[len(value.shape) - equal :])) < 2

    def new_tensor(builder: Drawing, earlier: list[Any]) -> NewTensor:
        shape = tuple(_size(builder) for _ in range(least))
        return NewTensor((*shape[: least - equal], *shape[-1:] * equal) if equal else shape, dtype)

    return Operand(fits, new_tensor)


ANY = Operand(lambda value, earlier: _is_tensor(value), lambda builder, earlier: NewTensor((2, 3)))
"""Any tensor."""
FLOAT = _float_with(0, 6)
"""A floating-point tensor."""
VECTORS = _float_with(1, 6)
"""A floating-point tensor with at least one dimension."""
MATRICES = _float_with(2, 6)
"""A floating-point tensor with at least two dimensions."""
LINE = _float_with(1, 1)
"""A floating-point vector."""
SQUARE = tensor_with(2, 2, torch.float32, equal=2)
"""A square matrix."""
FLAT = _float_with(0, 2)
"""A floating-point tensor with at most two dimensions."""
ROWS = _float_with(2, 2)
"""A floating-point matrix."""
SEQUENCES = _float_with(3, 3)
"""``(batch, length, channels)`` or ``(batch, channels, length)``."""
IMAGES = replace(
    _float_with(4, 4),
    new_tensor=lambda builder, earlier: NewTensor(
        (_size(builder), _size(builder), draw_extent(builder.choices), draw_extent(builder.choices))
    ),
)
"""``(batch, channels, height, width)``."""
VOLUMES = _float_with(5, 5)
"""``(batch, channels, depth, height, width)``."""
DIMENSIONED = Operand(
    lambda value, earlier: _is_tensor(value) and value.dim() > 0,
    lambda builder, earlier: NewTensor(tuple(_size(builder) for _ in range(2))),
)
"""Any tensor with at least one dimension."""
BOOLEAN = Operand(
    lambda value, earlier: _is_tensor(value) and value.dtype is torch.bool,
    lambda builder, earlier: NewTensor((2, 3), torch.bool),
)
"""A mask."""
WHOLE = Operand(
    lambda value, earlier: _is_tensor(value) and value.dtype in (torch.int64, torch.int32),
    lambda builder, earlier: NewTensor((2, 3), torch.int64, 5),
)
"""A tensor of integers."""
NUMBER = Operand(lambda value, earlier: type(value) in (int, float), lambda builder, earlier: None)
"""A size, or another number computed by the program."""
SEVERAL = Operand(
    lambda value, earlier: isinstance(value, tuple | list) and len(value) > 0, lambda builder, earlier: None
)
"""A tuple or list of values."""


def broadcasts(shape: Shape, other: Shape) -> bool:
    """Return whether tensors of two sizes can be added."""
    return all(a == b or a == 1 or b == 1 for a, b in zip(reversed(shape), reversed(other), strict=False))


def broadcasts_to(shape: Shape, other: Shape) -> bool:
    """Return whether a tensor of size ``shape`` can be expanded to ``other``."""
    return len(shape) <= len(other) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(other), strict=False))


def _narrowed(builder: Drawing, shape: Shape) -> Shape:
    sizes = tuple(1 if builder.choices.sometimes(2) else size for size in shape)
    return sizes[1:] if len(shape) > 1 and builder.choices.sometimes(2) else sizes


def _broadcast_shape(builder: Drawing, shape: Shape) -> Shape:
    kind = builder.choices.below(8)
    if kind > 5 and shape:  # a number for each place along one dimension
        at = builder.choices.below(len(shape))
        return (shape[at], *(1,) * (len(shape) - 1 - at))
    if kind == 5 and len(shape) < 4:
        return (_size(builder), *shape)
    if kind == 1:
        return shape[-1:]
    if kind == 2:
        return tuple(1 if builder.choices.sometimes(2) else size for size in shape)
    if kind == 3:
        return ()
    return shape


def _fits_first(value: Any, earlier: list[Any]) -> bool:
    return _is_tensor(value) and broadcasts(tuple(value.shape), tuple(earlier[0].shape))


def _new_for_first(builder: Drawing, earlier: list[Any]) -> NewTensor:
    dtype = earlier[0].dtype
    if builder.choices.sometimes(4):
        dtype = builder.choices.pick((torch.float64, torch.int64, torch.float32, torch.float16, torch.int32))
    return NewTensor(_broadcast_shape(builder, tuple(earlier[0].shape)), dtype)


OTHER = Operand(_fits_first, _new_for_first)
"""A tensor that can be added to the first operand."""
OTHER_FLOAT = Operand(
    lambda value, earlier: _is_floating(value) and _fits_first(value, earlier),
    lambda builder, earlier: NewTensor(
        _broadcast_shape(builder, tuple(earlier[0].shape)),
        earlier[0].dtype if earlier[0].is_floating_point() else torch.float32,
    ),
)
"""A floating-point tensor that can be added to the first operand."""
INTO = Operand(
    lambda value, earlier: (
        _fits_first(value, earlier)
        and torch.can_cast(value.dtype, earlier[0].dtype)
        and tuple(value.shape) == tuple(earlier[0].shape)[earlier[0].dim() - value.dim() :]
    ),
    lambda builder, earlier: NewTensor(
        builder.choices.pick((tuple(earlier[0].shape), tuple(earlier[0].shape[1:]))), earlier[0].dtype
    ),
)
"""A tensor that can be written into the first operand."""
SAME = Operand(
    lambda value, earlier: _is_tensor(value) and value.shape == earlier[0].shape,
    lambda builder, earlier: NewTensor(tuple(earlier[0].shape), earlier[0].dtype),
)
"""A tensor of the same size as the first operand."""
SAME_KIND = Operand(
    lambda value, earlier: (
        _is_tensor(value)
        and value.shape == earlier[0].shape
        and (value.dtype is torch.bool) == (earlier[0].dtype is torch.bool)
    ),
    SAME.new_tensor,
)
"""A tensor of the same size as the first operand, and a mask if that is one."""


def _of_first(shape: Callable[[Drawing, list[Any]], Shape], fits: Callable[[Any, list[Any]], bool]) -> Operand:
    """Return a floating-point operand of the dtype of the first operand that ``fits``, or a new one of a ``shape``."""
    return Operand(
        lambda value, earlier: _is_floating(value) and value.dtype is earlier[0].dtype and fits(value, earlier),
        lambda builder, earlier: NewTensor(shape(builder, earlier), earlier[0].dtype),
    )


SAME_FLOAT = _of_first(
    lambda builder, earlier: tuple(earlier[0].shape), lambda value, earlier: value.shape == earlier[0].shape
)
"""A tensor of the size and dtype of the first operand."""
ANOTHER = replace(
    SAME_FLOAT,
    fits=lambda value, earlier: SAME_FLOAT.fits(value, earlier) and all(value is not each for each in earlier),
)
"""A tensor of the size and dtype of the first operand, other than the earlier operands."""
EXPANDABLE = Operand(
    lambda value, earlier: _fits_first(value, earlier) and broadcasts_to(tuple(value.shape), tuple(earlier[0].shape)),
    lambda builder, earlier: NewTensor(_narrowed(builder, tuple(earlier[0].shape)), earlier[0].dtype),
)
"""A tensor that can be expanded to the size of the first operand."""
MASK = Operand(
    lambda value, earlier: _is_tensor(value) and value.dtype is torch.bool and _fits_first(value, earlier),
    lambda builder, earlier: NewTensor(_broadcast_shape(builder, tuple(earlier[0].shape)), torch.bool),
)
"""A mask for the first operand."""


FACTOR = _of_first(
    lambda builder, earlier: (earlier[0].shape[-1], _size(builder)),
    lambda value, earlier: (
        value.dim() > 1
        and value.shape[-2] == earlier[0].shape[-1]
        and broadcasts(tuple(value.shape[:-2]), tuple(earlier[0].shape[:-2]))
    ),
)
"""A matrix that the first operand can be multiplied with."""
BATCHED_FACTOR = _of_first(
    lambda builder, earlier: (earlier[0].shape[0], earlier[0].shape[-1], _size(builder)),
    lambda value, earlier: FACTOR.fits(value, earlier) and value.dim() == 3 and value.shape[0] == earlier[0].shape[0],
)
"""As many matrices as the first operand has, to multiply it with."""
WEIGHT = _of_first(
    lambda builder, earlier: (_size(builder), earlier[0].shape[-1]),
    lambda value, earlier: value.dim() == 2 and value.shape[1] == earlier[0].shape[-1],
)
"""The weight of a linear layer for the first operand."""
BIAS = _of_first(
    lambda builder, earlier: (earlier[1].shape[0],), lambda value, earlier: value.shape == earlier[1].shape[:1]
)
"""The bias that belongs to a weight."""
ROWS_AS_MANY = _of_first(
    lambda builder, earlier: (earlier[0].shape[0], _size(builder)),
    lambda value, earlier: value.dim() == 2 and value.shape[0] == earlier[0].shape[0],
)
"""A matrix with as many rows as the first operand."""
PER_COLUMN = _of_first(
    lambda builder, earlier: tuple(earlier[0].shape[-1:]), lambda value, earlier: value.shape == earlier[0].shape[-1:]
)
"""A vector with an element for each place along the last dimension of the first operand."""
SCORES = _of_first(
    lambda builder, earlier: (earlier[0].shape[-2],) * 2,
    lambda value, earlier: (
        value.dim() > 1
        and value.shape[-2] == value.shape[-1] == earlier[0].shape[-2]
        and broadcasts_to(tuple(value.shape), (*earlier[0].shape[:-1], earlier[0].shape[-2]))
    ),
)
"""A matrix with an element for each pair of rows of the first operand."""


def _made(new_tensor: Callable[[Drawing, list[Any]], NewTensor]) -> Operand:
    """Return an operand that is always a new tensor, never a value of the program."""
    return Operand(lambda value, earlier: False, new_tensor)


def _few_sizes(builder: Drawing) -> Shape:
    return tuple(_size(builder) for _ in range(1 + builder.choices.below(2)))


STATISTICS = _made(
    lambda builder, earlier: NewTensor(tuple(earlier[0].shape[1:]), earlier[0].dtype, kind="buffer"),
)
"""A buffer for statistics of the first operand over its first dimension."""
COUNTER = _made(
    lambda builder, earlier: NewTensor((), builder.choices.pick((torch.float32, torch.int64)), kind="buffer"),
)
"""A buffer that holds one number."""
INDICES = _made(lambda builder, earlier: NewTensor(_few_sizes(builder), torch.int64, 4))
"""Integers from 0 to 3."""
TABLE = _made(lambda builder, earlier: NewTensor((builder.choices.pick((4, 5)), _size(builder)), kind="parameter"))
"""A parameter whose rows are looked up."""
POSITIONS = _made(lambda builder, earlier: NewTensor((_size(builder),), torch.int64, earlier[0].shape[-1]))
"""Places along the last dimension of the first operand."""
PLACES = _made(lambda builder, earlier: NewTensor(_few_sizes(builder), torch.int64, earlier[0].shape[-1]))
"""Places along the last dimension of the first operand, in one or two dimensions."""
PLACE_OF_EACH = _made(
    lambda builder, earlier: NewTensor((*earlier[0].shape[:-1], _size(builder)), torch.int64, earlier[0].shape[-1])
)
"""Places along the last dimension of the first operand, for each of its rows."""
CLASSES = _made(lambda builder, earlier: NewTensor((earlier[0].shape[0],), torch.int64, earlier[0].shape[-1]))
"""The number of a column for each row of a matrix."""

INDEX_OF_ROWS = _made(lambda builder, earlier: NewTensor(tuple(earlier[0].shape[:1]), torch.int64, earlier[0].shape[0]))
"""As many places along the first dimension of the first operand as its size."""
INDEX_OF_ALL = _made(lambda builder, earlier: NewTensor(tuple(earlier[0].shape), torch.int64, min(earlier[0].shape)))
"""A place along any dimension for each element of the first operand."""
CHANNELS = _of_first(
    lambda builder, earlier: tuple(earlier[0].shape[1:2]), lambda value, earlier: value.shape == earlier[0].shape[1:2]
)
"""A vector with an element for each channel of the first operand."""
KERNEL = _of_first(
    lambda builder, earlier: (earlier[0].shape[1], earlier[0].shape[1], *(1,) * (earlier[0].dim() - 2)),
    lambda value, earlier: (
        value.dim() == earlier[0].dim() > 2 and tuple(value.shape[:2]) == tuple(earlier[0].shape[1:2]) * 2
    ),
)
"""The weight of a convolution of the first operand, with equally many channels."""
VECTOR = _of_first(lambda builder, earlier: (_size(builder),), lambda value, earlier: value.dim() == 1)
"""A vector of any size."""
SCALAR = _of_first(lambda builder, earlier: (), lambda value, earlier: value.dim() == 0)
"""A tensor of one number."""
MULTIPLICAND = _of_first(
    lambda builder, earlier: (*earlier[0].shape[:-2], earlier[0].shape[-2], _size(builder)),
    lambda value, earlier: (
        value.dim() == earlier[0].dim() > 1 and tuple(value.shape[:-1]) == tuple(earlier[0].shape[:-1])
    ),
)
"""A matrix with as many rows as the first operand, as the right side of a system of equations."""
PART = _of_first(
    lambda builder, earlier: tuple(earlier[0].shape[1:]), lambda value, earlier: value.shape == earlier[0].shape[1:]
)
"""A tensor of the size of the first operand without its first dimension."""
GRID = _of_first(
    lambda builder, earlier: (earlier[0].shape[0], *earlier[0].shape[2:], earlier[0].dim() - 2),
    lambda value, earlier: (
        value.dim() == earlier[0].dim() > 3
        and value.shape[0] == earlier[0].shape[0]
        and value.shape[-1] == value.dim() - 2
    ),
)
"""Positions in the images of the first operand."""
SAME_WHOLE = Operand(
    lambda value, earlier: _is_tensor(value) and value.dtype is earlier[0].dtype and value.shape == earlier[0].shape,
    lambda builder, earlier: NewTensor(tuple(earlier[0].shape), earlier[0].dtype),
)
"""A tensor of the size and dtype of the first operand, whatever the dtype."""

Drawn = Callable[[Drawing, list[Any]], Any]


def one_of(*alternatives: Any) -> Drawn:
    """Return a function that draws one of a few constants, in half of the cases one that is asked for."""

    def draw(builder: Drawing, objects: list[Any]) -> Any:
        suggested = [each for each in alternatives if type(each) in (int, float, str) and each in builder.constants]
        return builder.choices.pick(suggested if suggested and builder.choices.sometimes(2) else alternatives)

    return draw


def dimension(builder: Drawing, objects: list[Any]) -> int:
    """Return a dimension of the first operand, counted from either end; sometimes one that is asked for."""
    count = max(1, objects[0].dim())
    suggested = [each for each in builder.constants if type(each) is int and -count <= each < count]
    if suggested and builder.choices.sometimes(3):
        return builder.choices.pick(suggested)
    number = builder.choices.below(2 * count)
    return -1 - number if number < count else number - count


def dimension_of_index(builder: Drawing, objects: list[Any]) -> int:
    """Return a dimension of the first operand; if another operand is an index, one that it fits."""
    drawn = dimension(builder, objects)
    indices = [each for each in objects[1:] if _is_tensor(each) and not each.is_floating_point() and each.dim() == 1]
    shape = objects[0].shape
    if not indices or not shape or shape[drawn] == len(indices[0]):
        return drawn
    return builder.choices.pick((0, -len(shape)))


def dimensions(builder: Drawing, objects: list[Any]) -> Any:
    """Return one dimension, or several."""
    count = objects[0].dim()
    if count < 2 or builder.choices.mostly(3):
        return dimension(builder, objects)
    return (-1, -2) if builder.choices.mostly(2) else (0, count - 1)


def order(builder: Drawing, objects: list[Any]) -> tuple[int, ...]:
    """Return a permutation of the dimensions of the first operand."""
    remaining = list(range(objects[0].dim()))
    return tuple(remaining.pop(builder.choices.below(len(remaining))) for _ in range(len(remaining)))


def size(of: int) -> Drawn:
    """Return a function that returns the size of the first operand in a dimension."""
    return lambda builder, objects: int(objects[0].shape[of])


def size_like(of: int) -> Drawn:
    """Return a function that draws a size: often the first operand's, or a size asked for, or slightly more than that.

    The last is 13, say, for a pass that compares with 8: it may change only larger sizes, and be wrong there.
    """

    def draw(builder: Drawing, objects: list[Any]) -> int:
        if builder.choices.sometimes(4):
            return int(objects[0].shape[of])
        if builder.choices.sometimes(ANOTHER_SIZE):
            return max(1, builder.choices.pick(objects[0].shape))
        suggested = [each for each in builder.constants if type(each) is int and MOST_OF_A_SIZE >= each > 2]
        if suggested and builder.choices.sometimes(3):
            return builder.choices.pick(suggested) + builder.choices.pick((1, 0, 5))
        return _size(builder)

    return draw


def drawn_size(builder: Drawing, objects: list[Any]) -> int:
    """Return a size."""
    return _size(builder)


def last_size(builder: Drawing, objects: list[Any]) -> int:
    """Return a size, mostly the last size of the latest value."""
    return builder.sizes[-1] if builder.sizes and builder.choices.mostly(4) else _size(builder)


def shape_beside(builder: Drawing, objects: list[Any]) -> tuple[int, ...]:
    """Return the size of a tensor that can be added to the latest value."""
    return _broadcast_shape(builder, tuple(builder.sizes)) or (1,)


def number_of(*alternatives: float) -> Drawn:
    """Return a function that draws one of a few numbers, or one of those that are asked for."""

    def draw(builder: Drawing, objects: list[Any]) -> float:
        suggested = [each for each in builder.constants if not isinstance(each, str)]
        if suggested and builder.choices.sometimes(3):
            return builder.choices.pick(suggested)
        return builder.choices.pick(alternatives)

    return draw


number = number_of(2, 0.5, 1, 3.0, -1, 0, 1.0, -0.7, 1e-3, 1 / 3, 0.0, 100, -2.0, -3)
"""A number, also 0, 1 and negative ones."""


def dtype_of_first(builder: Drawing, objects: list[Any]) -> Any:
    """Return the dtype of the first operand, omitted if it is the default."""
    return OMITTED if objects[0].dtype is torch.float32 else objects[0].dtype


def argument(name: str, draw: Drawn, one_in: int = 1) -> Argument:
    """Return an argument by keyword, or in the hole of its name."""
    return Argument(name, draw, one_in)


def leading(name: str, draw: Drawn, one_in: int = 1) -> Argument:
    """Return an argument by keyword, or in its place after the operands."""
    return Argument(name, draw, one_in, leading=True)


def place(name: str, draw: Drawn) -> Argument:
    """Return a positional argument."""
    return Argument(name, draw, 1, True)


DTYPE = Argument("dtype", dtype_of_first)
"""The dtype of a module's parameters."""
DIM = leading("dim", dimension)
"""A dimension, always given."""
DIM_OF_PARTS = leading("dim", lambda builder, objects: dimension(builder, objects[0]))
"""A dimension of the first part, always given."""
KEEPDIM = leading("keepdim", one_of(True, False), 3)
"""True to keep a reduced dimension."""
