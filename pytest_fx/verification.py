"""Holding a pass to its contract on a model: the one way from a subject and a pass to answers side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fx.passes import Approximate, Close, Contract, Exact, Pass

from .contracts import Comparison
from .errors import ContractViolation
from .rewriting import Rewriting, rewrite
from .subject import Subject


@dataclass(frozen=True, slots=True)
class Verification:
    """What a pass made of a model, and what both compute."""

    rewriting: Rewriting
    """The transformed program in the working dtype."""
    comparison: Comparison
    """Its answers beside eager's."""


def verify(subject: Subject, pass_: Pass, contract: Contract, label: str, *, leaves: bool = True) -> Verification:
    """Apply ``pass_`` to fresh captures of ``subject`` and run what comes out. Nothing is judged yet: see ``require``.

    Raises :class:`~pytest_fx.errors.ContractViolation` if the pass damages the original or returns no program.
    """
    __tracebackhide__ = True
    rewriting = rewrite(subject, pass_, leaves=leaves)
    program64: nn.Module | None = None
    # What is approximate by design, a quantizer say, need not exist in float64.
    if not isinstance(contract, Approximate):
        program64 = rewrite(subject, pass_, torch.float64, leaves=leaves).program
    return Verification(rewriting, compare(subject, rewriting.program, program64, label))


def compare(
    subject: Subject, program: nn.Module, program64: nn.Module | None, label: str, draws: int | None = None
) -> Comparison:
    """Run a program, in the working dtype and in float64 if it exists there, beside the model.

    ``draws`` is how many sets of inputs it is called with; None for as many as the model was.
    """
    dtype = subject.dtype
    eager, eager64 = subject.eager_answers(dtype)[:draws], subject.eager_answers(torch.float64)[:draws]
    return Comparison(
        model=subject.name,
        program=label,
        eager=eager,
        actual=_answers(subject, program, dtype, label, len(eager)),
        eager64=eager64,
        actual64=None if program64 is None else _answers(subject, program64, torch.float64, label, len(eager)),
    )


def _answers(subject: Subject, program: nn.Module, dtype: torch.dtype, label: str, draws: int) -> list[Any]:
    """What ``program`` answers to the first ``draws`` questions that the model itself was asked."""
    __tracebackhide__ = True
    try:
        return subject.answers_of(program, dtype, draws)
    except torch.jit.Error:  # what TorchScript does not run is nobody's broken promise
        raise
    except Exception as error:
        notes = [line for note in getattr(error, "__notes__", []) for line in note.splitlines()]
        raise ContractViolation(
            f"{label} makes {subject.name} raise where it answers",
            value=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
            why="\n".join(notes) or None,
        ) from error


def require(comparison: Comparison, contract: Contract) -> None:
    """Raise :class:`~pytest_fx.errors.ContractViolation` unless the answers keep ``contract``."""
    __tracebackhide__ = True
    if isinstance(contract, Exact):
        comparison.require_exact()
    elif isinstance(contract, Close):
        comparison.require_close(contract)
    elif isinstance(contract, Approximate):
        comparison.require_sqnr(contract.sqnr_db)
