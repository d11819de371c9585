"""A capture runs a program once, and once more where the first run finds what has to be recorded otherwise."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

import pytest
import torch
from building import runs_of

import fx
from model_zoo import get_model, is_small_sibling, list_models

from .programs import SIZES, Program
from .test_corpus_of_programs import PROGRAMS

MOST_RUNS = 2
EACH = 7
"""One program in so many is tried by default."""
SMALL_MODELS = frozenset(name for name in list_models() if is_small_sibling(name))


def captured_runs(root: Any, **options: Any) -> int:
    """Count the runs of a program in one capture, whether it is captured or refused."""
    examples = options.pop("example_inputs", None)
    tracer = fx.Tracer()
    for name, value in options.items():
        setattr(tracer, name, value)
    grad = torch.is_grad_enabled()
    with warnings.catch_warnings(), runs_of(root) as runs, suppress(Exception):
        warnings.simplefilter("ignore")
        tracer.trace(root, None, examples)
    torch.set_grad_enabled(grad)
    return len(runs)


def expect_few_runs(program: Program) -> None:
    modes = (False, True) if program.is_module else (False,)
    for training in modes:
        for examples in (None, program.inputs(SIZES[0])):
            count = captured_runs(program.build(training), example_inputs=examples, **program.options)
            assert count <= MOST_RUNS, f"{program.name} runs {count} times, {training=}, {examples=}"


@pytest.mark.parametrize("program", PROGRAMS[::EACH], ids=lambda program: program.name)
def test_a_capture_runs_a_program_twice_at_most(program: Program) -> None:
    expect_few_runs(program)


@pytest.mark.thorough
def test_a_capture_runs_each_program_of_the_corpus_twice_at_most() -> None:
    for program in PROGRAMS:
        expect_few_runs(program)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SMALL_MODELS else pytest.mark.thorough) for n in list_models()],
)
def test_a_capture_runs_a_model_of_the_zoo_once(name: str) -> None:
    assert captured_runs(get_model(name).build()) == 1
