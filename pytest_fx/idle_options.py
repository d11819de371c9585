"""Errors for options that act on no test of a run: the run would pass without them as well.

An option acts on the tests that use certain fixtures, and some options need others. Settings in the ini file and
``addopts`` are defaults for every run, and may be idle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from pytest_fx.lazy import load
from pytest_fx.option_table import FLAGS
from pytest_fx.options import OPTIONS, Options, options_of, parameters_of
from pytest_fx.parallel.distribution import is_worker, reason_not_to_time

PARAMETERS = ("fx_model", "fx_pass", "fx_checked_pass", "fx_hunted_pass", "fx_mutated_pass", "fx_candidate")
"""Fixtures that get their parameters from options; a test without parameters is skipped."""

Problem = tuple[str, str]
"""The reason why an option has no effect, and a remedy."""


def _nothing(config: pytest.Config, options: Options) -> Problem | None:
    return None


@dataclass(frozen=True, slots=True)
class OptionEffect:
    """The tests on which an option acts."""

    fixtures: tuple[str, ...]
    """Fixtures; the option acts on tests that use one of them."""
    remedy: str
    """Advice if no test uses one of them."""
    need: Callable[[pytest.Config, Options], Problem | None] = _nothing
    """Function that returns the conflict with other options, or None."""
    is_missed: bool = True
    """False if the option may act on no test: ``--fx-rounds`` holds trivially in a run without timings."""


def _takes_times(config: pytest.Config, options: Options) -> Problem | None:
    if not options.timing:
        return "the run takes no times (--fx-no-timing)", "leave out one of the two"
    reason = reason_not_to_time(config)
    return None if reason is None else (reason, "take times in a run of its own")


def _times_with_each(config: pytest.Config, options: Options) -> Problem | None:
    return _takes_times(config, options) if len(options.threads) > 1 else None


def _estimates(config: pytest.Config, options: Options) -> Problem | None:
    if options.device != "cpu":
        return f"times are estimated for the CPU, and programs run on {options.device}", "leave out --fx-estimate"
    if options.against is not None:
        return "times are taken beside the base, and none is estimated", "leave out one of the two"
    return _takes_times(config, options)


def _has_no_base(config: pytest.Config, options: Options) -> Problem | None:
    if options.against is None:
        return None
    return "times are compared with those of --fx-against, which are taken in this run", "leave out one of the two"


def _exports(config: pytest.Config, options: Options) -> Problem | None:
    is_of_export = options.form in ("functional", "aten")
    if not is_of_export or options.capture in ("auto", "export") or config.hook.pytest_fx_capture.get_hookimpls():
        return None
    why = f"only programs of torch.export have this form, and models are captured by --fx-capture {options.capture}"
    return why, "--fx-capture export"


def _has_tolerances(config: pytest.Config, options: Options) -> Problem | None:
    if options.contract is None:
        return None
    contract = load("pytest_fx.loading").load_contract(options.contract)
    if isinstance(contract, load("fx.passes").Close):
        return None
    return f"it is a tolerance of close, and --fx-contract is {contract}", "leave out one of the two"


def _saves_answers(config: pytest.Config, options: Options) -> Problem | None:
    return None if options.save_answers is not None else ("the run saves no answers", "--fx-save-answers FILE")


_SUITE = "--fx-model NAME, which runs the built-in suite"
_MODEL = OptionEffect(("fx_model",), f"{_SUITE}, or a test that asks for fx_model")
_SCALE = replace(_MODEL, fixtures=("fx_model", "table"))
_TIMING = OptionEffect(("fx_timing",), f"{_SUITE}, or a test that asks for fx_timing", _takes_times)
_CONTRACT = OptionEffect(
    ("fx_equal", "fx_check_pass", "fx_mutated_pass", "fx_candidate", "advised_precision"),
    f"{_SUITE}, or a test that asks for fx_equal",
)
_CANDIDATE = OptionEffect(
    ("fx_candidate",), "--fx-candidate NAME without files and folders, or ask for fx_candidate in a test"
)
_ANY = OptionEffect(
    (
        *("fx_model", "fx_pass", "fx_check_pass", "fx_checked_pass", "fx_hunted_pass", "fx_mutated_pass"),
        *("fx_candidate", "fx_device"),
    ),
    f"{_SUITE}, or --fx-check NAME",
)
EFFECTS = {
    **dict.fromkeys(("dtype", "batch", "capture", "leaf", "tracer"), _MODEL),
    "mode": replace(_MODEL, fixtures=("fx_model", "fx_candidate")),
    "size": _SCALE,
    "seed": replace(_SCALE, fixtures=(*_SCALE.fixtures, "fx_candidate")),
    **dict.fromkeys(("candidate", "inputs"), _CANDIDATE),
    "reference": replace(
        _CANDIDATE,
        fixtures=("fx_candidate", "saved_answers"),
        remedy=f"{_CANDIDATE.remedy}; or --fx-model NAME with a file of --fx-save-answers",
    ),
    "save-answers": OptionEffect(("answer_file",), "--fx-model NAME, without files and folders"),
    "advise": OptionEffect(("advised_precision",), "--fx-model NAME, without files and folders"),
    "against": OptionEffect(("revision_pair",), "--fx-model NAME --fx-pass NAME, without files and folders"),
    "layer": OptionEffect(("fx_model",), "--fx-save-answers FILE", _saves_answers),
    **dict.fromkeys(("rtol", "atol", "error-factor"), replace(_CONTRACT, need=_has_tolerances)),
    "strict": OptionEffect(("fx_equal", "fx_timing"), _SUITE),
    "baseline": OptionEffect(("fx_equal", "fx_timing"), _SUITE, _has_no_base),
    "model": OptionEffect(
        ("fx_model",), "leave out files and folders, for the built-in suite, or ask for fx_model in a test"
    ),
    "timeout": _ANY,
    "pass": OptionEffect(("fx_pass",), f"{_SUITE}, or a test that asks for fx_pass"),
    "check": OptionEffect(("fx_checked_pass",), "leave out files and folders, or ask for fx_checked_pass in a test"),
    "hunt": OptionEffect(("fx_hunted_pass",), "leave out files and folders, or ask for fx_hunted_pass in a test"),
    **dict.fromkeys(("minutes", "known"), OptionEffect(("fx_hunted_pass",), "--fx-hunt NAME")),
    "orders": OptionEffect(("fx_check_pass",), "--fx-check a,b,c, or a test that asks for fx_check_pass"),
    **dict.fromkeys(
        ("examples", "mutate"),
        OptionEffect(("fx_check_pass", "fx_mutated_pass"), "--fx-check NAME, or a test that asks for fx_check_pass"),
    ),
    "device": replace(_MODEL, fixtures=("fx_model", "fx_device", "fx_candidate")),
    "threads": replace(_MODEL, need=_times_with_each),
    **dict.fromkeys(("contract", "inference"), _CONTRACT),
    "detect": replace(_CONTRACT, fixtures=("fx_equal",)),
    **dict.fromkeys(("budget", "fail-slower"), _TIMING),
    "rounds": replace(_TIMING, fixtures=("fx_timing", "table"), is_missed=False),
    "estimate": replace(_TIMING, need=_estimates),
    "form": replace(_MODEL, need=_exports),
    **dict.fromkeys(
        ("min-changes", "require-change"), OptionEffect(("fx_equal", "fx_timing", "fx_transformed"), _SUITE)
    ),
    "draw": OptionEffect(("drawn",), f"{_SUITE}, without files and folders"),
    "tables": OptionEffect(("table",), "leave out files and folders, or name pytest_fx.suites.table_suite among them"),
    "tables-afresh": OptionEffect(("table",), "--fx-tables NAME"),
}
"""Each option by its flag, but those of :data:`OF_ANY_RUN`."""
OF_ANY_RUN = ("annotate", "isolate", "memory-limit", "no-timing", "report")
"""Options about how tests run and are reported, which any run obeys."""


def require_effects(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Raise :class:`pytest.UsageError` for an option of the command line that acts on none of the tests collected.

    A worker of pytest-xdist cannot end the run, and reports it as an error of the collection. A run of single tests, or
    of the tests that failed before, is allowed to lack the tests that an option acts on.
    """
    config = session.config
    is_part = bool(session.testsfailed or config.getoption("lf", False) or any("::" in name for name in config.args))
    for flag in EFFECTS:
        if (
            flag in config.stash[OPTIONS].explicit
            and (problem := _idle(config, flag, items, is_part=is_part)) is not None
        ):
            message = _message(f"--fx-{flag} has no effect", problem)
            if not is_worker(config):
                raise pytest.UsageError(message)
            report = pytest.CollectReport("options", "failed", message, [])
            session.ihook.pytest_collectreport(report=report)


