"""Inputs for a reference and a candidate: those of the user, and others drawn from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch

from pytest_fx.errors import InputError
from pytest_fx.harness.domains import InputDomain
from pytest_fx.harness.evaluation import Arguments, places
from pytest_fx.harness.input_sets import InputSets
from pytest_fx.harness.variants import (
    NON_FINITE,
    OTHER_VALUES,
    PART_OF_LARGER,
    VARIANTS,
    not_contiguous_alone,
    with_one_changed,
    with_one_turned,
    with_other_size,
)

SIZES = (0, 1, 2, 3, 7, 15, 17, 33, 64, 65, 129)
"""Sizes of a free dimension: zero, one, primes, and the neighbours of powers of two."""
LONG, MEDIUM = 4099, 1031
"""A size of the last dimension, and of any dimension, that exceeds the block size of kernels."""
FIRST_SIZES = 2
"""Sizes of a dimension to try before it counts as fixed, if the reference refuses them all."""
MOST_ELEMENTS = 300_000
"""Most elements of inputs of another size, but for the largest inputs."""
LARGE = 2_200_000
"""Elements of the largest inputs: a candidate may take a shortcut for large inputs only. Gradients are left out."""
FACTORS = (1e-4, 100.0, 1e4)
"""Scaling factors of values: tiny, large enough that the exponential overflows, and huge."""
SMALL = 1e-4
"""The factor of every second slice: a candidate may leave out rows or columns that are small beside the others."""
PLACES = (0.0, 0.12, 0.35, 0.62, 0.87, 1.0)
"""Relative positions of a single changed element: a fingerprint from sampled elements may miss it."""
BATCH = 40
"""Consecutive calls whose outputs are all kept."""
BATCHES = 8
"""Batches of consecutive calls, of small inputs; a count, not a time, so that load changes no verdict."""
ELEMENTS_OF_CALLS = 1 << 24
"""Most elements of the inputs of all batches: of larger inputs there are fewer batches, and at least one."""
SAMPLES = 4
"""Input sets from the user's function, or drawn from the user's example."""


@dataclass(frozen=True, slots=True)
class InputSet:
    """Inputs of one call, with a description."""

    name: str
    """The description: how they differ from the inputs as given."""
    arguments: Arguments
    """The inputs."""
    law: str = "other values"
    """The law that the candidate breaks if its outputs are wrong for them."""
    dimension: str = ""
    """The dimension with another size, or empty; it is free if the reference takes that size."""
    is_required: bool = False
    """Whether the reference must take them."""
    forward_only: bool = False
    """Whether gradients are left out, since values make them saturate or vanish, or since the inputs are large."""


def arguments_of(given: Any) -> Arguments:
    """Convert the user's inputs to arguments: a tuple of positional ones, a dict of named ones, or a single one."""
    if isinstance(given, Arguments):
        return given
    if isinstance(given, dict):
        return Arguments((), {str(name): value for name, value in given.items()})
    return Arguments(tuple(given) if isinstance(given, tuple | list) else (given,))


def samples(inputs: Any, seed: int) -> list[Arguments]:
    """Return several input sets: a callable's results for several seeds, or an example and others drawn from it.

    Raises:
        InputError: the callable fails, or returns the same for each seed; no input of the domain can be derived; or a
            tensor cannot be sent to the processes.
    """
    if isinstance(inputs, InputSets):
        _require_plain(inputs.arguments(0, seed))
        return [inputs.arguments(number, seed) for number in range(max(SAMPLES, inputs.count or 0))]
    if not callable(inputs):
        example = arguments_of(inputs)
        _require_plain(example)
        return [example, *(redrawn(example, seed + number) for number in range(1, SAMPLES))]
    try:
        several = [arguments_of(inputs(seed + number)) for number in range(SAMPLES)]
    except Exception as error:
        raise InputError(
            "the callable for inputs fails",
            why=f"{type(error).__name__}: {error}",
            remedy="give def inputs(seed): return (x,)",
        ) from error
    _require_plain(several[0])
    if all(_is_same(several[0], other) for other in several[1:]):
        raise InputError(
            "the callable for inputs returns the same for each seed",
            why="a result cached from an earlier call would be right each time",
            remedy="draw with torch.Generator().manual_seed(seed)",
        )
    return several


def _require_plain(arguments: Arguments) -> None:
    """Raise ``InputError`` for a tensor that is not on the CPU, or has no strides."""
    for tensor in arguments.tensors:
        if tensor.device.type != "cpu":
            raise InputError(
                f"judge got inputs on {tensor.device}",
                why="the processes of reference and candidate copy inputs to their device themselves",
                remedy='give inputs on the CPU, and device="cuda"',
            )
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            raise InputError(
                f"judge got an input of layout {tensor.layout} and dtype {tensor.dtype}",
                why="other inputs are drawn and sent by their elements, so they must be plain strided tensors",
                remedy="give its parts, and make the tensor from them in reference and candidate",
            )


