"""The suite of ``pytest --fx-model NAME --fx-save-answers FILE``: it saves what models compute, and judges nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from pytest_fx.answers import answers_of, read_answers, write_answers
from pytest_fx.answers.recording import CHILDREN
from pytest_fx.checks.equality_check import require_inputs
from pytest_fx.harness.subject import Subject
from pytest_fx.options import OPTIONS
from pytest_fx.report.summary import record_check


@pytest.fixture
def answer_file(request: pytest.FixtureRequest) -> Path:
    """The file to write."""
    file = request.config.stash[OPTIONS].save_answers
    assert file is not None
    return Path(request.config.invocation_params.dir, file)


def test_answers_are_saved(request: pytest.FixtureRequest, fx_model: Subject, answer_file: Path) -> None:
    """The model has answers; they are added to the file, and replace those of the same model."""
    __tracebackhide__ = True
    options = request.config.stash[OPTIONS]
    own = answers_of(require_inputs(fx_model), options.layers or (CHILDREN,))
    with FileLock(f"{answer_file}.lock"):  # each model is a test, and a worker of pytest-xdist may have some of them
        others = read_answers(answer_file) if answer_file.is_file() else []
        others = [each for each in others if (each.model, each.mode) != (own.model, own.mode)]
        write_answers(answer_file, [*others, own])
    layers = len(own.sets[0].layers)
    record_check(request.node, f"{own.model}: {len(own.sets)} answers, {layers} layers each, in {options.save_answers}")
