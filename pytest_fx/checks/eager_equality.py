"""``assert_equal_to_eager``: judge a program, or what a transform makes, beside a module, in any test or script."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from fx.passes import Contract, close, contract_of
from pytest_fx.errors import CoarseVerdict, ConversionError, InputError
from pytest_fx.failures.explanation import locate_in
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.evaluation import threads
from pytest_fx.harness.input_sets import InputSets, as_arguments
from pytest_fx.harness.pass_run import PassRun, may_change
from pytest_fx.harness.steps import Steps
from pytest_fx.harness.subject import Subject, is_training
from pytest_fx.laws import affordable, broken_laws, choose_laws, is_kept_without, law_called
from pytest_fx.laws.judging import calls_measured, compared
from pytest_fx.loading import load_contract, load_pass
from pytest_fx.runtimes import ConvertedProgram, loaded, runtime_of


def assert_equal_to_eager(
    module: nn.Module,
    other: Any,
    inputs: Any = None,
    *,
    steps: Any = None,
    contract: Contract | str | None = None,
    changes: Iterable[str] = (),
    form: str = "auto",
) -> Comparison:
    """Raise :class:`~pytest_fx.LawViolation` unless ``other`` computes what ``module`` does.

    Args:
        module: the original.
        other: a program or a transform. Programs are modules, compiled and scripted ones included, and converted models
            (:mod:`pytest_fx.runtimes`) or paths of their files. Anything else is a transform, as ``--fx-pass`` takes
            it: a pass, its name, or a function from a module to a program.
        inputs: example inputs of a call: a tuple of positional arguments, a dict of named ones, or the only one; or
            :class:`~pytest_fx.InputSets`, several of them with their domain. They may be left out if ``steps`` have
            those of the first call.
        steps: :class:`~pytest_fx.Steps` of several calls in a row, or their source: a list of inputs, or a function
            ``(outputs of a call, number of the next) -> inputs of the next``.
        contract: the contract, or its text; None for that of the transform, or ``close``.
        changes: properties that may change, as in the ``may_change`` of a pass: ``"non-finite"``, ``"gradients"``.
        form: the form of a transform, as ``--fx-form`` takes it.

    Returns:
        The comparison of the outputs.

    Raises:
        LawViolation: a law on programs is broken; the message says where.
        ConversionError: a converted model cannot be loaded here, or is converted from another model.
        CoarseVerdict: nothing could be compared.
        InputError: there are no inputs, they are outside of their domain, or the module itself raises in a step.

    >>> import torch
    >>> layer = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> exported = torch.export.export(layer, (torch.ones(2, 4),))
    >>> assert_equal_to_eager(layer, exported, torch.ones(2, 4)).largest_error() < 1e-6
    True
    """
    __tracebackhide__ = True
    program = loaded(other) if runtime_of(other) is not None else other
    is_program = isinstance(program, nn.Module)
    calls = None if steps is None else Steps.of(steps)
    if inputs is None and calls is not None:
        inputs = calls.first
    if inputs is None:
        raise InputError(
            f"{type(module).__name__} is called without inputs",
            remedy="give inputs=, or steps=: a list of the inputs of all calls, or Steps(function, first=inputs)",
        )
    in_training = is_training(module) and not isinstance(program, ConvertedProgram)
    name = type(module).__name__
    sets = inputs if isinstance(inputs, InputSets) else None
    if sets is not None:
        for example in sets.examples():
            sets.domain.require(example, name)
    arguments = as_arguments(inputs)
    subject = Subject(
        name,
        module,
        (lambda input_set: arguments) if sets is None else sets.arguments,
        input_set_count=None if sets is None or sets.count == 1 else sets.count,
        mode="train" if in_training else "eval",
        keeps_dtypes=True,
        domain=None if sets is None else sets.domain,
    )
    if (error := subject.eager().error) is not None:
        raise error
    if calls is not None:
        subject = subject.with_steps(calls)
    with threads(subject.threads):
        if is_program:
            name = program.name if isinstance(program, ConvertedProgram) else type(program).__name__
            promise = close if contract is None else load_contract(contract)
            pass_run = PassRun.given(subject, program, promise, name)
        else:
            pass_ = load_pass(other, form)
            promise = contract_of(pass_) if contract is None else load_contract(contract)
            pass_run = PassRun(subject, pass_, contract=promise)
        return _judged(pass_run, changes)


def _judged(pass_run: PassRun, changes: Iterable[str]) -> Comparison:
    """Check the laws, and return the comparison of the outputs."""
    __tracebackhide__ = True
    subject = pass_run.subject
    if pass_run.refusal is not None:
        raise pass_run.refusal
    if isinstance(pass_run.error, ConversionError):
        raise pass_run.error
    excused = {*changes, *(may_change(pass_run.pass_) if pass_run.pass_ is not None else ())}
    violations = broken_laws(affordable(choose_laws((), (), excused), pass_run), pass_run)
    if not pass_run.is_given:
        violations = [violation for violation in violations if is_kept_without(law_called(violation.law), pass_run)]
    if violations:
        _, lines = locate_in(pass_run, violations[0].law, violations[0].inputs)
        violation = violations[0].with_others(violations[1:])
        raise (violation.with_details("\n".join(lines)) if lines else violation) from violations[0].__cause__
    if pass_run.not_judged is not None or (pass_run.changed and not pass_run.compared):
        why = pass_run.not_judged or "no output is a finite number, or the program takes none of the inputs"
        raise CoarseVerdict(f"{pass_run.name} is not judged on {subject.name}", why=why, remedy="give other inputs")
    return compared(pass_run, calls_measured(pass_run), lambda run: run.output)
