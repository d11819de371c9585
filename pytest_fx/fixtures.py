"""Fixtures for test files. Heavy imports are in :mod:`pytest_fx.loading`, loaded when a fixture is first used.

def test_my_pass(fx_traced, fx_equal):
    fx_equal(my_pass(fx_traced))
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_fx.collection import ModelCase, PassCase, cases_of
from pytest_fx.lazy import load
from pytest_fx.options import OPTIONS, Options, options_of, parameters_of
from pytest_fx.records.running import FOLDER, announce
from pytest_fx.report.progress import progress_of
from pytest_fx.report.summary import record_check

if TYPE_CHECKING:
    import torch

    from fx import GraphModule
    from fx.passes import Pass
    from pytest_fx.candidates.verdict import Verdict
    from pytest_fx.checks.equality_check import EqualityCheck
    from pytest_fx.checks.timing_check import TimingCheck
    from pytest_fx.harness.evaluation import Arguments
    from pytest_fx.harness.subject import Subject
    from pytest_fx.search.check_report import CheckReport


BROKEN = pytest.StashKey[list[tuple[Any, str]]]()
"""Parameters of ``fx_model`` for which no model could be made or called, each with the reason."""


def skip_if_told(item: pytest.Item) -> None:
    """Skip a test of a model that cannot be made or called, if an earlier test has reported the reason."""
    case = parameters_of(item).get("fx_model")
    for broken, why in item.config.stash.get(BROKEN, []):
        if case == broken:
            pytest.skip(f"{getattr(case, 'label', case)} {why}: the first of its tests says why")


def _module(name: str) -> Any:
    """Import a module of this package that imports torch, and so must not be imported when pytest starts."""
    return load(f"pytest_fx.{name}")


def _chosen(request: pytest.FixtureRequest, pass_: Any, form: str = "auto") -> Any:
    """Return the pass that ``--fx-pass`` would load for ``pass_``; skip the test if it is unavailable."""
    return _module("loading").chosen_pass(request.config, pass_, form)


@pytest.fixture(scope="session")
def fx_model(request: pytest.FixtureRequest) -> Generator[Subject]:
    """The model under test, once for each ``--fx-model`` and ``--fx-batch``: ``fx_model.capture()``, ``.fresh()``.

    It is a :class:`~pytest_fx.harness.subject.Subject`.
    """
    __tracebackhide__ = True
    case = request.param
    if not isinstance(case, ModelCase):  # a test that parametrizes by names of its own
        options = request.config.stash[OPTIONS]
        case = ModelCase.of(case, options).in_mode(None if options.mode == "both" else options.mode)
    try:
        subject = _subject(request.config, case)
    except (Exception, SystemExit) as error:
        is_called = isinstance(error, _module("errors").InputError)
        why = "cannot be called with its example inputs" if is_called else "cannot be made"
        request.config.stash.setdefault(BROKEN, []).append((request.param, why))
        raise
    yield subject
    subject.close()


def _subject(config: pytest.Config, case: ModelCase) -> Subject:
    """Return the model of a case, with the tracer and capture method of the hooks."""
    about = {"config": config, "model": case.label}
    tracer, capture = (getattr(config.hook, f"pytest_fx_{name}")(**about) for name in ("tracer", "capture"))
    subject: Subject = _module("factories").load_subject(case, tracer, capture)
    return subject


@pytest.fixture
def fx_device(request: pytest.FixtureRequest) -> torch.device:
    """The device of ``--fx-device``, on which programs run: ``torch.ones(2, device=fx_device)``."""
    return _module("loading").torch.device(options_of(request.node).device)


@pytest.fixture
def fx_inputs(fx_model: Subject) -> Arguments:
    """Copies of the model's example inputs: ``program(*fx_inputs)``, ``(**fx_inputs)``, ``fx_inputs.call(program)``."""
    return _module("checks.equality_check").require_inputs(fx_model).arguments().copies()


@pytest.fixture
def fx_traced(fx_model: Subject) -> GraphModule:
    """A fresh capture of the model, which the test may edit: ``FuseConvBN()(fx_traced)``."""
    return fx_model.capture()


@pytest.fixture(scope="session")
def fx_pass(request: pytest.FixtureRequest) -> Pass:
    """The pass under test, each ``--fx-pass`` or else each registered one: ``fx_equal(fx_pass)``."""
    case = request.param
    return _chosen(request, case.asked if isinstance(case, PassCase) else case)


@pytest.fixture
def fx_transformed(request: pytest.FixtureRequest, fx_model: Subject, fx_pass: Pass) -> GraphModule:
    """The graph module that the pass under test makes of a new capture: ``assert "bn" not in fx_transformed.code``."""
    pass_run = _module("harness.pass_run").PassRun(fx_model, _chosen(request, fx_pass, options_of(request.node).form))
    if pass_run.program is None:
        why = pass_run.error or pass_run.refusal or TypeError(f"{pass_run.name} returned no program")
        raise why
    _module("checks.match_counts").require_changes(request.node, pass_run)
    return pass_run.program


