"""Every program of the corpus: captured and equal to eager, or refused by the user's line; never another meaning."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.fx

import fx

from . import (
    augmented_assignment,
    autocast,
    autograd_functions,
    caught,
    counters,
    damage,
    decorated,
    everyday,
    example_inputs,
    function_transforms,
    functional_calls,
    grad_mode,
    hooks,
    idioms,
    library_models,
    marked,
    mutability,
    questions,
    random_numbers,
    repositories,
    results,
    sizes,
    state,
    surroundings,
    texts,
    torch_parts,
    training_flag,
)
from .judge import REFUSED, RIGHT, judge, names_in
from .programs import REGISTRY, Program

THEMES = (augmented_assignment, autocast, autograd_functions, caught, counters, damage, decorated, everyday,
          example_inputs, function_transforms, functional_calls, grad_mode, hooks, idioms, library_models, marked,
          mutability, questions, random_numbers, repositories, results, sizes, state, surroundings, texts, torch_parts,
          training_flag)  # fmt: skip
HERE = Path(__file__).parent
NOT_YET = names_in(HERE / "not_yet.txt")
REFUSALS = names_in(HERE / "refused.txt")
GUIDED = names_in(HERE / "guided.txt")
PROGRAMS = list(REGISTRY.values())
CAPTURED_SINCE = {"sizes.assert_sizes_equal": (3, 13)}
"""Versions of Python whose byte code says enough of a program that others refuse."""


COMPILED = frozenset(
    f"function_transforms.{name}"
    for name in ("Chosen", "ChosenByBuffer", "chosen_twice", "chosen_structures", "looped", "GaussNewton")
)
"""Programs that eager compiles anew for each run, as ``torch.cond`` and ``linearize`` do, which takes seconds."""


@pytest.mark.parametrize(
    "program",
    [pytest.param(program, marks=pytest.mark.thorough if program.name in COMPILED else ()) for program in PROGRAMS],
    ids=[program.name for program in PROGRAMS],
)
def test_a_program_means_what_eager_means_or_is_refused_by_its_line(program: Program) -> None:
    verdict = judge(program, fx)
    if program.name in NOT_YET:
        assert verdict.kind == NOT_YET[program.name], f"{program.name} is {verdict.kind} now: correct not_yet.txt"
    elif sys.version_info >= CAPTURED_SINCE.get(program.name, (4,)):
        assert verdict.kind == RIGHT, verdict.why
    elif program.name in REFUSALS or program.must_refuse:
        assert verdict.kind == REFUSED, f"{verdict.kind} now ({verdict.why}): correct refused.txt"
    else:
        assert verdict.kind == RIGHT, verdict.why


@pytest.mark.parametrize("name", REFUSALS)
def test_with_example_inputs_a_refused_program_means_what_eager_means_or_is_refused_still(name: str) -> None:
    verdict = judge(REGISTRY[name], fx, guided=True)
    expected = RIGHT if name in GUIDED else REFUSED
    assert verdict.kind == expected, f"{verdict.kind} now ({verdict.why}): correct guided.txt"


@pytest.mark.thorough
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_with_example_inputs_no_program_gets_another_meaning(program: Program) -> None:
    verdict, without = judge(program, fx, guided=True), judge(program, fx, guided=False)
    assert verdict.kind in (RIGHT, REFUSED) or program.name in NOT_YET, verdict.why
    assert verdict.kind == RIGHT or without.kind != RIGHT, verdict.why


def test_the_lists_name_programs_of_the_corpus() -> None:
    assert set(NOT_YET) | set(REFUSALS) <= set(REGISTRY)
    assert not set(NOT_YET) & set(REFUSALS)
    assert set(GUIDED) <= set(REFUSALS)


def test_what_becomes_of_each_program_under_torch_fx_is_on_record() -> None:
    assert set(names_in(HERE / "torch_fx.txt")) == set(REGISTRY)


@pytest.mark.thorough
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="on record is torch 2.13")
def test_torch_fx_does_what_is_on_record() -> None:
    assert {name: judge(program, torch.fx).kind for name, program in REGISTRY.items()} == names_in(
        HERE / "torch_fx.txt"
    )


def test_every_theme_has_its_programs() -> None:
    themes = {program.theme for program in PROGRAMS}
    assert themes == {theme.__name__.rpartition(".")[2] for theme in THEMES}
    assert len(PROGRAMS) >= 300
