"""Fixtures and settings of all tests."""

import gc
import os
import random
import sys
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path

# One thread computes as fast as two on programs of this size, and does not wait for a core that something else uses.
# Set before torch is imported, and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch
from _pytest.doctest import DoctestModule

import benchmarks.accuracy  # noqa: F401 - a table of --fx-tables that is not in the wheel
from fx.pipelines import registered_passes

pytest_plugins = ["pytester"]
collect_ignore_glob = ["*conftest.py"]  # they have no doctests, and as modules of tests all have the same name

# The same examples in each run: only a change makes one fail. `make thorough` and `make properties` draw others.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")

if torch.cuda.is_available():  # a compiler reset imports it there, and torch refuses that again in each inner run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch._inductor.cudagraph_trees

# Where there is no accelerator, torch.manual_seed notes the whole stack, three times, for one that might come.
seed_all = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect all tests without garbage collections: nearly all of the million objects that this makes are kept."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in the few files of this folder that have a prompt in them."""
    collectors = yield
    return [each for each in collectors if not isinstance(each, DoctestModule) or ">>>" in file_path.read_text("utf-8")]


@pytest.fixture(autouse=True, scope="module")
def frozen_objects() -> None:
    """Freeze all objects that exist before the tests of a file.

    Garbage collections, which timings start, and the search of a refused capture for traced values then skip them. With
    the libraries that other tests have imported, each of these took 0.1 s.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Draw the same numbers in a test whichever tests ran before it."""
    seed_all(0)
    random.seed(0)


@pytest.fixture(autouse=True)
def inner_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate runs of pytest inside a test from the outer run.

    Hypothesis's plugin stays out of them: at the end of each it would import Hypothesis, for a second. They leave no
    bytecode: a file that a test writes anew within a second, no longer than before, would be taken for the old one.
    """
    if "pytester" in request.fixturenames:
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        request.getfixturevalue("pytester")  # clears the variable, so it comes first
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
        for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def passes_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the passes that a test registers when it ends."""
    monkeypatch.setattr(registered_passes, "_definitions", registered_passes._definitions.copy())


@pytest.fixture(scope="module")
def little_explored() -> Iterator[None]:
    """Let searches grow and vary fewer programs, a fifth as often, in tests of something else."""
    from pytest_fx.search import growth_steps, pass_check, search

    fewer = {
        pass_check: {"EXPLORED": 1, "GROWN": 2, "GROWN_FOR_EDITS": 1},
        search: {"MOST_CUT": 1, "MOST_SEEDS": 1},
        growth_steps: {"MOST_OTHERS": 6, "MOST_DRAWN": 8},
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, counts in fewer.items():
            for name, count in counts.items():
                patch.setattr(module, name, count)
        yield
