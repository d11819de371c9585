"""Which tests run, and on what: the built-in suite as a module, and parameters from the command line."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .options import Options, options_of

SUITE_NAME = "pytest_fx.suite"
TABLES_NAME = "pytest_fx.tables.suite"
LAWS_NAME = "pytest_fx.law_suite"
SUITES = {
    Path(__file__).with_name("suite.py"): SUITE_NAME,
    Path(__file__).parent / "tables" / "suite.py": TABLES_NAME,
    Path(__file__).with_name("law_suite.py"): LAWS_NAME,
}
"""The modules of tests that come with the plugin, by their files."""


class SuiteModule(pytest.Module):
    """A built-in suite. Its tests are called ``fx::test_…`` from whatever folder pytest runs in."""

    def _getobj(self) -> ModuleType:
        return importlib.import_module(SUITES[self.path])

    def funcnamefilter(self, name: str) -> bool:
        """Collect by our names: the user's ``python_functions`` is for the user's tests."""
        return name.startswith("test_")

    def classnamefilter(self, name: str) -> bool:
        """Collect no classes."""
        return False


def choose_suites(config: pytest.Config, names: Sequence[str]) -> None:
    """Collect these built-in suites, unless files or folders were named on the command line.

    They then stand in for whatever pytest would collect by itself (``testpaths`` or the current folder): who
    asks about a model does not ask for a run of all tests. ``pytest --pyargs pytest_fx.suite tests`` runs both.
    """
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = list(names)
        config.args_source = pytest.Config.ArgsSource.ARGS
        config.option.pyargs = True


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One model under test, with all that its inputs and its answers depend on."""

    model: Any
    """A name of the zoo, ``package.module:factory``, or a factory."""
    batch: int
    """Samples in its example inputs."""
    label: str
    """What tests and tables call it."""
    device: str
    """Where it runs."""
    dtype: str | None
    """The working dtype by name; None for the model's own."""
    threads: int
    """Threads that it answers with."""
    seed: int
    """Where its inputs are drawn from."""

    @classmethod
    def of(cls, model: Any, options: Options, batch: int | None = None) -> ModelCase:
        """The case of ``model`` under ``options``, for one of the batch sizes."""
        name = _name_of(model)
        size = options.batch[0] if batch is None else batch
        label = name if len(options.batch) == 1 else f"{name}, batch {size}"
        return cls(model, size, label, options.device, options.dtype, options.threads[0], options.seed)


def parametrize_from_options(metafunc: pytest.Metafunc) -> None:
    """Give the fixtures of models, passes and timings what was asked for, unless the test names its own."""
    options = options_of(metafunc.definition)
    if options.used:
        importlib.import_module("pytest_fx.loading").register(metafunc.config)
    named_by_test = {
        name.strip()
        for marker in metafunc.definition.iter_markers("parametrize")
        for name in (marker.args[0].split(",") if isinstance(marker.args[0], str) else marker.args[0])
    }
    wanted = set(metafunc.fixturenames) - named_by_test
    if "fx_model" in wanted:
        folder = metafunc.config.invocation_params.dir
        models = importlib.import_module("pytest_fx.loading").expand(options, folder) if options.models else ()
        cases = [ModelCase.of(model, options, batch) for model in models for batch in options.batch]
        _parametrize(metafunc, "fx_model", cases, _label_of_case, "needs a model: pytest --fx-model NAME")
    if "fx_pass" in wanted:
        passes = options.passes
        if options.models and not passes:
            passes = importlib.import_module("pytest_fx.loading").default_passes()
        _parametrize(metafunc, "fx_pass", passes, _label_of_pass, "needs a pass: pytest --fx-pass NAME")
    if "fx_checked_pass" in wanted:
        reason = "needs a pass: pytest --fx-check NAME"
        _parametrize(metafunc, "fx_checked_pass", options.checks, _label_of_pass, reason)
    if "fx_timing" in wanted and len(options.threads) > 1:
        metafunc.parametrize("fx_timing", options.threads, ids="{} threads".format, indirect=True)


def skip_vetoed(items: Sequence[pytest.Item]) -> None:
    """Mark the tests of a pass on a model that somebody vetoes, with the reason."""
    for item in items:
        given: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        case, pass_ = given.get("fx_model"), given.get("fx_pass")
        if not isinstance(case, ModelCase) or pass_ is None:
            continue
        names = {"model": _name_of(case.model), "pass_name": _label_of_pass(pass_)}
        reason = item.config.hook.pytest_fx_veto(config=item.config, **names)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def _name_of(model: Any) -> str:
    return model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)


def _label_of_case(case: ModelCase) -> str:
    return case.label.replace(", batch ", "-batch")


def _label_of_pass(pass_: Any) -> str:
    return pass_ if isinstance(pass_, str) else importlib.import_module("fx.passes").pass_name(pass_)


def _parametrize(
    metafunc: pytest.Metafunc, fixture: str, values: Sequence[Any], label: Callable[[Any], str], reason: str
) -> None:
    """Parametrize ``fixture`` by ``values``; without any, make one test that is skipped with ``reason``."""
    if values:
        metafunc.parametrize(fixture, values, ids=[label(value) for value in values], indirect=True, scope="session")
    else:
        absent = pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))
        metafunc.parametrize(fixture, [absent], indirect=True, scope="session")
