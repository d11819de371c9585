"""Variants of a program of the corpus get the same verdict or are refused; they never get another meaning."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fx
from fx.errors import FxError

from . import retold
from .judge import REFUSED, RIGHT, UNEXPLAINED, judge
from .programs import REGISTRY, Program
from .test_corpus_of_programs import CAPTURED_SINCE, COMPILED, REFUSALS, THEMES

FEW = 34
"""The step between the programs that are varied, if not all are."""
WAYS: dict[str, Callable[[ModuleType, Path], retold.Told]] = {
    "with other names": lambda theme, _: retold.renamed(theme),
    "without source": lambda theme, _: retold.without_source(theme),
    "from byte code alone": retold.compiled,
    "under a decorator": lambda theme, _: retold.decorated(theme),
    "with other imports": lambda theme, _: retold.imported_otherwise(theme),
}
MAY_BE_RIGHT = {"decorated.decorated_by_partial"}
"""Programs that are refused because a decorator hides the function from capture; another decorator around it shows
it."""


def _expected(program: Program) -> str:
    refused = program.name in REFUSALS or program.must_refuse
    return REFUSED if refused and program.name not in CAPTURED_SINCE else RIGHT


def _is_kept(program: Program) -> str | None:
    """Return the difference of the verdict on a program from the recorded one; None if they agree."""
    verdict = judge(program, fx)
    kind = verdict.kind
    if kind == UNEXPLAINED and "retold.py:" in verdict.why:  # the line of the decorator
        kind = REFUSED
    if kind == _expected(program) or (program.name in MAY_BE_RIGHT and kind == RIGHT):
        return None
    if program.name in REFUSALS and kind == RIGHT:
        return f"{program.name} is {kind} now"
    return f"{program.name} is {verdict.kind}: {verdict.why:.300}"


def _told(way: str, folder: Path) -> Iterator[Program]:
    for theme in THEMES:
        yield from (program for program in WAYS[way](theme, folder).values() if program.name not in COMPILED)


@pytest.mark.parametrize("way", WAYS)
def test_some_programs_that_are_told_otherwise_get_the_same_verdict(way: str, tmp_path: Path) -> None:
    programs = list(_told(way, tmp_path))
    assert [program.name for program in programs] == [name for name in REGISTRY if name not in COMPILED]
    start = list(WAYS).index(way) * 2  # other ones for each way
    assert [wrong for program in programs[start::FEW] if (wrong := _is_kept(program)) is not None] == []


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_all_programs_that_are_told_otherwise_get_the_same_verdict(way: str, tmp_path: Path) -> None:
    assert [wrong for program in _told(way, tmp_path) if (wrong := _is_kept(program)) is not None] == []


def _captured(program: Program, root: Any) -> str:
    """The code of a captured program, or that it is refused."""
    examples = {"example_inputs": program.inputs(2)} if program.guided else {}
    tracer = fx.Tracer()
    for name, value in program.options.items():
        setattr(tracer, name, value)
    try:
        graph = tracer.trace(root, **examples)
        return fx.GraphModule(tracer.root, graph).code
    except FxError:
        return REFUSED


def _differing(programs: list[Program]) -> list[str]:
    """Return the programs of which a second capture, or simultaneous captures of two threads, give something else."""
    differing: list[str] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(2) as threads:
        warnings.simplefilter("ignore")
        for program in programs:
            root = program.build(False)
            first, second = _captured(program, root), _captured(program, root)
            if first == second == REFUSED:  # many since they write to what the other thread sees
                continue
            together = threading.Barrier(2)
            roots = [program.build(False) for _ in range(2)]
            results = threads.map(partial(_captured_together, program, together), roots)
            if {first, second, *results} != {first}:
                differing.append(program.name)
    return differing


def _captured_together(program: Program, together: threading.Barrier, root: Any) -> str:
    together.wait()
    return _captured(program, root)


def test_some_programs_that_are_captured_again_or_by_two_threads_are_the_same() -> None:
    assert _differing([program for program in REGISTRY.values() if program.name not in COMPILED][3::FEW]) == []


@pytest.mark.thorough
def test_all_programs_that_are_captured_again_or_by_two_threads_are_the_same() -> None:
    assert _differing([program for program in REGISTRY.values() if program.name not in COMPILED]) == []
