"""Holding a pass to its contract on a model: the one way from a subject and a pass to answers side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fx.errors import note_lines
from fx.passes import Approximate, Close, Contract, Exact, Pass
from pytest_fx.errors import ContractViolation

from .contracts import Comparison, near
from .observation import Observation, input_places, memory_notes
from .rewriting import Rewriting, rewrite_in, rewritten
from .subject import Subject


@dataclass(frozen=True, slots=True)
class Verification:
    """What a pass made of a model, and what both compute."""

    rewriting: Rewriting
    """The transformed program in the working dtype."""
    comparison: Comparison
    """Its answers beside eager's."""


def verify(
    subject: Subject, pass_: Pass, contract: Contract, label: str, *, leaves: bool = True, draws: int | None = None
) -> Verification:
    """Apply ``pass_`` to fresh captures of ``subject`` and run what comes out. Nothing is judged yet: see ``require``.

    ``draws`` is how many sets of inputs it is called with; None for as many as the model was.

    Raises :class:`~pytest_fx.errors.ContractViolation` if the pass damages the original or returns no program.
    """
    __tracebackhide__ = True
    rewriting = rewritten(subject, pass_, leaves=leaves)
    program64: nn.Module | None = None
    # What is approximate by design, a quantizer say, need not exist in float64.
    if not isinstance(contract, Approximate):
        program64 = rewrite_in(subject, pass_, torch.float64, leaves=leaves)
    return Verification(rewriting, compare(subject, rewriting.program, program64, label, draws))


def compare(
    subject: Subject, program: nn.Module, program64: nn.Module | None, label: str, draws: int | None = None
) -> Comparison:
    """Run a program, in the working dtype and in float64 if it exists there, beside the model.

    Float64 is left out on inputs that are not needed to tell how large rounding errors are, if all is well there.

    ``draws`` is how many sets of inputs it is called with; None for as many as the model was.
    """
    __tracebackhide__ = True
    dtype = subject.dtype
    count = subject.draws if draws is None else draws
    eager, actual = subject.eager_observations(dtype, count), _observed(subject, program, dtype, label, count)
    wide = min(count, subject.wide_draws)
    if not alike(subject, eager[wide:], actual[wide:]):
        wide = count
    eager64 = subject.eager_observations(torch.float64, wide)
    actual64 = None if program64 is None else _observed(subject, program64, torch.float64, label, wide)
    runs = [eager, actual, eager64, eager64 if actual64 is None else actual64]
    places = {place for run in runs for seen in run for place in seen.written}
    return Comparison(
        model=subject.name,
        program=label,
        eager=_answers(eager),
        actual=_answers(actual),
        eager64=_answers(eager64),
        actual64=None if actual64 is None else _answers(actual64),
        inputs=None
        if not places
        else Comparison(
            model=subject.name,
            program=label,
            eager=_inputs_after(subject, eager, places, dtype),
            actual=_inputs_after(subject, actual, places, dtype),
            eager64=_inputs_after(subject, eager64, places, torch.float64),
            actual64=None if actual64 is None else _inputs_after(subject, actual64, places, torch.float64),
            whose="input",
        ),
        notes=tuple(memory_notes(eager[0], actual[0])),
    )


def alike(subject: Subject, eager: list[Observation], actual: list[Observation]) -> bool:
    """Whether a program does what the model does up to rounding errors, as large as on the first inputs of ``subject``.

    Nothing but those is asked for in float64.
    """
    if any(one.written.keys() | other.written.keys() for one, other in zip(eager, actual, strict=True)):
        return False  # which is rare enough to be looked at in float64
    draws = subject.wide_draws
    known, known64 = subject.eager_answers(subject.dtype, draws), subject.eager_answers(torch.float64, draws)
    return near(_answers(eager), _answers(actual), known, known64)


def alike_on(other: Subject, program: nn.Module, label: str, subject: Subject) -> bool:
    """Whether :func:`alike` holds on the inputs of ``other``, which is the model of ``subject`` too.

    Raises :class:`~pytest_fx.errors.ContractViolation` if the program raises.
    """
    actual = _observed(other, program, other.dtype, label, other.draws)
    return alike(subject, other.eager_observations(other.dtype), actual)


def _answers(observations: list[Observation]) -> list[Any]:
    return [seen.answer for seen in observations]


def _inputs_after(
    subject: Subject, observations: list[Observation], places: set[str], dtype: torch.dtype
) -> list[dict[str, torch.Tensor]]:
    """What each call left in the inputs at ``places``, which some call wrote to."""
    return [
        {place: seen.written.get(place, given) for place, given in _given(subject, draw, dtype) if place in places}
        for draw, seen in enumerate(observations)
    ]


def _given(subject: Subject, draw: int, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    return input_places(subject.arguments(draw).copies(dtype))


def _observed(subject: Subject, program: nn.Module, dtype: torch.dtype, label: str, draws: int) -> list[Observation]:
    """What is seen of ``program`` where the first ``draws`` questions are asked that the model itself was."""
    __tracebackhide__ = True
    try:
        return subject.observations_of(program, dtype, range(draws))
    except torch.jit.Error:  # what TorchScript does not run is nobody's broken promise
        raise
    except Exception as error:
        notes = note_lines(error)
        raise ContractViolation(
            f"{label} makes {subject.name} raise where it answers",
            value=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
            why="\n".join(notes) or None,
            kind=f"raises {failure_class(error)}",
        ) from error


def require(comparison: Comparison, contract: Contract) -> None:
    """Raise :class:`~pytest_fx.errors.ContractViolation` unless answers, and inputs written to, keep ``contract``."""
    __tracebackhide__ = True
    for part in (comparison, comparison.inputs):
        if part is None:
            continue
        if isinstance(contract, Exact):
            part.require_exact()
        elif isinstance(contract, Close):
            part.require_close(contract)
        elif isinstance(contract, Approximate):
            part.require_sqnr(contract.sqnr_db)


def failure_class(error: Exception) -> str:
    """Return what two failures have in common that are the same one: type and first line, whatever the numbers.

    >>> failure_class(ValueError("size 3 is not 4")), failure_class(ContractViolation("no", kind="values"))
    ('ValueError: size # is not #', 'values')
    """
    if isinstance(error, ContractViolation):
        return error.kind
    first = re.sub(r"\d+", "#", str(error).partition("\n")[0])
    return f"{type(error).__name__}: {first}"
