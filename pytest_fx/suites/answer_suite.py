"""The suite of ``pytest --fx-model NAME --fx-reference FILE``: models and passes beside the answers in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fx.passes import Pass, close, contract_of, pass_name
from pytest_fx.answers import Answers, read_answers, require_answers
from pytest_fx.answers.comparison import answers_for
from pytest_fx.checks.equality_check import require_inputs
from pytest_fx.errors import AnswerError
from pytest_fx.harness.pass_run import PassRun
from pytest_fx.harness.subject import Subject
from pytest_fx.loading import chosen_contract
from pytest_fx.options import OPTIONS
from pytest_fx.report.summary import record_check


@pytest.fixture(scope="session")
def saved_answers(request: pytest.FixtureRequest) -> list[Answers]:
    """The answers in the file."""
    file = request.config.stash[OPTIONS].answers
    assert file is not None
    path = Path(request.config.invocation_params.dir, file)
    if not path.is_file():
        raise AnswerError(f"there is no file {file}", remedy="--fx-model NAME --fx-save-answers FILE writes one")
    return read_answers(path)


def test_model_gives_the_answers(
    request: pytest.FixtureRequest, fx_model: Subject, saved_answers: list[Answers]
) -> None:
    """The model computes here what it computed there, as far as the rounding errors there allow."""
    __tracebackhide__ = True
    options = request.config.stash[OPTIONS]
    file = str(options.answers)
    answers = answers_for(require_inputs(fx_model), file, saved_answers)
    comparison = require_answers(fx_model, answers, chosen_contract(options, close), file)
    error, there = comparison.largest_error(), comparison.largest_eager_error()
    record_check(request.node, f"{fx_model.name}: largest error {error:.2g}, and {there:.2g} where {file} was saved")


def test_pass_gives_the_answers(
    request: pytest.FixtureRequest, fx_model: Subject, fx_pass: Pass, saved_answers: list[Answers]
) -> None:
    """The result of the pass computes here what the model computed there, by the contract of the pass."""
    __tracebackhide__ = True
    options = request.config.stash[OPTIONS]
    file, name = str(options.answers), pass_name(fx_pass)
    answers = answers_for(require_inputs(fx_model), file, saved_answers)
    contract = chosen_contract(options, contract_of(fx_pass))

    def program(subject: Subject) -> Callable[[int], Any]:
        pass_run = PassRun(subject, fx_pass, contract=contract)
        if (error := pass_run.error or pass_run.refusal) is not None:
            raise error
        if pass_run.program is None:
            pytest.skip(f"{name} is not judged: {pass_run.not_judged or 'it returned no program'}")

        def output(number: int) -> Any:
            run = pass_run.actual(number)
            if run.error is not None:
                raise run.error
            return run.output

        return output

    comparison = require_answers(fx_model, answers, contract, file, program, f"{name} on {fx_model.name}")
    record_check(request.node, f"{name} on {fx_model.name}: largest error {comparison.largest_error():.2g}")