def _is_same(one: Arguments, other: Arguments) -> bool:
    pairs = zip(one.tensors, other.tensors, strict=False)
    return len(one.tensors) == len(other.tensors) and all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def redrawn(arguments: Arguments, seed: int) -> Arguments:
    """Return arguments with other values: shuffle the elements of each tensor, and shrink numbers by up to 2 %."""
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.numel():
            return tensor
        flat = tensor.detach().reshape(-1)
        return flat[torch.randperm(flat.numel(), generator=generator)].reshape(tensor.shape).contiguous()

    return arguments.map(draw).shrunk(seed)


Item = TypeVar("Item")


class Drawn(Generic[Item]):
    """Inputs that are drawn when they are first iterated over, and kept for the next time unless they are large."""

    def __init__(self, draw: Callable[[], Iterator[Item]], example: Arguments) -> None:
        self._draw, self._source = draw, draw()
        self._items: list[Item] = []
        self._is_small = sum(tensor.numel() for tensor in example.tensors) <= MOST_ELEMENTS

    def __iter__(self) -> Iterator[Item]:
        if not self._is_small:
            yield from self._draw()
            return
        yield from self._items
        for item in self._source:
            self._items.append(item)
            yield item


def redrawn_in(domain: InputDomain, arguments: Arguments, seed: int) -> Arguments:
    """Return arguments of the domain with other values; the same if none near to the drawn ones is in the domain."""
    mended = domain.mended(redrawn(arguments, seed))
    return arguments if mended is None else mended