def require_effects_of_marker(metafunc: pytest.Metafunc, options: Options, named_by_test: set[str]) -> None:
    """Raise :class:`pytest.UsageError` for an option in a test's own marker that does not act on the test.

    The marker of a class or a module is a default for its tests, and may be idle. The marker of a test that uses no
    fixture of the plugin is ignored. ``named_by_test`` are the fixtures that the test parametrizes itself.
    """
    fixtures = set(metafunc.fixturenames)
    if fixtures.isdisjoint(_ANY.fixtures):
        return
    for marker in metafunc.definition.own_markers:
        for keyword in marker.kwargs if marker.name == "fx" else ():
            if (effect := EFFECTS.get(FLAGS[keyword])) is None:
                continue
            problem = effect.need(metafunc.config, options)
            if not _asks(metafunc.definition, fixtures, effect):
                problem = f"the test asks for no {' and no '.join(effect.fixtures)}", "leave it out, or use one"
            elif (used := fixtures.intersection(effect.fixtures)) and used <= named_by_test:
                problem = "the test names its models itself, which get the options of the run", "model=[…] beside it"
            if problem is not None:
                what = f"{metafunc.definition.nodeid}: {keyword} in a marker fx has no effect"
                raise pytest.UsageError(_message(what, problem))


def _asks(item: pytest.Item, fixtures: set[str], effect: OptionEffect) -> bool:
    """Return whether an option acts on a test with these fixtures.

    A search for programs also searches the named models, which are loaded as for other tests.
    """
    if not fixtures.isdisjoint(effect.fixtures):
        return True
    return "fx_check_pass" in fixtures and "fx_model" in effect.fixtures and bool(options_of(item).models)


