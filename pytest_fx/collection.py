"""Collection of tests: the built-in suites as modules, and parameters from the command line."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_fx.idle_options import require_effects_of_marker
from pytest_fx.lazy import load
from pytest_fx.option_table import as_factory
from pytest_fx.options import ADDED, OPTIONS, Options, ini_file, is_set, options_of, parameters_of
from pytest_fx.parallel.distribution import plain_name, suites_added

SUITES = {
    file: f"pytest_fx.suites.{file.stem}" for file in sorted(Path(__file__).with_name("suites").glob("*_suite.py"))
}
"""The plugin's own test modules, by file."""
TESTS_OF_MUTANTS = "fx_tests_of_mutants"
"""The attribute of pytest's options with the arguments of pytest that are tests to run on mutants."""
TRAINING = ", training mode"
"""Suffix of the labels of models that are judged in training mode."""
SUITE_NODE = "fx"
"""First part of the names of the suites' tests."""


class SuiteModule(pytest.Module):
    """A built-in suite. Its tests are called ``fx::test_…``, whatever folder pytest runs in."""

    def _getobj(self) -> ModuleType:
        return load(SUITES[self.path])

    def funcnamefilter(self, name: str) -> bool:
        """Collect functions by our own prefix: the user's ``python_functions`` applies to the user's tests."""
        return name.startswith("test_")

    def classnamefilter(self, name: str) -> bool:
        """Collect no classes."""
        return False


