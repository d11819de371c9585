"""What is seen of one call of a program: its answer, what it wrote to its inputs, whose memory it answers in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .evaluation import Arguments, evaluate
from .structure import leaves


@dataclass(frozen=True, slots=True)
class Observation:
    """One call of a program."""

    answer: Any
    """What it returned."""
    written: dict[str, torch.Tensor]
    """The inputs that it wrote to, as it left them, by their places: ``[0]`` or ``['mask']``."""
    shared: frozenset[tuple[str, str]]
    """Pairs of places whose tensors have memory in common: an output and an input, or two outputs."""


def observe(
    program: Callable[..., Any], arguments: Arguments, dtype: torch.dtype, thread_count: int | None = None
) -> Observation:
    """Call ``program`` as :func:`~.evaluation.evaluate` does, and note what else there is to see."""
    given = list[Arguments]()

    def watched(*args: Any, **kwargs: Any) -> Any:
        given.append(Arguments(args, kwargs))
        return program(*args, **kwargs)

    answer = evaluate(watched, arguments, dtype, thread_count)
    inputs = dict(input_places(given[0]))
    written = {place: tensor for place, tensor in inputs.items() if tensor._version}
    return Observation(answer, written, frozenset(_shared(answer, inputs)))


def input_places(arguments: Arguments) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor among ``arguments`` with its place, as in ``[0]`` or ``['mask']``."""
    for part in (arguments.args, arguments.kwargs):
        for place, value in leaves(part):
            if isinstance(value, torch.Tensor):
                yield place, value


def memory_notes(expected: Observation, actual: Observation) -> list[str]:
    """Return a sentence for each thing about the memory of an answer that is not as in ``expected``.

    Contracts promise values. These are worth a line because what works on one layout, ``x.view(-1)`` say, may raise on
    another, and because writing to a tensor changes those that share its memory.
    """
    notes = list[str]()
    for (place, wanted), (_, found) in zip(leaves(expected.answer), leaves(actual.answer), strict=False):
        if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor):
            classes = stride_class(wanted), stride_class(found)
            if classes[0] != classes[1]:
                notes.append(f"output{place} is {classes[0]} in eager and {classes[1]} in the program")
    for verb, pairs in (
        ("shares memory in the program only", actual.shared - expected.shared),
        ("shares memory in eager only", expected.shared - actual.shared),
    ):
        notes += [f"{one} {verb}: with {other}" for one, other in sorted(pairs)]
    return notes


def stride_class(tensor: torch.Tensor) -> str:
    """Return how the elements of a tensor lie in memory: contiguous, channels last, or neither.

    >>> stride_class(torch.ones(2, 3).t())
    'not contiguous'
    """
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return "contiguous"
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()]):
        return "channels last"
    return "not contiguous"


def _shared(answer: Any, inputs: dict[str, torch.Tensor]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of an output and an input, or of two outputs, that have memory in common."""
    owners: dict[int, list[str]] = {}
    for place, tensor in inputs.items():
        if (address := _address(tensor)) is not None:
            owners.setdefault(address, []).append(f"input{place}")
    for place, value in leaves(answer):
        address = _address(value) if isinstance(value, torch.Tensor) else None
        if address is not None:
            sharing = owners.setdefault(address, [])
            yield from ((f"output{place}", other) for other in sharing)
            sharing.append(f"output{place}")


def _address(tensor: torch.Tensor) -> int | None:
    """Where the memory of a tensor starts; None for one without elements or without memory of its own."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
        return None
    return tensor.untyped_storage().data_ptr() or None