def _idle(config: pytest.Config, flag: str, items: Sequence[pytest.Item], *, is_part: bool) -> Problem | None:
    """Return the reason why an option acts on none of the tests; None if it acts on one."""
    effect = EFFECTS[flag]
    asking = [item for item in items if _asks(item, set(getattr(item, "fixturenames", ())), effect)]
    if not asking:
        return (
            None
            if is_part or not effect.is_missed
            else (f"no test of the run asks for {' or '.join(effect.fixtures)}", effect.remedy)
        )
    problem: Problem | None = None
    for item in asking:
        problem = _problem_on(config, flag, effect, item)
        if problem is None:
            break
    return problem


def _problem_on(config: pytest.Config, flag: str, effect: OptionEffect, item: pytest.Item) -> Problem | None:
    parameters = parameters_of(item)
    if any(parameters.get(name, item) is None for name in PARAMETERS):
        return "all tests that it is about are skipped, as no model or no pass is named", effect.remedy
    if isinstance(parameters.get({"model": "fx_model", "pass": "fx_pass"}.get(flag, "")), str):
        return "the tests name theirs themselves", "leave it out"
    return effect.need(config, options_of(item))


def _message(what: str, problem: Problem) -> str:
    why, remedy = problem
    return f"{what}\n  why    {why}\n  try    {remedy}"
