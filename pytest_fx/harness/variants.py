"""Variants of the inputs of a program: other sizes, other strides, and NaN and infinite values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import torch

from pytest_fx.harness.evaluation import Arguments, behind, places
from pytest_fx.harness.snapshot import is_strided


def with_batch(arguments: Arguments, size: int) -> Arguments | None:
    """Return arguments with ``size`` samples; None if they have as many already.

    The batch is the first dimension of the first tensor with several dimensions. It changes in all such tensors of the
    same batch size.
    """
    batch = next((tensor.shape[0] for tensor in arguments.tensors if tensor.dim() > 1), size)
    if batch == size:
        return None

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if not is_strided(tensor) or tensor.dim() < 2 or tensor.shape[0] != batch:
            return tensor
        if batch == 0:
            return tensor.new_ones((size, *tensor.shape[1:]))
        return tensor.index_select(0, torch.arange(size, device=tensor.device) % batch)

    return arguments.map(resized)


def _can_be_turned(tensor: torch.Tensor) -> bool:
    return is_strided(tensor) and tensor.dim() > 1 and tensor.numel() > 1


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values, with the last dimension varying slowest in memory."""
    return tensor.movedim(-1, 0).clone(memory_format=torch.contiguous_format).movedim(0, -1)


def non_contiguous(arguments: Arguments) -> Arguments | None:
    """Return arguments with the last dimension of every tensor varying slowest in memory; None if that is no change."""
    if not any(map(_can_be_turned, arguments.tensors)):
        return None
    return arguments.map(lambda tensor: _turned(tensor) if _can_be_turned(tensor) else tensor)


def part_of_larger(arguments: Arguments) -> Arguments | None:
    """Return arguments with the same values and strides, each tensor at an offset in a larger memory."""
    if not any(is_strided(tensor) and tensor.numel() for tensor in arguments.tensors):
        return None

    return arguments.map(
        lambda tensor: behind(tensor.detach(), OFFSET) if is_strided(tensor) and tensor.numel() else tensor
    )


OFFSET = 16
"""Elements in memory before an input that is part of a larger tensor; the input stays aligned."""


def non_finite(arguments: Arguments) -> Arguments | None:
    """Return arguments with infinities in floating-point tensors of several elements, and NaN in every second one."""
    if not any(tensor.is_floating_point() and tensor.numel() for tensor in arguments.tensors):
        return None
    count = iter(range(len(arguments.tensors)))

    def poisoned(tensor: torch.Tensor) -> torch.Tensor:
        if not (is_strided(tensor) and tensor.is_floating_point() and tensor.numel()):
            return tensor
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).flatten()
        if next(count) % 2 == 0:
            flat[0] = torch.nan
        if len(flat) > 1:
            flat[-1] = -torch.inf
            flat[len(flat) // 2] = torch.inf
        return flat.reshape(tensor.shape)

    return arguments.map(poisoned)


def _with_floats(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Arguments], Arguments | None]:
    """Return a function that applies ``change`` to every floating-point tensor of arguments; None if there is none."""

    def changeable(tensor: torch.Tensor) -> bool:
        return is_strided(tensor) and tensor.is_floating_point() and tensor.numel() > 0

    def variant(arguments: Arguments) -> Arguments | None:
        if not any(map(changeable, arguments.tensors)):
            return None
        return arguments.map(lambda tensor: change(tensor.detach()) if changeable(tensor) else tensor)

    return variant


def with_one_changed(tensor: torch.Tensor, place: float = 0.5) -> torch.Tensor:
    """Return a copy with another element at a relative position in a tensor, 0 for the first and 1 for the last."""
    flat = tensor.clone(memory_format=torch.contiguous_format).flatten()
    index = round(place * (len(flat) - 1))
    flat[index] = 1 - flat[index]
    return flat.reshape(tensor.shape)


_ALONE = re.compile(r"input(.+) not contiguous alone")
PART_OF_LARGER = "inputs that are parts of larger tensors"


def not_contiguous_alone(arguments: Arguments) -> list[str]:
    """Return the names of variants in which a single one of several inputs is not contiguous."""
    turnable = [place for place, tensor in places(arguments).items() if _can_be_turned(tensor)]
    return [f"input{place} not contiguous alone" for place in turnable] if len(turnable) > 1 else []


def with_one_turned(arguments: Arguments, variant: str) -> Arguments | None:
    """Return the variant for a name of :func:`not_contiguous_alone`; None for any other name."""
    match = _ALONE.fullmatch(variant)
    chosen = None if match is None else places(arguments).get(match[1])
    if chosen is None:
        return None
    return arguments.map(lambda tensor: _turned(tensor) if tensor is chosen else tensor)


