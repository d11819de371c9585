"""Holding a pass to its contract on a model: the one way from a subject and a pass to answers side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fx.passes import Approximate, Close, Contract, Exact, Pass
from pytest_fx.errors import ContractViolation

from .contracts import Comparison
from .observation import Observation, input_places, memory_notes
from .rewriting import Rewriting, rewrite
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
    rewriting = rewrite(subject, pass_, leaves=leaves)
    program64: nn.Module | None = None
    # What is approximate by design, a quantizer say, need not exist in float64.
    if not isinstance(contract, Approximate):
        program64 = rewrite(subject, pass_, torch.float64, leaves=leaves).program
    return Verification(rewriting, compare(subject, rewriting.program, program64, label, draws))


def compare(
    subject: Subject, program: nn.Module, program64: nn.Module | None, label: str, draws: int | None = None
) -> Comparison:
    """Run a program, in the working dtype and in float64 if it exists there, beside the model.

    ``draws`` is how many sets of inputs it is called with; None for as many as the model was.
    """
    __tracebackhide__ = True
    dtype = subject.dtype
    eager, eager64 = subject.eager_observations(dtype)[:draws], subject.eager_observations(torch.float64)[:draws]
    actual = _observed(subject, program, dtype, label, len(eager))
    actual64 = None if program64 is None else _observed(subject, program64, torch.float64, label, len(eager))
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
        return subject.observations_of(program, dtype, draws)
    except torch.jit.Error:  # what TorchScript does not run is nobody's broken promise
        raise
    except Exception as error:
        notes = [line for note in getattr(error, "__notes__", []) for line in note.splitlines()]
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
