"""The harness catches wrong passes and leaves right ones alone: a sample; ``make catalogue`` tries all."""

from __future__ import annotations

import pytest
import torch
from catalogue import RIGHT, WRONG
from catalogue.minimality import counterexample, is_wrong_on, smaller
from catalogue.rows import case, numbers
from catalogue.trial import try_pass
from selection import thorough_except

from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import GivenProgram, Subject
from pytest_fx.search.references import references_of

CAUGHT = (
    "relu_by_where",
    "linear_as_matmul",
    "without_recompile",
    "result_as_list",
    "inputs_by_number",
    "freeze_parameters",
    "drop_dropout",
    "modules_by_name",
    "slices_as_narrow",
    "wide_layers_in_tiles",
)
"""Wrong passes of many kinds, whose mistakes are common enough for few programs."""
KEPT = ("activations_by_function", "linear_by_matmul", "rename_values")
"""Right passes that change most programs."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", thorough_except(CAUGHT[:5], CAUGHT))
def test_a_wrong_pass_is_caught_by_a_law_that_it_breaks(name: str) -> None:
    trial = try_pass(WRONG[name])
    assert trial.law in WRONG[name].laws, trial.message or f"not caught: {WRONG[name].wrong}"


@pytest.mark.usefixtures("little_explored")
@pytest.mark.parametrize("name", thorough_except(KEPT[:1], KEPT))
def test_a_right_pass_is_not_flagged(name: str) -> None:
    trial = try_pass(RIGHT[name], examples=10)
    assert not trial.law, trial.message
    assert trial.changed > 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    thorough_except(
        ("number_filled_in",), ["squeeze_and_unsqueeze", "interpolate_without_corners", "number_filled_in"]
    ),
)
def test_the_program_shown_for_a_wrong_pass_is_minimal(name: str) -> None:
    counterexample_text = counterexample(WRONG[name])
    assert counterexample_text is not None
    law, mode, source = counterexample_text
    assert is_wrong_on(WRONG[name], source, law, mode)
    others = list(smaller(source))
    assert others
    assert not [text for text in others if is_wrong_on(WRONG[name], text, law, mode)]


def test_a_constant_that_forward_makes_is_no_change() -> None:
    witness = case(lambda m, x: x + torch.ones(3), numbers(3))
    program = GivenProgram(lambda: witness.module, Arguments(witness.inputs))
    assert not PassRun(Subject.of(program), lambda graph_module: graph_module).changed


def test_operations_are_found_in_passes_of_torch_fx() -> None:
    assert {torch.mul, torch.add} <= set(references_of(WRONG["fuse_multiply_add"].pass_).operations)
