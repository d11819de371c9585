"""Which tests run, and on what: the built-in suite as a module, and parameters from the command line."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from .options import OPTIONS

SUITE_NAME = "pytest_fx.suite"
SUITE_PATH = Path(__file__).with_name("suite.py")


class SuiteModule(pytest.Module):
    """The built-in suite. Its tests are called ``fx::test_…`` from whatever folder pytest runs in."""

    def _getobj(self) -> ModuleType:
        return importlib.import_module(SUITE_NAME)

    def funcnamefilter(self, name: str) -> bool:
        """Collect by our names: the user's ``python_functions`` is for the user's tests."""
        return name.startswith("test_")

    def classnamefilter(self, name: str) -> bool:
        """Collect no classes."""
        return False


def choose_suite(config: pytest.Config) -> None:
    """Collect the built-in suite, unless files or folders were named on the command line.

    The suite then stands in for whatever pytest would collect by itself (``testpaths`` or the current folder): who
    asks about a model does not ask for a run of all tests. ``pytest --pyargs pytest_fx.suite tests`` runs both.
    """
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [SUITE_NAME]
        config.args_source = pytest.Config.ArgsSource.ARGS
        config.option.pyargs = True


def parametrize_from_options(metafunc: pytest.Metafunc) -> None:
    """Give ``fx_model`` and ``fx_pass`` the names on the command line, unless the test names its own."""
    options = metafunc.config.stash[OPTIONS]
    named_by_test = {
        name.strip()
        for marker in metafunc.definition.iter_markers("parametrize")
        for name in (marker.args[0].split(",") if isinstance(marker.args[0], str) else marker.args[0])
    }
    wanted = set(metafunc.fixturenames) - named_by_test
    if "fx_model" in wanted:
        _parametrize(metafunc, "fx_model", options.models, "needs a model: pytest --fx-model NAME")
    if "fx_pass" in wanted:
        passes = options.passes
        if options.models and not passes:
            passes = tuple(importlib.import_module("fx.passes").list_passes())
        _parametrize(metafunc, "fx_pass", passes, "needs a pass: pytest --fx-pass NAME")


def _parametrize(metafunc: pytest.Metafunc, fixture: str, names: tuple[str, ...], reason: str) -> None:
    """Parametrize ``fixture`` by ``names``; without any, make one test that is skipped with ``reason``."""
    if names:
        metafunc.parametrize(fixture, names, indirect=True, scope="session")
    else:
        absent = pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))
        metafunc.parametrize(fixture, [absent], indirect=True, scope="session")
