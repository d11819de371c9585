"""Which tests run, and on what: the built-in suite as a module, and parameters from the command line."""

from __future__ import annotations

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
from pytest_fx.options import ADDED, OPTIONS, Options, options_of
from pytest_fx.parallel.distribution import plain_name

SUITE_NAME = "pytest_fx.suites.model_suite"
TABLES_NAME = "pytest_fx.suites.table_suite"
LAWS_NAME = "pytest_fx.suites.law_suite"
_SUITES = Path(__file__).with_name("suites")
SUITES = {
    _SUITES / "model_suite.py": SUITE_NAME,
    _SUITES / "table_suite.py": TABLES_NAME,
    _SUITES / "law_suite.py": LAWS_NAME,
}
"""The modules of tests that come with the plugin, by their files."""
TRAINING = ", training mode"
"""What labels of models say that are judged in it."""
SUITE_NODE = "fx"
"""What the names of their tests begin with."""


class SuiteModule(pytest.Module):
    """A built-in suite. Its tests are called ``fx::test_…`` from whatever folder pytest runs in."""

    def _getobj(self) -> ModuleType:
        return load(SUITES[self.path])

    def funcnamefilter(self, name: str) -> bool:
        """Collect by our names: the user's ``python_functions`` is for the user's tests."""
        return name.startswith("test_")

    def classnamefilter(self, name: str) -> bool:
        """Collect no classes."""
        return False