def suite_module(path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Return the test module of a file in :data:`SUITES`; None for another file."""
    return _suite_module(parent, path) if path in SUITES else None


def _suite_module(parent: pytest.Collector, path: Path) -> pytest.Module:
    return SuiteModule.from_parent(parent, path=path, nodeid=SUITE_NODE)  # pyright: ignore[reportUnknownMemberType]


def choose_suites(config: pytest.Config) -> None:
    """Check names, and run the selected suites: alone if options select them, else after the user's tests.

    If no files or folders are named, suites of options replace the tests that pytest would collect by itself: an
    option such as ``--fx-model`` does not request all tests. Run both by
    ``pytest --pyargs pytest_fx.suites.model_suite tests``.
    """
    arguments: argparse.Namespace = config.option
    options = config.stash[OPTIONS]
    mutated = None if isinstance(arguments.fx_mutate, int) else arguments.fx_mutate
    by_options = _selected(
        options, arguments.fx_model, arguments.fx_check, arguments.fx_hunt, mutated, arguments.fx_candidate,
        arguments.fx_tables,
    )  # fmt: skip
    by_settings = suites_added(config)
    if not by_options and not has_paths(config):
        arguments.fx_tables = config.getini("fx_tables") or None
        by_settings = _selected(
            options, options.models, options.checks, options.hunts, options.mutated, options.candidates,
            arguments.fx_tables,
        )  # fmt: skip
    if by_options or arguments.fx_pass or (options.used and by_settings):
        # This imports torch, so settings in the ini file are otherwise checked only for a test that uses them.
        load("pytest_fx.loading").check_names(config)
    if arguments.fx_tables is not None:
        afresh = is_set(config, "tables-afresh")
        where = f"fx_tables in {ini_file(config)}: " if by_settings else ""
        load("pytest_fx.tables.tables_run").prepare(config, arguments.fx_tables, afresh, where)
    if mutated:
        take_tests_of_mutants(config)
    if by_options and not has_paths(config):
        config.args = by_options
        config.args_source = pytest.Config.ArgsSource.ARGS
        config.option.pyargs = True
    config.stash[ADDED] = by_settings


def _selected(options: Options, *values: Any) -> list[str]:
    """Return the suites on models, random programs, hunts, mutants, candidates and tables whose value is given."""
    suites = (_suite_of_models(options), "law", "hunt", "mutant", "candidate", "table")
    return [f"pytest_fx.suites.{suite}_suite" for suite, value in zip(suites, values, strict=True) if value]


def _suite_of_models(options: Options) -> str:
    """Return the suite that runs on models: that of passes, or one of an option that does something else."""
    if options.save_answers is not None:
        return "saving"
    if options.advise is not None:
        return "advice"
    if options.against is not None:
        return "against"
    return "model" if options.answers is None else "answer"


def take_tests_of_mutants(config: pytest.Config) -> None:
    """Keep the files, folders and tests of the command line for the mutants of a pass, instead of collecting them."""
    named = config.args if has_paths(config) else []
    if not hasattr(config.option, TESTS_OF_MUTANTS):  # a worker of pytest-xdist gets them with its options
        setattr(config.option, TESTS_OF_MUTANTS, [name for name in named if tests_by_name([name]) == [name]])
    if getattr(config.option, TESTS_OF_MUTANTS) == list(config.args):
        config.args_source = pytest.Config.ArgsSource.TESTPATHS


def add_suites(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Let pytest collect the built-in suites of :data:`ADDED` beside its own tests.

    As arguments they would be left out if the plugin is installed below a collected folder, in ``.venv`` for example.
    """
    if isinstance(collector, pytest.Session) and report.passed:
        files = {name: file for file, name in SUITES.items()}
        report.result += [_suite_module(collector, files[name]) for name in collector.config.stash[ADDED]]


def has_paths(config: pytest.Config) -> bool:
    """Return whether files, folders or tests were named on the command line."""
    return config.args_source is pytest.Config.ArgsSource.ARGS


def tests_by_name(names: Iterable[str]) -> list[str]:
    """Return ``names`` from a command line, with each ``fx::test_…`` replaced by the suite that has the test.

    pytest prints names of this form, which have no file, and prints ``../fx::test_…`` outside of its root folder.
    """
    return [_in_suite(name) or name for name in names]


def _in_suite(name: str) -> str | None:
    path, _, test = name.partition("[")[0].partition("::")
    if not test or not re.fullmatch(rf"(\.\.[/\\])*{SUITE_NODE}", path):
        return None
    suites = (suite for file, suite in SUITES.items() if f"\ndef {test}(" in file.read_text("utf-8"))
    module = next(suites, "pytest_fx.suites.model_suite")
    return module + plain_name(name).removeprefix(path)


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One model under test, with all settings that affect its inputs and outputs."""

    model: Any
    """A name of the zoo, ``package.module:factory``, or a factory."""
    batch: int | None
    """Number of samples in its example inputs; None for one sample of a zoo model, or for the inputs as they are."""
    label: str
    """Name in tests and tables."""
    device: str
    """Device that it runs on."""
    dtype: str | None
    """The working dtype by name; None for the model's own."""
    threads: int
    """Number of threads that it runs with."""
    seed: int
    """Seed of its example inputs."""
    leaves: tuple[Any, ...] = ()
    """Leaf modules of its capture."""
    tracer: Any | None = None
    """Tracer that captures it; None for the default."""
    capture: str = "auto"
    """Capture method, as ``--fx-capture`` takes it."""
    form: str = "auto"
    """The form of an exported program."""
    is_seeded: bool = False
    """True if the seed was set explicitly."""
    mode: str | None = None
    """The mode in which it is judged: ``"train"`` or ``"eval"``; None for evaluation mode and the mode of the factory's
    model."""

    @classmethod
    def of(cls, model: Any, options: Options, batch: int | None = None, name: str | None = None) -> ModelCase:
        """Return the case of ``model`` under ``options``, with label ``name``, for one of the batch sizes."""
        model = as_factory(model)
        name = name or _name_of(model)
        size = batch if batch is not None or not options.batch else options.batch[0]
        label = name if len(options.batch) < 2 else f"{name}, batch {size}"
        inputs = size, label, options.device, options.dtype, options.threads[0], options.seed
        return cls(
            model, *inputs, options.leaves, options.tracer, options.capture, options.form, "seed" in options.explicit
        )

    def in_mode(self, mode: str | None) -> ModelCase:
        """Return the same case in another mode; the label has a suffix for training mode."""
        name, batch, size = self.label.partition(", batch ")
        label = f"{name}{TRAINING}{batch}{size}" if mode == "train" else self.label
        return replace(self, label=label, mode=mode)

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of the marker ``fx`` that select this case; empty if the model or tracer has no importable name."""
        tracer = None if self.tracer is None else _importable(self.tracer)
        leaves = [leaf if isinstance(leaf, str) else f"{leaf.__module__}.{leaf.__qualname__}" for leaf in self.leaves]
        model = _importable(self.model)
        if model is None or (tracer is None) != (self.tracer is None):
            return {}
        usual = {"device": "cpu", "dtype": None, "threads": 1, "seed": 0, "leaf": [], "tracer": None, "form": "auto"}
        own = (self.device, self.dtype, self.threads, self.seed, leaves, tracer, self.form)
        others = {name: value for (name, default), value in zip(usual.items(), own, strict=True) if value != default}
        mode = {} if self.mode is None else {"mode": self.mode}
        return {"model": model, "size": "full", "batch": self.batch, "capture": self.capture, **others, **mode}


def _importable(thing: Any) -> str | None:
    """Return the command-line name of a factory or tracer; None if it has none."""
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is thing else None


@dataclass(frozen=True, slots=True)
class PassCase:
    """One pass under test."""

    asked: Any
    """A registered name, ``package.module:callable``, or a pass."""
    label: str
    """Name in tables."""


def label_of(item: pytest.Item, pass_: Any) -> str:
    """Return the name of ``pass_`` in tables: longer than its own name if another pass of the run shares that."""
    case = parameters_of(item).get("fx_pass")
    if isinstance(case, PassCase) and getattr(item, "funcargs", {}).get("fx_pass") is pass_:
        return case.label
    name: str = load("fx.passes").pass_name(pass_)
    return name


def keywords_of_model(item: pytest.Item) -> dict[str, Any]:
    """Return the keywords of the marker ``fx`` that select the model of a test; empty if the test has no model."""
    case = parameters_of(item).get("fx_model")
    return case.keywords if isinstance(case, ModelCase) else {}


def subject_of(item: pytest.Item) -> str:
    """Return the subject of a test by its parameters: a pass on a model, or else the test itself."""
    parameters = parameters_of(item)
    case, pass_, checked, candidate = map(parameters.get, ("fx_model", "fx_pass", "fx_checked_pass", "fx_candidate"))
    model = case.label if isinstance(case, ModelCase) else case if isinstance(case, str) else None
    if checked is not None:
        return f"{_name_of_asked(checked)} on random programs"
    if candidate is not None:
        return f"the candidate {_name_of(candidate)}"
    if isinstance(pass_, PassCase):
        return pass_.label if model is None else f"{pass_.label} on {model}"
    return f"the test {item.name}" if model is None else f"the test {item.name} of {model}"


def id_of_pass_on_model(item: pytest.Item) -> str:
    """Return the id of the parameters of a test of a pass on a model, without its other parameters."""
    parameters = parameters_of(item)
    return f"{_label_of_case(parameters['fx_model'])}-{_id_of_pass(parameters['fx_pass'])}"


def parametrize_from_options(metafunc: pytest.Metafunc) -> None:
    """Parametrize the fixtures of models, passes and timings by the options, unless the test has its own parameters.

    Options of a marker or the ini file are checked like those of the command line.
    """
    definition = metafunc.definition
    named_by_test = {
        name.strip()
        for marker in definition.iter_markers("parametrize")
        for name in (marker.args[0].split(",") if isinstance(marker.args[0], str) else marker.args[0])
    }
    try:
        options = options_of(definition)
        if options.used or options is not metafunc.config.stash[OPTIONS]:
            load("pytest_fx.loading").check_options(metafunc.config, options, definition.nodeid)
        require_effects_of_marker(metafunc, options, named_by_test)
    except pytest.UsageError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    wanted = set(metafunc.fixturenames) - named_by_test
    if "fx_model" in wanted:
        cases = cases_of(options, metafunc.config.invocation_params.dir)
        _parametrize(metafunc, "fx_model", cases, _label_of_case, "the test needs a model: pytest --fx-model NAME")
    if "fx_pass" in wanted:
        passes = options.passes
        if options.models and not passes and options.answers is None:
            if changing := options.explicit.intersection(("min-changes", "require-change")):
                raise pytest.Collector.CollectError(
                    f"--fx-{min(changing)} is about passes that are named, and most of those that are registered find "
                    "nothing to change in a model\n  try    --fx-pass NAME"
                )
            passes = load("pytest_fx.loading").default_passes()
        named = zip(passes, labels(passes, _label_of_pass), strict=True)
        cases = [PassCase(*case) for case in named]
        _parametrize(metafunc, "fx_pass", cases, _id_of_pass, "the test needs a pass: pytest --fx-pass NAME")
    if "fx_checked_pass" in wanted:
        reason = "the test needs a pass: pytest --fx-check NAME"
        _parametrize(metafunc, "fx_checked_pass", options.checks, _name_of_asked, reason)
    if "fx_hunted_pass" in wanted:
        reason = "the test needs a compiler: pytest --fx-hunt NAME"
        _parametrize(metafunc, "fx_hunted_pass", options.hunts, _name_of_asked, reason)
    if "fx_mutated_pass" in wanted:
        reason = "the test needs a pass: pytest --fx-mutate NAME"
        mutated = () if options.mutated is None else (options.mutated,)
        _parametrize(metafunc, "fx_mutated_pass", mutated, _name_of_asked, reason)
    if "fx_candidate" in wanted:
        reason = "the test needs a candidate: pytest --fx-candidate NAME --fx-reference NAME --fx-inputs NAME"
        _parametrize(metafunc, "fx_candidate", options.candidates, _name_of, reason)
    if "fx_timing" in wanted and len(options.threads) > 1:
        metafunc.parametrize("fx_timing", options.threads, ids="{} threads".format, indirect=True)


def cases_of(options: Options, folder: Path) -> list[ModelCase]:
    """Return the selected models, for each batch size and each mode; names are imported from ``folder``, too."""
    models = load("pytest_fx.loading").expand(options, folder) if options.models else ()
    sizes = options.batch or (None,)
    modes = ("eval", "train") if options.mode == "both" else (options.mode,)
    return [
        ModelCase.of(model, options, batch, name).in_mode(mode)
        for model, name in zip(models, labels(models, _name_of), strict=True)
        for batch in sizes
        for mode in modes
    ]


def skip_vetoed(items: Sequence[pytest.Item]) -> None:
    """Skip the tests of a pass on a model that the hook ``pytest_fx_veto`` vetoes, with its reason."""
    for item in items:
        parameters = parameters_of(item)
        case, pass_ = parameters.get("fx_model"), parameters.get("fx_pass")
        if not isinstance(case, ModelCase) or not isinstance(pass_, PassCase):
            continue
        names = {"model": _name_of(case.model), "pass_name": _name_of_asked(pass_.asked)}
        reason = item.config.hook.pytest_fx_veto(config=item.config, **names)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def _name_of(model: Any) -> str:
    return model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)


def _label_of_case(case: ModelCase) -> str:
    return case.label.replace(TRAINING, "-training").replace(", batch ", "-batch")


def _id_of_pass(case: PassCase) -> str:
    return case.asked if isinstance(case.asked, str) else case.label


def _name_of_asked(pass_: Any) -> str:
    return pass_ if isinstance(pass_, str) else _name_of_pass(pass_)


def _name_of_pass(pass_: Any) -> str:
    """Return the pass's own name, however the pass was requested."""
    load_pass = load("pytest_fx.loading").load_pass
    name: str = load("fx.passes").pass_name(load_pass(pass_))
    return name


def _label_of_pass(pass_: Any) -> str:
    """Return the name of a pass in tables: its ``label`` if it has one, such as "lower, emulated"."""
    label = getattr(load("pytest_fx.loading").load_pass(pass_), "label", None)
    return label if isinstance(label, str) else _name_of_pass(pass_)


def labels(things: Sequence[Any], name_of: Callable[[Any], str]) -> list[str]:
    """Return a label for each of ``things``: its name, or its full name if several share the name.

    The full name is the text that requested it, or else the module and name of its definition, with the options of a
    pass. Labels that are still equal are numbered.
    """
    names = [name_of(thing) for thing in things]
    for longer in (_full_name, None):
        count, numbered = Counter(names), Counter[str]()
        for position, (thing, name) in enumerate(zip(things, names, strict=True)):
            if count[name] > 1:
                numbered[name] += 1
                names[position] = longer(thing) if longer is not None else f"{name} ({numbered[name]})"
    return names


def _full_name(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    definition = thing if hasattr(thing, "__qualname__") else type(thing)
    options = load("fx.pipelines.pass_options").write_options(thing)
    return f"{definition.__module__}:{definition.__qualname__}{options}"


def _parametrize(
    metafunc: pytest.Metafunc, fixture: str, values: Sequence[Any], label: Callable[[Any], str], reason: str
) -> None:
    """Parametrize ``fixture`` by ``values``; without any, make one test that is skipped with ``reason``."""
    if values:
        metafunc.parametrize(fixture, values, ids=[label(value) for value in values], indirect=True, scope="session")
    else:
        absent = pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))
        metafunc.parametrize(fixture, [absent], indirect=True, scope="session")