ONE_CHANGED, LARGER = "inputs with one element changed", "inputs ten times as large"
NON_CONTIGUOUS, NON_FINITE = "non-contiguous inputs", "inputs with NaN and infinities"
OTHER_VALUES: dict[str, Callable[[Arguments], Arguments | None]] = {
    "inputs of opposite signs": _with_floats(torch.neg),
    LARGER: _with_floats(lambda tensor: tensor * 10),
    "inputs of zeros": _with_floats(torch.zeros_like),
    ONE_CHANGED: _with_floats(with_one_changed),
}
"""Functions that make inputs with values that example inputs seldom have, by the names of the variants."""
VARIANTS: dict[str, Callable[[Arguments], Arguments | None]] = {
    NON_CONTIGUOUS: non_contiguous,
    PART_OF_LARGER: part_of_larger,
    NON_FINITE: non_finite,
    **OTHER_VALUES,
}
"""Functions that make the variants of the same size, by name; they return None for inputs without such a variant."""
OF_SAME_VALUES = (NON_CONTIGUOUS, PART_OF_LARGER)
"""Variants whose values are those of the example."""
AGAIN, AFTERWARDS = "inputs given a second time", "other inputs in a third call"
"""The calls of a row after the first; the state is not reset between them."""
_BATCH = "inputs of batch size "


def of_batch(size: int) -> str:
    """Return the name of the variant with ``size`` samples."""
    return f"{_BATCH}{size}"


def batch_of(variant: str) -> int | None:
    """Return the number of samples of a variant by its name; None if it is not a variant of the batch size.

    >>> batch_of(of_batch(3)), batch_of("non-contiguous inputs")
    (3, None)
    """
    return int(variant.removeprefix(_BATCH)) if variant.startswith(_BATCH) else None


_OTHER_SIZE = re.compile(r"inputs of size (\d+) (?:in dimension (\d+)(?: of input(.+))?|in place of (\d+))")


def other_sizes(arguments: Arguments, *, longer: bool = True) -> list[str]:
    """Return the names of variants with another size along one dimension, or in all places of a repeated size.

    The first dimension is the batch and does not change, unless no tensor has another one. Sizes are halved, and also
    doubled if ``longer``. A size that several inputs have in a dimension also changes in each of them alone.

    >>> other_sizes(Arguments((torch.ones(3, 8),)))
    ['inputs of size 4 in dimension 1', 'inputs of size 16 in dimension 1']
    """
    tensors = {place: tensor for place, tensor in places(arguments).items() if is_strided(tensor)}
    shapes = [tensor.shape for tensor in tensors.values()]
    most = max(map(len, shapes), default=0)
    alone = [
        f"inputs of size {size // 2 if size > 1 else 2} in dimension {dimension} of input{place}"
        for place, tensor in tensors.items()
        for dimension, size in enumerate(tensor.shape)
        if size and sum(len(shape) > dimension and shape[dimension] == size for shape in shapes) > 1
    ]
    changes: list[tuple[int, str]] = []
    for dimension in range(min(1, most - 1), most) if most else ():
        old = next(shape[dimension] for shape in shapes if len(shape) > dimension)
        changes.append((old, f"in dimension {dimension}"))
    count = Counter(size for shape in shapes for size in shape)
    changes += [(old, f"in place of {old}") for old in count if count[old] > 1]
    sizes = [(where, size) for old, where in changes for size in (old // 2, 2 * old if longer else 0)]
    return alone + [f"inputs of size {size} {where}" for where, size in sizes if size]


def with_other_size(arguments: Arguments, variant: str) -> Arguments | None:
    """Return the variant for a name of :func:`other_sizes`; None for any other name.

    Along a dimension that becomes longer, the elements are repeated.
    """
    match = _OTHER_SIZE.fullmatch(variant)
    if match is None:
        return None
    size, only = int(match[1]), None if match[2] is None else int(match[2])
    tensors = {place: tensor for place, tensor in places(arguments).items() if is_strided(tensor)}
    chosen = tensors if match[3] is None else {match[3]: tensors[match[3]]}
    old = int(match[4]) if only is None else next(t.shape[only] for t in chosen.values() if t.dim() > only)
    changing = set(map(id, chosen.values()))

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        for dimension in range(tensor.dim()) if id(tensor) in changing else ():
            if only in (None, dimension) and tensor.shape[dimension] == old:
                indices = torch.arange(size, device=tensor.device) % old
                tensor = tensor.index_select(dimension, indices)
        return tensor

    return arguments.map(resized)
