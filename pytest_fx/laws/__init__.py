"""Laws that every pass must keep on every program; each law can be switched off or demanded by name.

A law is a function of a :class:`~pytest_fx.harness.pass_run.PassRun`, a pass applied to one subject. It raises
:class:`LawViolation` if the pass breaks it there. :func:`pytest_fx.check_pass` searches for programs on which a pass
breaks a law. ``pytest --fx-model`` checks the laws on a model; on one of full size, only the laws that it can afford.

>>> for law in TABLE[:3]:
...     print(f"{law.name}: {law.summary}")
terminates: The pass ends on each program within ten seconds, or within ``seconds``.
refusal: The pass refuses a program that it cannot take by a ``PassError``, never by another exception.
returns a program: The pass returns a ``GraphModule``, or nothing if it edited its argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fx.argument_types import checked
from fx.registry import Registry
from pytest_fx.errors import CannotLoadError, LawViolation
from pytest_fx.forms import FormedPass
from pytest_fx.harness.metrics import is_approximate
from pytest_fx.harness.pass_run import PassRun, may_change
from pytest_fx.laws import form, form_results, gradient_law, output_laws, repetition
from pytest_fx.laws.law import Check, Law

__all__ = [
    "MOST_CALLS",
    "TABLE",
    "Check",
    "Law",
    "LawViolation",
    "PassRun",
    "affordable",
    "broken_at_levels",
    "broken_laws",
    "choose_laws",
    "is_kept_without",
    "law_called",
    "laws_not_asked",
    "why_not_asked",
]

MOST_CALLS = 12
"""The most eager calls that a law may take on a model of full size."""

_ABOUT = {
    "passes": ("passes", "transforms", "all"),
    "forms": ("forms", "transforms", "all"),
    "programs": ("programs", "all"),
}
"""For each kind of program: the values of ``Law.of`` whose laws apply to it."""

TABLE: tuple[Law, ...] = (
    Law("terminates", form.terminates, when_unchanged=True, of="transforms"),
    Law("refusal", form.refusal, when_unchanged=True, of="transforms"),
    Law("returns a program", form.returns_a_program, when_unchanged=True),
    Law("original untouched", form.original_untouched, when_unchanged=True, of="transforms"),
    Law("well formed", form.well_formed, when_unchanged=True),
    Law("code and graph agree", form.code_and_graph_agree, when_unchanged=True),
    Law("signature", form.signature, when_unchanged=True, may_change="signature"),
    Law("mode", form.mode, when_unchanged=True),
    Law("structure", output_laws.structure, of="all", judges="kinds", may_change="result"),
    Law("dtype", output_laws.dtype, of="all", judges="kinds", may_change="result"),
    Law("contract", output_laws.contract, of="all", judges="values"),
    Law("inputs untouched", output_laws.inputs_untouched, of="all", judges="values", may_change="writes"),
    Law("state", output_laws.state, of="all", judges="values", may_change="writes"),
    Law(
        "calls in a row",
        repetition.calls_in_a_row,
        of="all",
        judges="values",
        more_inputs=True,
        leaves_only=True,
    ),
    Law("checks", output_laws.checks, judges="refusals", may_change="checks", calls=9, small_only=True),
    Law("aliasing", output_laws.aliasing, of="all"),
    Law(
        "gradients",
        gradient_law.gradients,
        of="all",
        judges="gradients",
        may_change="gradients",
        calls=6,
        more_inputs=True,
        leaves_only=True,
        unless_approximate=True,
        says_less=True,
    ),
    Law(
        "batch sizes",
        output_laws.batch_sizes,
        of="all",
        judges="values",
        may_change="sizes",
        calls=6,
        more_inputs=True,
        leaves_only=True,
    ),
    Law(
        "other sizes",
        output_laws.other_sizes,
        of="all",
        judges="values",
        may_change="sizes",
        calls=12,
        more_inputs=True,
        leaves_only=True,
    ),
    Law(
        "non-contiguous inputs",
        output_laws.non_contiguous_inputs,
        of="all",
        judges="values",
        calls=4,
        more_inputs=True,
        leaves_only=True,
    ),
    Law(
        "non-finite inputs",
        output_laws.non_finite_inputs,
        of="all",
        judges="values",
        may_change="non-finite",
        calls=2,
        small_only=True,
        more_inputs=True,
        unless_approximate=True,
        says_less=True,
    ),
    Law(
        "other values",
        output_laws.other_values,
        of="all",
        judges="values",
        calls=6,
        more_inputs=True,
        leaves_only=True,
        unless_approximate=True,
    ),
    Law("other weights", output_laws.other_weights, of="programs", judges="values", calls=2, more_inputs=True),
    Law("process untouched", form.process_untouched, when_unchanged=True, of="all"),  # after all calls
    Law("deterministic", repetition.deterministic, calls=2, small_only=True),
    Law("metadata kept", form.metadata_kept, when_unchanged=True, may_change="metadata", says_less=True),
    Law("form well formed", form_results.form_well_formed, of="forms", says_less=True),
    Law("form signature", form_results.form_signature, of="forms", may_change="signature", says_less=True),
    Law("form round trips", form_results.form_round_trips, of="forms", calls=4, says_less=True),
    Law("decomposes again", form_results.decomposes_again, of="forms", calls=2, says_less=True),
    Law(
        "retraceable",
        repetition.retraceable,
        "sampled",
        may_change="tracing",
        calls=2,
        small_only=True,
        says_less=True,
    ),
    Law("round trips", repetition.round_trips, "sampled", calls=3, small_only=True, says_less=True),
    Law("idempotent", repetition.idempotent, "demanded"),
    Law("shrinks the graph", repetition.shrinks_the_graph, "demanded"),
)
"""All laws, in the order of their checks: cheap laws, and laws that explain most, come first.

