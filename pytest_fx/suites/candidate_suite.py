"""The suite of ``pytest --fx-candidate NAME``: each candidate instead of a reference (:class:`pytest_fx.Judge`)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from fx.passes import close
from pytest_fx.candidates.judge import Judge
from pytest_fx.candidates.verdict import RefusedCandidate
from pytest_fx.loading import chosen_contract, load_inputs
from pytest_fx.options import OPTIONS
from pytest_fx.records.running import FOLDER
from pytest_fx.report.summary import record_check


@pytest.fixture(scope="session")
def judge_of_run(request: pytest.FixtureRequest) -> Generator[Judge]:
    """The judge of all candidates of the run, which computes the reference once."""
    options = request.config.stash[OPTIONS]
    with Judge(
        options.reference,
        load_inputs(options.inputs),
        contract=chosen_contract(options, close),
        forward_only=options.inference,
        timing=options.timing,
        seed=options.seed,
        mode=options.mode or "both",
        device=options.device,
        folder=request.config.rootpath / FOLDER,
    ) as judge:
        yield judge


def test_candidate_may_replace_its_reference(
    request: pytest.FixtureRequest, fx_candidate: Any, judge_of_run: Judge
) -> None:
    """The candidate computes the same as the reference on drawn inputs; its speed-up is in the summary."""
    __tracebackhide__ = True
    verdict = judge_of_run.judge(fx_candidate)
    if not verdict:
        raise RefusedCandidate(verdict)
    record_check(request.node, str(verdict))