def suite_module(path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Return the module of tests that a file is if that is one of :data:`SUITES`."""
    return _suite_module(parent, path) if path in SUITES else None


def _suite_module(parent: pytest.Collector, path: Path) -> pytest.Module:
    return SuiteModule.from_parent(parent, path=path, nodeid=SUITE_NODE)  # pyright: ignore[reportUnknownMemberType]


def choose_suites(config: pytest.Config, names: Sequence[str]) -> None:
    """Collect these built-in suites, unless files or folders were named on the command line.

    They then stand in for whatever pytest would collect by itself (``testpaths`` or the current folder): who
    asks about a model does not ask for a run of all tests. Both run by
    ``pytest --pyargs pytest_fx.suites.model_suite tests``.
    """
    if not has_paths(config):
        config.args = list(names)
        config.args_source = pytest.Config.ArgsSource.ARGS
        config.option.pyargs = True


def add_suites(collector: pytest.Collector, report: pytest.CollectReport) -> None:
    """Let pytest collect the built-in suites of :data:`ADDED` beside whatever it collects by itself.

    As arguments they would be left out where the plugin lies below a folder that is collected, in ``.venv`` say.
    """
    if isinstance(collector, pytest.Session) and report.passed:
        added = [file for file, name in SUITES.items() if name in collector.config.stash[ADDED]]
        report.result += [_suite_module(collector, file) for file in added]


def has_paths(config: pytest.Config) -> bool:
    """Return whether files, folders or tests were named on the command line."""
    return config.args_source is pytest.Config.ArgsSource.ARGS


def tests_by_name(names: Iterable[str]) -> list[str]:
    """Return ``names`` from a command line with ``fx::test_…``, as pytest prints it, led to the suite that has it.

    That name has no file of its own. Where pytest was not started in its root folder it prints ``../fx::test_…``.
    """
    return [_in_suite(name) or name for name in names]


def _in_suite(name: str) -> str | None:
    path, _, test = name.partition("[")[0].partition("::")
    if not test or not re.fullmatch(rf"(\.\.[/\\])*{SUITE_NODE}", path):
        return None
    module = next((suite for file, suite in SUITES.items() if f"\ndef {test}(" in file.read_text("utf-8")), SUITE_NAME)
    return module + plain_name(name).removeprefix(path)


@dataclass(frozen=True, slots=True)
class ModelCase:
    """One model under test, with all that its inputs and its outputs depend on."""

    model: Any
    """A name of the zoo, ``package.module:factory``, or a factory."""
    batch: int | None
    """Samples in its example inputs; None for one where it is of the zoo, or else as many as they have."""
    label: str
    """What tests and tables call it."""
    device: str
    """Where it runs."""
    dtype: str | None
    """The working dtype by name; None for the model's own."""
    threads: int
    """Threads that it runs with."""
    seed: int
    """Where its inputs are drawn from."""
    leaves: tuple[Any, ...] = ()
    """Modules that are leaves when it is captured."""
    tracer: Any | None = None
    """What captures it; None for the usual."""
    capture: str = "auto"
    """The way in which it is captured."""
    form: str = "auto"
    """The form of an exported program."""
    is_seeded: bool = False
    """Whether it was asked that its inputs be drawn from the seed."""
    mode: str | None = None
    """The mode in which it is judged: ``"train"`` or ``"eval"``; None for evaluation mode beside that in which its
    factory gives it."""

    @classmethod
    def of(cls, model: Any, options: Options, batch: int | None = None, name: str | None = None) -> ModelCase:
        """The case of ``model``, called ``name``, under ``options``, for one of the batch sizes."""
        model = as_factory(model)
        name = name or _name_of(model)
        size = batch if batch is not None or not options.batch else options.batch[0]
        label = name if len(options.batch) < 2 else f"{name}, batch {size}"
        inputs = size, label, options.device, options.dtype, options.threads[0], options.seed
        return cls(
            model, *inputs, options.leaves, options.tracer, options.capture, options.form, "seed" in options.explicit
        )

    def in_mode(self, mode: str | None) -> ModelCase:
        """Return the same case in another mode, of which its label says if that is training."""
        name, batch, size = self.label.partition(", batch ")
        label = f"{name}{TRAINING}{batch}{size}" if mode == "train" else self.label
        return replace(self, label=label, mode=mode)

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords of the marker ``fx`` that ask for this case; none where a name cannot be imported."""
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
    """Return the name of a factory or a tracer on the command line; None where it has none."""
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
    """What tables call it."""


def label_of(item: pytest.Item, pass_: Any) -> str:
    """Return what tables call ``pass_`` in a test: its name, or more where another pass of the run has that name."""
    case = getattr(getattr(item, "callspec", None), "params", {}).get("fx_pass")
    if isinstance(case, PassCase) and getattr(item, "funcargs", {}).get("fx_pass") is pass_:
        return case.label
    name: str = load("fx.passes").pass_name(pass_)
    return name


def keywords_of_model(item: pytest.Item) -> dict[str, Any]:
    """Return the keywords of the marker ``fx`` that ask for the model of a test as it has it; none if it has none."""
    case = getattr(getattr(item, "callspec", None), "params", {}).get("fx_model")
    return case.keywords if isinstance(case, ModelCase) else {}


def subject_of(item: pytest.Item) -> str:
    """Return what a test is about, as far as its parameters say: a pass on a model, or else the test itself."""
    given: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    case, pass_, checked = (given.get(name) for name in ("fx_model", "fx_pass", "fx_checked_pass"))
    model = case.label if isinstance(case, ModelCase) else case if isinstance(case, str) else None
    if checked is not None:
        return f"{_name_of_asked(checked)} on random programs"
    if isinstance(pass_, PassCase):
        return pass_.label if model is None else f"{pass_.label} on {model}"
    return f"the test {item.name}" if model is None else f"the test {item.name} of {model}"


def parametrize_from_options(metafunc: pytest.Metafunc) -> None:
    """Give the fixtures of models, passes and timings what was asked for, unless the test names its own.

    What is asked for by a marker or in the ini file is checked as the command line is.
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
        if options.models and not passes:
            if changing := options.explicit.intersection(("min-changes", "require-change")):
                raise pytest.Collector.CollectError(
                    f"--fx-{min(changing)} is about passes that are named, and most of those that are registered find "
                    "nothing to change in a model\n  try    --fx-pass NAME"
                )
            passes = load("pytest_fx.loading").default_passes()
        named = zip(passes, labels(passes, _name_of_pass), strict=True)
        cases = [PassCase(*case) for case in named]
        _parametrize(metafunc, "fx_pass", cases, _id_of_pass, "the test needs a pass: pytest --fx-pass NAME")
    if "fx_checked_pass" in wanted:
        reason = "the test needs a pass: pytest --fx-check NAME"
        _parametrize(metafunc, "fx_checked_pass", options.checks, _name_of_asked, reason)
    if "fx_timing" in wanted and len(options.threads) > 1:
        metafunc.parametrize("fx_timing", options.threads, ids="{} threads".format, indirect=True)


def cases_of(options: Options, folder: Path) -> list[ModelCase]:
    """Return the models that are asked for, in each size of a batch and each mode; names are found from ``folder``."""
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
    """Mark the tests of a pass on a model that somebody vetoes, with the reason."""
    for item in items:
        given: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        case, pass_ = given.get("fx_model"), given.get("fx_pass")
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
    """Return what a pass calls itself, whatever it was asked for as."""
    load_pass = load("pytest_fx.loading").load_pass
    name: str = load("fx.passes").pass_name(load_pass(pass_))
    return name


def labels(things: Sequence[Any], name_of: Callable[[Any], str]) -> list[str]:
    """Return what to call each of ``things``: its name, or where several share that, all that is known of it.

    That is the text by which it was asked for, or else the module and name of what defines it, with the options of a
    pass; numbers tell apart what even that does not.
    """
    names = [name_of(thing) for thing in things]
    for longer in (_full_name, None):
        count, seen = Counter(names), Counter[str]()
        for position, (thing, name) in enumerate(zip(things, names, strict=True)):
            if count[name] > 1:
                seen[name] += 1
                names[position] = longer(thing) if longer is not None else f"{name} ({seen[name]})"
    return names


def _full_name(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    definition = thing if hasattr(thing, "__qualname__") else type(thing)
    options = load("fx.passes.pass_options").write_options(thing)
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