The fields of :class:`Law` document the columns.
"""
_KNOWN: Registry[Law] = Registry("law", "laws", CannotLoadError)
for _law in TABLE:
    _KNOWN.register(_law.name, _law)
_CHECKS = {law.check.__name__: law.check for law in TABLE}


def __getattr__(name: str) -> Check:
    """Return the function of a law by its name: ``pytest_fx.laws.contract``."""
    if name not in _CHECKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _CHECKS[name]


@checked(CannotLoadError)
def choose_laws(
    without: str | Iterable[str] = (), demand: str | Iterable[str | Law] = (), may_change: str | Iterable[str] = ()
) -> list[Law]:
    """Return the laws to check, in order.

    Args:
        without: names of laws to leave out.
        demand: names of laws to check on every program, and laws that are not in the table.
        may_change: what the pass declares that it changes on purpose.

    Raises:
        CannotLoadError: no law has such a name; the message lists the nearest names.
    """
    without, demand, excused = _listed(without), _listed(demand), set(_listed(may_change))
    own = [each for each in demand if isinstance(each, Law)]
    wanted = {_KNOWN.get(name).name for name in demand if isinstance(name, str)}
    off = {_KNOWN.get(name).name for name in without}
    chosen = [
        law
        for law in TABLE
        if law.name in wanted or (law.kind != "demanded" and law.name not in off and law.may_change not in excused)
    ]
    return [*chosen, *own]


def _listed(names: Any) -> tuple[Any, ...]:
    """Wrap a single name, so that it is not read letter by letter."""
    return (names,) if isinstance(names, str) else tuple(names)


def law_called(name: str) -> Law:
    """Return the law of this name, or raise ``CannotLoadError``, whose message lists the nearest names."""
    return _KNOWN.get(name)


@checked(CannotLoadError)
def affordable(laws: Iterable[Law], pass_run: PassRun) -> list[Law]:
    """Return the laws that apply to ``pass_run``; on a model of full size, only those that it can afford."""
    return [law for law in laws if why_not_asked(law, pass_run) is None]


def why_not_asked(law: Law, pass_run: PassRun) -> str | None:
    """Return the reason why a law is not checked on ``pass_run``; None if it is checked."""
    is_given, subject = pass_run.is_given, pass_run.subject
    is_costly = law.small_only or law.calls > MOST_CALLS
    reasons = {
        f"it is about {law.of}": law.of not in _ABOUT[_kind(pass_run)],
        "the form of the pass has no such law": law.of == "forms" and not _is_of_form(law, pass_run),
        "its runtime computes no gradients": pass_run.is_converted and law.judges == "gradients",
        "its runtime has memory of its own": pass_run.is_converted and law.name == "aliasing",
        "nothing is changed": not law.when_unchanged and not pass_run.changed,
        "the contract is approximate": law.unless_approximate and is_approximate(pass_run.contract),
        "the caller chose the number of input sets": law.more_inputs
        and is_given
        and pass_run.chosen_input_set_count is not None
        and not (subject.steps and law.check is repetition.calls_in_a_row),
        "it costs too much on a model of full size": subject.is_full_size and is_costly,
        "it is checked with leaf modules only": subject.is_full_size and law.leaves_only and not pass_run.leaves,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _kind(pass_run: PassRun) -> str:
    """Return the key of ``pass_run`` in ``_ABOUT``."""
    return "programs" if pass_run.is_given else "forms" if pass_run.is_in_form else "passes"


def _is_of_form(law: Law, pass_run: PassRun) -> bool:
    """Return whether the form of the pass lists the law."""
    return isinstance(pass_run.pass_, FormedPass) and law.name in pass_run.pass_.form.laws


def laws_not_asked(pass_run: PassRun) -> dict[str, str]:
    """Return the laws about this kind of program that are not checked on ``pass_run``, each with the reason."""
    about = _ABOUT[_kind(pass_run)]
    excused = may_change(pass_run.pass_) if pass_run.pass_ is not None else ()
    reasons: dict[str, str] = {}
    for law in TABLE:
        excuse = f"the pass may change {law.may_change!r}" if law.may_change in excused else None
        reason = excuse or why_not_asked(law, pass_run)
        if reason is not None and law.of in about and law.kind != "demanded":
            reasons[law.name] = reason
    return {**reasons, **pass_run.not_asked}


@checked(CannotLoadError)
def broken_laws(laws: Iterable[Law], pass_run: PassRun) -> list[LawViolation]:
    """Return a violation for each of ``laws`` that ``pass_run`` breaks.

    Violations about computed results come first. If the program raises, the other violations come first, since they
    explain it. Once the pass has broken a law on values, the remaining laws are judged without a second look: excuses
    for rounding errors would not change the verdict.

    Raises:
        LawError: the function of a law reports that another law is broken.
    """
    violations: list[tuple[bool, LawViolation]] = []
    laws, looks_twice = tuple(laws), pass_run.looks_twice
    try:
        for law in laws:
            if law.judges == "gradients" and violations and not pass_run.looks_twice and pass_run.subject.is_full_size:
                pass_run.leave_out(law.name, "the outputs of the model, which is of full size, are wrong already")
                continue
            violation = law.find_violation(pass_run)
            if violation is not None and pass_run.is_in_form and not is_kept_without(law, pass_run):
                pass_run.leave_out(law.name, "torch's own result of a pass that changes nothing breaks it, too")
            elif violation is not None:
                violations.append((not law.judges or violation.kind.startswith("raises"), violation))
                is_decided = law.judges != "values" or law is laws[-1] or not pass_run.looks_twice
                if not is_decided and (pass_run.is_given or pass_run.is_in_form or is_kept_without(law, pass_run)):
                    pass_run.looks_twice = False
    finally:
        pass_run.looks_twice = looks_twice
    return [violation for _, violation in sorted(violations, key=lambda entry: entry[0])]


def broken_at_levels(laws: Callable[[PassRun], Iterable[Law]], pass_run: PassRun) -> tuple[PassRun, list[LawViolation]]:
    """Return the run at the first level of the exported program with broken laws, and their violations.

    ``laws`` returns the laws to check on a run. If no law is broken, the run is ``pass_run``.
    """
    for run in pass_run.at_each_level():
        if violations := broken_laws(laws(run), run):
            return run, violations
    return pass_run, []


@checked(CannotLoadError)
def is_kept_without(law: Law, pass_run: PassRun) -> bool:
    """Return whether the capture keeps the law without the pass; if not, the pass is not at fault."""
    unchanged = pass_run.with_nothing_changed()
    # By identity: not every check of a user can be hashed.
    return unchanged.once(("keeps", law.name, id(law.check)), lambda: law.find_violation(unchanged) is None)
