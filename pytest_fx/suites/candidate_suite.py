"""The suite of ``pytest --fx-candidate NAME``: each candidate instead of a reference (:func:`pytest_fx.judge`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fx.passes import close
from pytest_fx.candidates.verdict import Verdict
from pytest_fx.loading import chosen_contract, load_inputs
from pytest_fx.options import options_of
from pytest_fx.report.summary import record_check


def test_candidate_may_replace_its_reference(
    request: pytest.FixtureRequest, fx_candidate: Any, fx_judge: Callable[..., Verdict]
) -> None:
    """The candidate computes the same as the reference on drawn inputs; its speed-up is in the summary."""
    options = options_of(request.node)
    verdict = fx_judge(
        options.reference,
        fx_candidate,
        load_inputs(options.inputs),
        contract=chosen_contract(options, close),
        forward_only=options.inference,
        timing=options.timing,
        seed=options.seed,
    )
    record_check(request.node, str(verdict))