def batches_of_calls(several: Sequence[Arguments], domain: InputDomain) -> Iterator[list[Arguments]]:
    """Yield batches of inputs for consecutive calls. Their number follows from the size of the inputs alone."""
    elements_of_batch = BATCH * sum(tensor.numel() for tensor in several[0].tensors)
    for batch in range(max(1, min(BATCHES, ELEMENTS_OF_CALLS // max(1, elements_of_batch)))):
        numbers = range(batch * BATCH, (batch + 1) * BATCH)
        yield [redrawn_in(domain, several[number % len(several)], 5_000 + number) for number in numbers]


def input_sets(several: Sequence[Arguments], seed: int, domain: InputDomain) -> Iterator[InputSet]:
    """Yield the input sets of a judgement that are in the domain, or can be made so; the most informative first."""
    for each in _all_input_sets(several, seed):
        arguments = each.arguments if each.is_required else domain.mended(each.arguments)
        if arguments is not None:
            yield replace(each, arguments=arguments)


def _all_input_sets(several: Sequence[Arguments], seed: int) -> Iterator[InputSet]:
    first = several[0]
    yield InputSet("inputs as given", first, "values", is_required=True)
    for number, each in enumerate(several[1:], 2):
        yield InputSet(f"inputs number {number}", each, "values", is_required=True)
    for name in OTHER_VALUES:
        yield from _of(name, OTHER_VALUES[name](first))
    for factor in FACTORS:
        scaled = _floats(first, lambda tensor, factor=factor: tensor * factor)
        yield InputSet(f"inputs multiplied by {factor:g}", scaled, forward_only=factor > 1)
    for dimension in (-1, 0):
        uneven = _floats(first, lambda tensor, dimension=dimension: _with_small_slices(tensor, dimension))
        where = "last" if dimension else "first"
        yield InputSet(f"inputs with every second slice of the {where} dimension multiplied by {SMALL:g}", uneven)
    yield InputSet("inputs of equal elements", _floats(first, _equal_elements), forward_only=True)  # gradients cancel
    yield InputSet("inputs far below zero", _floats(first, _far_below_zero), forward_only=True)
    yield InputSet("inputs rounded to halves", _floats(first, _halves), forward_only=True)  # kinks have no one gradient
    for place in PLACES:
        changed = _floats(first, lambda tensor, place=place: with_one_changed(tensor, place))
        yield InputSet(f"inputs as given but for an element at {place:g} of all", changed)
    yield InputSet("inputs as given in reverse order", first.map(_reversed))
    yield (
        InputSet("integers at their edges", first.map(_at_edges))
        if _has_integers(first)
        else InputSet("inputs again", first)
    )
    for name in ("non-contiguous inputs", PART_OF_LARGER):
        yield from _of(name, VARIANTS[name](first))
    yield InputSet("inputs that are every second element of larger tensors", first.map(_with_gaps))
    for place, tensor in places(first).items():
        if tensor.dim() > 1 and len(tensor) > 1:
            expanded = tensor[:1].expand(tensor.shape)
            replaced = first.map(lambda other, tensor=tensor, expanded=expanded: expanded if other is tensor else other)
            yield InputSet(f"input{place} with a stride of zero in dimension 0", replaced)
    for name in not_contiguous_alone(first):
        yield from _of(name, with_one_turned(first, name))
    yield from _of_other_sizes(first, seed)
    if (poisoned := VARIANTS[NON_FINITE](first)) is not None:
        yield InputSet(NON_FINITE, poisoned, forward_only=True)
    if _has_integers(first):  # last: kernels that do not check indices may crash the process
        yield InputSet(
            "integers a million times as large",
            first.map(lambda tensor: tensor * 10**6 if _is_integer(tensor) else tensor),
        )


def _of(name: str, arguments: Arguments | None) -> Iterator[InputSet]:
    if arguments is not None:
        yield InputSet(name, arguments)


def _of_other_sizes(first: Arguments, seed: int) -> Iterator[InputSet]:
    """Yield inputs of other sizes: for each dimension in turn, and for each size that occurs several times."""
    last = max((tensor.dim() for tensor in first.tensors), default=1) - 1
    for dimension, old in _dimensions(first):
        elements = max(tensor.numel() for tensor in first.tensors)
        large = LARGE * old // max(1, elements) if dimension == "in dimension 0" else old
        long = LONG if dimension.startswith(f"in dimension {last}") else MEDIUM
        for size in dict.fromkeys((old + 1, 1, *SIZES, 2 * old, large, long)):
            if not size and not dimension.startswith("in dimension 0"):
                continue  # a maximum over no elements is an error in some right programs
            name = f"inputs of size {size} {dimension}"
            if size == old or (resized := with_other_size(first, name)) is None:
                continue
            if sum(tensor.numel() for tensor in resized.tensors) > 2 * LARGE:
                continue
            is_large = sum(tensor.numel() for tensor in resized.tensors) > MOST_ELEMENTS
            if size == large or not is_large:
                arguments = redrawn(resized, seed + size)
                yield InputSet(name, arguments, "other sizes", dimension, forward_only=is_large)


def _dimensions(first: Arguments) -> Iterator[tuple[str, int]]:
    tensors = places(first)
    counts = Counter(size for tensor in tensors.values() for size in tensor.shape)
    deepest = max((tensor.dim() for tensor in tensors.values()), default=0)
    for dimension in range(deepest):
        sizes = {tensor.shape[dimension] for tensor in tensors.values() if tensor.dim() > dimension}
        if len(sizes) == 1 and (old := sizes.pop()):
            yield f"in dimension {dimension}", old
    for size, count in counts.items():
        if size and count > 1:
            yield f"in place of {size}", size
    for place, tensor in tensors.items() if len(tensors) > 1 else ():
        for dimension, old in enumerate(tensor.shape):
            if old and counts[old] == 1:  # equal sizes of several dimensions must stay equal
                yield f"in dimension {dimension} of input{place}", old


def _floats(arguments: Arguments, change: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
    """Return arguments with every tensor of floating-point elements changed."""
    return arguments.map(
        lambda tensor: change(tensor.detach()) if tensor.is_floating_point() and tensor.numel() else tensor
    )


def _equal_elements(tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, float(tensor.double().abs().max()) or 1.0)


def _far_below_zero(tensor: torch.Tensor) -> torch.Tensor:
    return -1e5 * (1 + tensor.abs())


def _halves(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor * 2).round() / 2


def _with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same elements, with a stride of two in the last dimension."""
    if not tensor.dim():
        return tensor
    return torch.stack((tensor, tensor), -1).flatten(-2)[..., ::2]


def _with_small_slices(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
    if not tensor.dim():
        return tensor
    factors = torch.ones_like(tensor)
    factors.transpose(0, dimension)[1::2] = SMALL
    return tensor * factors


def _reversed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).flip(0).reshape(tensor.shape).contiguous()


def _has_integers(arguments: Arguments) -> bool:
    return any(_is_integer(tensor) for tensor in arguments.tensors)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _at_edges(tensor: torch.Tensor) -> torch.Tensor:
    """Replace the elements of an integer tensor by its smallest and its largest one, alternating."""
    if not _is_integer(tensor) or not tensor.numel():
        return tensor
    edges = torch.stack((tensor.min(), tensor.max()))
    return edges[torch.arange(tensor.numel()) % 2].reshape(tensor.shape)
