"""The suite of ``pytest --fx-model NAME --fx-advise PRECISION``: the layers that stay in higher precision."""

from __future__ import annotations

import pytest

from pytest_fx.checks.equality_check import require_inputs
from pytest_fx.checks.precision_advice import advise_precision
from pytest_fx.harness.subject import Subject
from pytest_fx.loading import chosen_contract, load_contract
from pytest_fx.options import OPTIONS
from pytest_fx.report.summary import record_check


@pytest.fixture
def advised_precision(request: pytest.FixtureRequest) -> str:
    """The precision of ``--fx-advise``."""
    precision = request.config.stash[OPTIONS].advise
    assert precision is not None
    return precision


def test_layers_to_keep(request: pytest.FixtureRequest, fx_model: Subject, advised_precision: str) -> None:
    """The contract holds with the advised layers kept, and with none of them left out."""
    __tracebackhide__ = True
    options = request.config.stash[OPTIONS]
    contract = None if options.contract is None else chosen_contract(options, load_contract(options.contract))
    advice = advise_precision(require_inputs(fx_model), advised_precision, contract)
    first, *others = advice.lines()
    record_check(request.node, f"{fx_model.name} in {advised_precision}: {first}")
    for line in others:
        record_check(request.node, line)
    if advice.keep is None:
        pytest.fail(f"{fx_model.name}: {first}", pytrace=False)