@pytest.fixture
def fx_equal(request: pytest.FixtureRequest, fx_model: Subject) -> EqualityCheck:
    """Checks that a pass, or a program, keeps the model's results: ``fx_equal(my_pass)``, ``fx_equal(program)``.

    A pass is applied to a fresh capture and checked by its contract. A program is compared by ``contract=``, ``close``
    by default. Only the rule of ``close`` for the working dtype applies to it, since the program cannot be converted to
    float64.
    """
    return _module("checks.equality_check").EqualityCheck(fx_model, request.node)


@pytest.fixture
def fx_timing(request: pytest.FixtureRequest, fx_model: Subject) -> TimingCheck:
    """Times a pass, or a program, in pairs with eager: ``fx_timing(my_pass).speedup``. It is also a benchmark."""
    return _module("checks.timing_check").TimingCheck(fx_model, request.node, getattr(request, "param", None))


@pytest.fixture
def fx_judge(request: pytest.FixtureRequest) -> Callable[..., Verdict]:
    """Judges a candidate in the place of a reference: ``fx_judge(F.gelu, my_gelu, torch.randn(4, 8))``.

    It is :func:`pytest_fx.judge`, and raises ``RefusedCandidate`` for any other verdict than right.
    """
    folder = request.config.rootpath / FOLDER
    return partial(_module("candidates.judge").require_right, folder=folder)


@pytest.fixture
def fx_check_pass(request: pytest.FixtureRequest) -> Callable[..., CheckReport]:
    """Tries a pass on random programs: ``fx_check_pass(my_pass)``; the result is in the summary of the run.

    It is :func:`pytest_fx.check_pass`. ``--fx-contract``, ``--fx-examples``, ``--fx-inference``, ``--fx-orders``,
    ``--fx-isolate`` and the limits of one program, ``--fx-timeout`` and ``--fx-memory-limit``, are the defaults of its
    arguments. Models of ``--fx-model`` are searched for places where the pass acts (``models=``). With
    ``--fx-mutate N``, mutants of the pass are tried, too (:func:`pytest_fx.mutate_pass`).
    """
    options = options_of(request.node)
    cases = cases_of(options, request.config.invocation_params.dir)

    def check(pass_: Any, **arguments: Any) -> CheckReport:
        __tracebackhide__ = True
        form = arguments.pop("form", options.form)
        loaded, progress = _chosen(request, pass_, form), progress_of(request.config)
        announce(request.config, f"{_module('loading').pass_name(loaded)} on random programs")
        options_of_check = {
            "contract": _module("loading").contract_for(options, loaded),
            "max_examples": options.examples,
            **_limits(options),
            "orders": options.orders,
            **({"without": ("gradients",), "modes": ("eval",)} if options.inference else {}),
            "folder": request.config.rootpath / _module("search.counterexample").FOLDER,
            "on_program": progress.show_program,
            "models": [_subject(request.config, case) for case in cases] if "models" not in arguments else (),
            **arguments,
        }
        try:
            report: CheckReport = _module("search.pass_check").check_pass(loaded, **options_of_check)
        except _module("errors").NothingJudged as error:
            record_check(request.node, f"nothing judged: {error.args[0].partition(chr(10))[0]}")
            raise
        record_check(request.node, str(report))
        if options.mutants is not None:
            names = ("contract", "modes", "max_examples", "without", "seed")
            mutation = _module("search.mutation").mutate_pass(
                loaded,
                mutants=options.mutants,
                on_mutant=lambda number, count: progress.doing(f"mutant {number} of {count}"),
                **{name: options_of_check[name] for name in names if options_of_check.get(name) is not None},
            )
            record_check(request.node, str(mutation))
        return report

    return check


def _limits(options: Options) -> dict[str, Any]:
    """Return the limits of one program for ``check_pass``."""
    if options.isolate:
        return {"isolate": True, "timeout": options.timeout, "memory": options.memory_limit}
    return {} if options.timeout is None else {"seconds": options.timeout}


@pytest.fixture(scope="session")
def fx_candidate(request: pytest.FixtureRequest) -> Any:
    """The candidate under test, each ``--fx-candidate``: ``fx_judge(my_layer, fx_candidate, torch.randn(4, 8))``."""
    return request.param


@pytest.fixture(scope="session")
def fx_checked_pass(request: pytest.FixtureRequest) -> Any:
    """The pass under test, each ``--fx-check``: ``fx_check_pass(fx_checked_pass)``."""
    return request.param


@pytest.fixture(scope="session")
def fx_hunted_pass(request: pytest.FixtureRequest) -> Any:
    """The compiler or pass whose faults are searched for, each ``--fx-hunt``."""
    return request.param


@pytest.fixture(scope="session")
def fx_mutated_pass(request: pytest.FixtureRequest) -> Any:
    """The pass whose mutants are tried, that of ``--fx-mutate NAME``."""
    return request.param


FIXTURES = tuple(name for name in list(globals()) if name.startswith("fx_"))
"""The names of the plugin's fixtures."""
