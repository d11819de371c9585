"""The suite of ``pytest --fx-model NAME --fx-pass NAME --fx-against REF``: each pass beside the same pass at REF."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from fx.passes import Pass
from pytest_fx.checks.equality_check import EqualityCheck
from pytest_fx.checks.revision_check import RevisionPair, require_no_new_fault, revision_pair_of, time_beside_base
from pytest_fx.checks.timing_check import TimingCheck
from pytest_fx.harness.subject import Subject


@pytest.fixture(scope="session")
def revision_pair(request: pytest.FixtureRequest) -> Generator[RevisionPair]:
    """The code of this process, and that of ``--fx-against``."""
    with revision_pair_of(request.config) as pair:
        yield pair


def test_pass_is_right_where_its_base_is(
    request: pytest.FixtureRequest,
    fx_model: Subject,
    fx_pass: Pass,
    fx_equal: EqualityCheck,
    revision_pair: RevisionPair,
) -> None:
    """The pass keeps its contract and the laws here, if the same pass does so at the base."""
    __tracebackhide__ = True
    require_no_new_fault(revision_pair, request.node, fx_model, fx_pass, fx_equal)


def test_pass_timing_beside_its_base(
    request: pytest.FixtureRequest,
    fx_model: Subject,
    fx_pass: Pass,
    fx_timing: TimingCheck,
    revision_pair: RevisionPair,
) -> None:
    """The program of the pass is timed by turns with that of the base, and is not slower than the options allow."""
    __tracebackhide__ = True
    time_beside_base(revision_pair, request.node, fx_model, fx_pass, fx_timing)
