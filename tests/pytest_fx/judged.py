"""Functions that tests of the harness share: they check the laws on a pass and a subject."""

import torch

from fx import GraphModule
from fx.passes import close, contract_of
from pytest_fx.errors import LawViolation
from pytest_fx.failures.localization import Localization, localize
from pytest_fx.failures.pairing import complete
from pytest_fx.harness.pass_run import PassRun, may_change
from pytest_fx.laws import affordable, broken_laws, choose_laws


def violations_of(subject, pass_, contract=None, label=None) -> list[LawViolation]:
    """Return how a pass breaks the laws on a subject."""
    pass_run = PassRun(subject, pass_, contract=contract or contract_of(pass_), label=label)
    return broken_laws(affordable(choose_laws((), (), may_change(pass_)), pass_run), pass_run)


def violation_of(subject, pass_, contract=close, label="own") -> LawViolation:
    """The first of these."""
    (violation, *_) = violations_of(subject, pass_, contract, label)
    return violation


def made_in_float64(subject, pass_) -> GraphModule:
    """Return the program that a pass makes of a subject in float64."""
    program = PassRun(subject, pass_).after_float64
    assert program is not None
    return program


def tolerance(leaf, eager) -> torch.Tensor:
    """The limit of the contract that is ``close``, for each node."""
    return leaf.limits(1e-5, 1e-8)


def located(subject, pass_) -> Localization:
    """Return the share of each node in the error of the program that a pass makes of a subject."""
    original = subject.capture(subject.fresh(torch.float64))
    transformed = made_in_float64(subject, pass_)
    complete(transformed, original)
    return localize(original, transformed, subject.arguments(), tolerance, subject.capture())
