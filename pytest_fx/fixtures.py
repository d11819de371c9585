"""What a test file can ask for. The heavy imports are in :mod:`pytest_fx.loading`, made when a fixture is first used.

def test_my_pass(fx_traced, fx_equal):
    fx_equal(my_pass(fx_traced))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from .options import OPTIONS

if TYPE_CHECKING:
    from fx import GraphModule
    from fx.passes import Pass

    from .checks import EqualityCheck, TimingCheck
    from .subject import Subject


def _module(name: str) -> Any:
    """Return a module of this package that imports torch, which must not happen when pytest starts."""
    return importlib.import_module(f"pytest_fx.{name}")


@pytest.fixture(scope="session")
def fx_model(request: pytest.FixtureRequest) -> Subject:
    """The model under test, once for each ``--fx-model``: a :class:`~pytest_fx.subject.Subject`."""
    options = request.config.stash[OPTIONS]
    return _module("loading").load_subject(request.param, options.batch, options.threads)


@pytest.fixture
def fx_traced(fx_model: Subject) -> GraphModule:
    """A fresh capture of the model in evaluation mode. It is the test's own: passes may edit it."""
    return fx_model.capture()


@pytest.fixture(scope="session")
def fx_pass(request: pytest.FixtureRequest) -> Pass:
    """The pass under test, once for each ``--fx-pass``, or for each registered pass if none is named."""
    return _module("loading").load_pass(request.param)


@pytest.fixture
def fx_equal(request: pytest.FixtureRequest, fx_model: Subject) -> EqualityCheck:
    """Checks that a pass, or a program, computes what the model does: ``fx_equal(my_pass)``, ``fx_equal(program)``.

    A pass is applied to a fresh capture and held to its contract. A program is compared by ``contract=``, default
    ``close``, of which only the half in the working dtype applies: a program that exists in float32 only cannot be
    asked for its float64 answer.
    """
    return _module("checks").EqualityCheck(fx_model, request.node)


@pytest.fixture
def fx_timing(request: pytest.FixtureRequest, fx_model: Subject) -> TimingCheck:
    """Times a pass, or a program, in pairs with eager: ``fx_timing(my_pass).speedup``. It is a benchmark, too."""
    return _module("checks").TimingCheck(fx_model, request.node)
