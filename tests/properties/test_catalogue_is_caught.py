"""The harness catches wrong passes and leaves right ones alone: a sample of the catalogue; ``make catalogue`` does all."""

from __future__ import annotations

import pytest
from catalogue import RIGHT, WRONG
from catalogue.trial import try_pass

CAUGHT = (
    "relu_by_where",
    "linear_as_matmul",
    "without_recompile",
    "result_as_list",
    "inputs_by_number",
    "freeze_parameters",
    "drop_dropout",
    "modules_by_name",
)
"""Wrong passes of as many kinds as there are files, whose mistakes are common enough for few programs."""
KEPT = ("activations_by_function", "linear_by_matmul", "rename_values")
"""Right passes that change most programs."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CAUGHT)
def test_a_wrong_pass_is_caught_by_a_law_that_it_breaks(name: str) -> None:
    trial = try_pass(WRONG[name])
    assert trial.law in WRONG[name].laws, trial.message or f"not caught: {WRONG[name].wrong}"


@pytest.mark.parametrize("name", KEPT)
def test_a_right_pass_is_not_flagged(name: str) -> None:
    trial = try_pass(RIGHT[name], examples=30)
    assert not trial.law, trial.message
    assert trial.changed > 3
