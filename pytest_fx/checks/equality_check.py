"""The object behind the fixture ``fx_equal``: it checks the laws, and reports to the summary."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fx import GraphModule
from fx.interop import AdaptedPass
from fx.passes import Close, Contract, Pass, close, contract_of
from pytest_fx.checks.failure_facts import failure_facts, reason_of
from pytest_fx.checks.match_counts import note_nearest_match, require_changes, require_no_less, row_of
from pytest_fx.checks.training_mode import computes_otherwise, makes_difference, why_not_in_training
from pytest_fx.collection import keywords_of_model, label_of
from pytest_fx.errors import (
    CoarseVerdict,
    ContractViolation,
    ConversionError,
    InputError,
    MemoryLayoutWarning,
    MetricError,
    first_line,
)
from pytest_fx.failures.details import shortened
from pytest_fx.failures.explanation import FailureExplanation, locate_in
from pytest_fx.failures.failure import Failure
from pytest_fx.failures.gradient_localization import GradientError
from pytest_fx.failures.node_error import NodeError
from pytest_fx.forms import FormedPass
from pytest_fx.harness.contracts import Comparison
from pytest_fx.harness.detection import DetectionLimit, detection_limit
from pytest_fx.harness.evaluation import threads
from pytest_fx.harness.metrics import Measured, is_approximate
from pytest_fx.harness.output_contracts import PerOutput
from pytest_fx.harness.pass_run import PassRun, applied, may_change, parts_of
from pytest_fx.harness.run import layout_notes
from pytest_fx.harness.steps import Steps
from pytest_fx.harness.structure import dtype_name, leaves
from pytest_fx.harness.subject import Inputs, Subject
from pytest_fx.harness.tolerances import COARSE
from pytest_fx.harness.training import TrainingComparison, TrainingSteps, compare_training, require_trained
from pytest_fx.laws import (
    Law,
    LawViolation,
    affordable,
    broken_at_levels,
    broken_laws,
    choose_laws,
    is_kept_without,
    law_called,
    laws_not_asked,
)
from pytest_fx.laws.judging import calls_measured, compared
from pytest_fx.laws.ways_out import form_lines, with_ways_out
from pytest_fx.loading import chosen_pass, importable_name, load_contract, with_tolerances
from pytest_fx.options import options_of
from pytest_fx.records.running import FOLDER, announce
from pytest_fx.report.recording import note_row, record_failure, record_row
from pytest_fx.report.rows import NOT_JUDGED, WRONG, SummaryRow
from pytest_fx.runtimes import loaded, runtime_of

WITHOUT_LEAVES = ", no leaf modules"
"""Suffix in the summary for a program that was captured in functions only."""
FOR_INFERENCE = "  try    for a pass for inference alone, return model.eval() from the factory, or give --fx-mode eval"
"""Advice for a law that is broken only in training mode, the mode of the factory's model."""
CLEAN_UP_TOO = "  note   torch.fx's own clean-up, which the pass calls, breaks this law here without the pass, too"
"""Note for a law that is broken by a torch.fx pass through torch.fx's clean-up, and not through its own edits."""


class EqualityCheck:
    """Checks the laws of a pass on a model, or compares a program with the model."""

    def __init__(self, subject: Subject, item: pytest.Item) -> None:
        self._subject = subject
        self._item = item
        self._options = options_of(item)
        self._changes: frozenset[str] = frozenset()
        """Properties that may change, beside those that the pass declares."""

    def __call__(
        self,
        transform: str | Pass | nn.Module,
        contract: Contract | str | Mapping[Any, Any] | None = None,
        label: str | None = None,
        *,
        leaves: bool = True,
        input_sets: int | None = None,
        unless_reported: bool = False,
        small_test: bool = True,
        form: str | None = None,
        changes: Iterable[str] = (),
        steps: Any = None,
    ) -> Comparison:
        """Raise :class:`~pytest_fx.LawViolation` if ``transform`` breaks its contract, or another law.

        A program in training mode is compared with the model in training mode, if the model's factory returns it so.
        On a model of full size, only the laws that it can afford are checked. The test is skipped if the pass refuses
        the model.

        Args:
            transform: a program, a converted model (:mod:`pytest_fx.runtimes`) or the path of its file, or a value that
                ``--fx-pass`` accepts: a pass, or its name.
            contract: a contract, its text, or a dict of contracts by the paths of outputs. It replaces the contract of
                the command line or the pass, or ``close`` for a program.
            label: name of the program in the summary.
            leaves: False if a pass is applied to a capture in functions only.
            input_sets: number of input sets on which a program is compared; it is then called with no other inputs,
                and not differentiated. By default, enough sets to detect a program that is made for one of them.
            unless_reported: True if the test is skipped for a failure that was already reported on another capture of
                the model.
            small_test: True if a test that reproduces the failure of a pass alone is cut out of the model.
            form: the form of a pass, as ``--fx-form`` takes it.
            changes: properties that may change, as in the ``may_change`` of a pass, of a program above all.
            steps: :class:`~pytest_fx.Steps` of several calls in a row, or their source, as
                :func:`~pytest_fx.assert_equal_to_eager` takes it. They replace those that the factory declares.

        Raises:
            ConversionError: a converted model cannot be loaded here, or is converted from another model.
            InputError: the model has no example inputs, or itself raises in a step.
            CannotLoadError: the contract names an output that the model does not return.
        """
        __tracebackhide__ = True
        self._changes = frozenset(changes)
        contract = None if contract is None else load_contract(contract)
        require_inputs(self._subject)
        if steps is not None:
            check = self._on(self._subject.with_steps(Steps.of(steps)))
            return check(
                transform, contract, label, leaves=leaves, input_sets=input_sets, unless_reported=unless_reported,
                small_test=small_test, form=form, changes=changes,
            )  # fmt: skip
        if runtime_of(transform) is not None:
            transform = loaded(transform)
        if not isinstance(transform, nn.Module):
            transform = chosen_pass(self._item.config, transform, form or self._options.form)
        self._require_working_model(captured=not isinstance(transform, (nn.Module, FormedPass)))
        with threads(self._subject.threads):  # also while a failure is localized
            if isinstance(transform, nn.Module):
                check = self._on(self._subject_like(transform))
                return check._of_program(transform, contract, label, leaves, input_sets)
            return self._of_pass_in_modes(transform, contract, label, leaves, input_sets, unless_reported, small_test)

    def _on(self, subject: Subject) -> EqualityCheck:
        """Return the same check on another subject."""
        check = EqualityCheck(subject, self._item)
        check._changes = self._changes
        return check

    def training(
        self, transform: str | Pass | nn.Module, steps: TrainingSteps, label: str | None = None
    ) -> TrainingComparison:
        """Raise :class:`~pytest_fx.LawViolation` unless ``transform`` is trained as eager is, up to rounding.

        Losses, parameters and buffers after the steps are compared (:mod:`pytest_fx.harness.training`). The model must
        be in training mode: its factory returns it so, or the run has ``--fx-mode train``.

        Args:
            transform: a program with the model's parameters, or a pass, or its name.
            steps: loss, optimizer and batches, from :func:`pytest_fx.training_steps`.
            label: name of the program in the summary.

        Raises:
            InputError: the model is in evaluation mode, or eager itself cannot be trained.
        """
        __tracebackhide__ = True
        subject = self._subject.in_training or self._subject
        if subject.mode != "train":
            raise InputError(
                f"{subject.name} is in evaluation mode, in which nothing is trained",
                remedy="return model.train() from the factory, or give --fx-mode train",
            )
        if isinstance(transform, nn.Module):
            program, name = transform, label or self._item.name
        else:
            pass_ = chosen_pass(self._item.config, transform, self._options.form)
            pass_run, name = applied(subject, pass_, leaves=True), label or label_of(self._item, pass_)
            if pass_run.refusal is not None:
                pytest.skip(f"{name} refuses {subject.name}: {first_line(pass_run.refusal)}")
            if pass_run.program is None:
                raise pass_run.error or TypeError(f"{name} returned no program")
            program = pass_run.program
        row = SummaryRow(subject.name, name)
        try:
            with threads(subject.threads):
                comparison = compare_training(subject.fresh(), program, steps)
            record_row(self._item, replace(row, training=str(comparison), changed=True))
            require_trained(comparison, name, subject.name)
        except LawViolation as violation:
            record_row(self._item, replace(row, outcome=f"{WRONG}: {violation.law}"))
            self._subject.wrong[name] = violation.law
            raise
        note_row(self._item, replace(row, kept=True))
        return comparison

    def _subject_like(self, program: nn.Module) -> Subject:
        """Return the model in training mode if the program is in it, and the model's factory returns the model so."""
        in_training = self._subject.in_training
        if in_training is None or not all(part.training for part in program.modules()):
            return self._subject
        return in_training if computes_otherwise(self._subject, in_training) else self._subject

    def _of_program(
        self, program: nn.Module, contract: Contract | None, label: str | None, leaves: bool, input_sets: int | None
    ) -> Comparison:
        __tracebackhide__ = True
        promise = contract or with_tolerances(self._options, close)
        _require_paths(promise, self._subject)
        pass_run = PassRun.given(self._subject, program, promise, label or self._item.name, input_sets)
        nodes = len(program.graph.nodes) if isinstance(program, GraphModule) else None
        comparison = self._recorded(pass_run, SummaryRow(self._subject.name, pass_run.name, nodes_after=nodes))
        violations = self._broken(pass_run)
        if violations:
            self._record_wrong(pass_run, violations)
            wrong, lines = locate_in(pass_run, violations[0].law, violations[0].inputs)
            violation = violations[0].with_others(violations[1:])
            raise with_cause(violations, self._reported(pass_run, comparison, violation, wrong, lines))
        self._require_compared(pass_run)
        self._require_detection(pass_run, comparison)
        return comparison

    def _of_pass_in_modes(self, pass_: Pass, *options: Any) -> Comparison:
        """Check the laws of a pass, and once more in training mode if the model's factory returns it so."""
        __tracebackhide__ = True
        skipped: BaseException | None = None
        comparison: Comparison | None = None
        try:
            comparison = self._of_pass(pass_, *options)
        except pytest.skip.Exception as refused:  # the pass may refuse only this mode
            skipped = refused
        if (in_training := self._subject.in_training) is not None:
            self._on(in_training)._in_training(self._subject, pass_, *options)
        if comparison is None:
            assert skipped is not None
            raise skipped
        return comparison

    def _in_training(
        self, in_evaluation: Subject, pass_: Pass, contract: Any, label: str | None, leaves: bool, *options: Any
    ) -> None:
        """Check the laws of a pass on a model in training mode, if the mode matters and the model can be called."""
        __tracebackhide__ = True
        if (why := why_not_in_training(self._subject)) is not None:
            name = (label or label_of(self._item, pass_)) + ("" if leaves else WITHOUT_LEAVES)
            record_row(self._item, SummaryRow(self._subject.name, name, outcome=f"{NOT_JUDGED}: {why}"))
            if self._options.strict:
                raise CoarseVerdict(
                    f"{name} is not judged on {self._subject.name}",
                    why=f"{why}; --fx-strict asks for a verdict",
                    remedy="give inputs that the model takes in training mode, more samples say, or --fx-mode eval",
                )
        elif makes_difference(in_evaluation, self._subject, pass_, leaves=leaves):
            try:
                with suppress(pytest.skip.Exception):  # the summary row has the reason
                    self._of_pass(pass_, contract, label, leaves, *options)
            except LawViolation as violation:
                raise with_cause([violation], violation.with_details(FOR_INFERENCE)) from violation.__cause__

    def _of_pass(
        self,
        pass_: Pass,
        contract: Contract | None,
        label: str | None,
        leaves: bool,
        input_sets: int | None,
        unless_reported: bool,
        small_test: bool,
    ) -> Comparison:
        __tracebackhide__ = True
        name = label or label_of(self._item, pass_) + ("" if leaves else WITHOUT_LEAVES)
        announce(self._item.config, f"{name} on {self._subject.name}")
        promise = contract or self._contract_for(pass_)
        _require_paths(promise, self._subject)
        pass_run = applied(self._subject, pass_, leaves=leaves)  # applied once for all tests
        pass_run.contract, pass_run.chosen_input_set_count, pass_run.name = promise, input_sets, name
        pass_run.make_room()
        row = row_of(pass_run)
        comparison = self._recorded(pass_run, row)
        if leaves:
            note_nearest_match(self._item, pass_run)
            require_changes(self._item, pass_run)
        if pass_run.refusal is not None:
            pytest.skip(f"{pass_run.name} refuses {self._subject.name}: {first_line(pass_run.refusal)}")
        self._require_readable(pass_run)
        with self._metric_recorded(pass_run):
            wrong_run, broken = broken_at_levels(self._laws_for, pass_run)
        pass_run, broken = wrong_run, self._due(wrong_run, broken)
        violations = self._not_waived(pass_run, broken)
        if violations and pass_run.is_converted:
            self._record_wrong(pass_run, violations)
            violation = with_ways_out(violations[0], violations[1:], pass_, pass_run.mode)
            lines = [*form_lines(pass_run), *locate_in(pass_run, violations[0].law, violations[0].inputs)[1]]
            raise with_cause(violations, self._reported(pass_run, comparison, violation, None, lines))
        if violations:
            if row.outcome is None:
                self._record_wrong(pass_run, violations)
            raise with_cause(violations, self._explained(pass_run, comparison, violations, unless_reported, small_test))
        if broken:
            self._record_outcome(pass_run, f"{NOT_JUDGED}: torch.fx breaks {broken[0].law!r}")
            pytest.skip(
                f"{pass_run.name} is not judged on {self._subject.name}, where torch.fx's own tools for passes "
                f"break the law {broken[0].law!r}: {first_line(pass_run.error or broken[0])}"
            )
        self._require_compared(pass_run)
        self._require_detection(pass_run, comparison)
        self._warn_of_layouts(pass_run)
        require_no_less(self._item, pass_run)
        return comparison

    def _require_readable(self, pass_run: PassRun) -> None:
        """Skip the test of a pass that got no program, or whose result cannot be called; fail it if strict.

        Raises :class:`ConversionError` if its result is a converted model that cannot be loaded, or of another model.
        """
        __tracebackhide__ = True
        if isinstance(pass_run.error, ConversionError):
            self._record_outcome(pass_run, f"{NOT_JUDGED}: {first_line(pass_run.error)}")
            raise pass_run.error
        if pass_run.not_judged is None:
            return
        self._record_outcome(pass_run, f"{NOT_JUDGED}: {pass_run.not_judged.partition(chr(10))[0]}")
        what = f"{pass_run.name} is not judged on {self._subject.name}: {pass_run.not_judged}"
        if self._options.strict:
            raise CoarseVerdict(what, why="--fx-strict asks for a verdict", remedy="see docs/forms.md for the forms")
        pytest.skip(what)

    def _require_working_model(self, *, captured: bool) -> None:
        """Raise the error of the model if it cannot be called, or captured for a pass: the pass is not at fault."""
        __tracebackhide__ = True
        error = (self._subject.capture_error if captured else None) or self._subject.eager().error
        if error is not None:
            raise error

    def _broken(self, pass_run: PassRun) -> list[LawViolation]:
        """Return the violations of affordable laws that the capture itself keeps."""
        with self._metric_recorded(pass_run):
            return self._due(pass_run, broken_laws(self._laws_for(pass_run), pass_run))

    @contextmanager
    def _metric_recorded(self, pass_run: PassRun) -> Generator[None]:
        """Record the metric that the laws measure, also if it raises."""
        try:
            yield
        except (MetricError, InputError) as error:  # of the labelled data, or a mask: the program is not at fault
            self._record_outcome(pass_run, f"{NOT_JUDGED}: {first_line(error)}")
            raise
        finally:
            if pass_run.metric_drop is not None:
                record_row(self._item, SummaryRow(self._subject.name, pass_run.name).with_metric(pass_run.metric_drop))

    def _laws_for(self, pass_run: PassRun) -> list[Law]:
        """Return the affordable laws."""
        pass_ = pass_run.pass_
        excused = {*self._changes, *(may_change(pass_) if pass_ else ())}
        if self._options.inference:
            excused.add("gradients")
            pass_run.leave_out("gradients", "the run is for inference (--fx-inference)")
        return affordable(choose_laws((), (), excused), pass_run)

    def _due(self, pass_run: PassRun, violations: list[LawViolation]) -> list[LawViolation]:
        """Return the violations that the capture itself does not cause."""
        if pass_run.before is None:
            return violations
        due = [violation for violation in violations if is_kept_without(law_called(violation.law), pass_run)]
        for violation in violations:
            if violation not in due:
                exported = ", as it is exported for one call" if self._subject.is_exported else ""
                pass_run.leave_out(violation.law, f"the capture itself breaks it{exported}")
        return due

    def _not_waived(self, pass_run: PassRun, violations: list[LawViolation]) -> list[LawViolation]:
        """Return the violations that count against a torch.fx pass; all violations of another pass.

        If torch.fx cannot capture the model, its violations do not count. A law that torch.fx's own clean-up breaks
        without the pass is still broken for users of the program: it counts, with a note.
        """
        if not violations or not any(isinstance(part, AdaptedPass) for part in parts_of(pass_run.pass_)):
            return violations
        # Imported late: it reads the references of the pass by the grammar of random programs.
        blame: Any = importlib.import_module("pytest_fx.search.blame").Blame(pass_run.pass_)
        blamed: list[LawViolation] = []
        for violation in violations:
            if blame.caused_by_pass(law_called(violation.law), pass_run):
                blamed.append(violation)
            elif pass_run.program is not None:
                blamed.append(violation.with_details(CLEAN_UP_TOO))
        return blamed

    def _recorded(self, pass_run: PassRun, row: SummaryRow) -> Comparison:
        """Compare the outputs with eager's, and record the errors in the summary whether or not the laws are kept."""
        if not pass_run.changed:
            record_row(self._item, row)
            outputs = [pass_run.eager().output]
            return Comparison(self._subject.name, pass_run.name, outputs, outputs, outputs)
        inputs = _inputs_taken(pass_run)
        if not inputs:
            record_row(self._item, row)
            return Comparison(self._subject.name, pass_run.name, [], [], [])
        comparison = compared(pass_run, inputs, lambda run: run.output)
        try:
            errors = (comparison.largest_error64(), comparison.largest_error(), comparison.largest_eager_error())
        except ContractViolation:  # the outputs have different structures
            record_row(self._item, row)
            return comparison
        contract = pass_run.contract
        row = replace(
            row,
            dtype=dtype_name(self._subject.dtype),
            float64_error=errors[0],
            error=errors[1],
            eager_error=errors[2],
            allowed_error=comparison.bound_of_largest_error(contract) if isinstance(contract, Close) else None,
        )
        if (limit := detection_limit(comparison, contract)) is not None:
            limits = (limit.all_elements, limit.largest_element, limit.median_element)
            is_coarse = limit.all_elements > COARSE and not is_approximate(contract)
            row = row.with_detection(limits, is_coarse=is_coarse)
        record_row(self._item, row)
        return comparison

    def _record_wrong(self, pass_run: PassRun, violations: list[LawViolation]) -> None:
        """Record the first broken law in the summary row, and exclude the program from timing."""
        law = violations[0].law
        self._record_outcome(pass_run, f"{WRONG}: {law}")
        self._subject.wrong[pass_run.name] = law

    def _record_outcome(self, pass_run: PassRun, outcome: str) -> None:
        record_row(self._item, SummaryRow(self._subject.name, pass_run.name, outcome=outcome))

    def _require_compared(self, pass_run: PassRun) -> None:
        """Skip the test if nothing of the program was compared; fail it if a verdict is demanded."""
        __tracebackhide__ = True
        if not pass_run.changed or pass_run.compared:
            return
        what = f"{pass_run.name} is not judged on {self._subject.name}: {_why_nothing_was_compared(pass_run)}"
        self._record_outcome(pass_run, f"{NOT_JUDGED}: {_why_nothing_was_compared(pass_run)}")
        if self._options.detect is None and not self._options.strict:
            pytest.skip(what)
        raise CoarseVerdict(
            what,
            why=f"{'--fx-strict' if self._options.detect is None else '--fx-detect'} asks for a verdict",
            remedy="give example inputs for which the model returns numbers",
        )

    def _require_detection(self, pass_run: PassRun, comparison: Comparison) -> None:
        """Record the waivers of a kept contract, and check that the recorded errors keep its bound.

        Raises :class:`~pytest_fx.errors.CoarseVerdict` if the detection limit exceeds that of ``--fx-detect``, and
        under ``--fx-strict`` if a difference was waived.
        """
        __tracebackhide__ = True
        if not pass_run.changed:
            return
        if not pass_run.waivers and isinstance(pass_run.contract, Close):
            comparison.require(pass_run.contract)  # the row shows the same errors that were judged
        limit, wanted = detection_limit(comparison, pass_run.contract), self._options.detect
        is_coarse = wanted is not None and (limit is None or limit.all_elements > wanted)
        row = SummaryRow(self._subject.name, pass_run.name)
        if pass_run.waivers:
            record_row(self._item, replace(row, waiver="; ".join(pass_run.waivers)))
        outcome = f"{NOT_JUDGED}: the detection limit is {'not known' if limit is None else 'too high'}"
        row = replace(row, not_asked=laws_not_asked(pass_run) or None)
        note_row(self._item, replace(row, kept=not is_coarse, outcome=outcome if is_coarse else None))
        if wanted is not None and is_coarse:
            raise _coarse(pass_run, limit, dtype_name(self._subject.dtype), wanted)
        if pass_run.waivers and self._options.strict:
            raise CoarseVerdict(
                f"{pass_run.name} keeps {pass_run.contract} on {self._subject.name} only with a waiver",
                value="; ".join(pass_run.waivers),
                why="--fx-strict accepts no difference beyond the contract",
                remedy="give inputs on which eager is well-conditioned, promise a wider contract, or leave --fx-strict",
            )

    def _reported(
        self,
        pass_run: PassRun,
        comparison: Comparison,
        violation: LawViolation,
        wrong: NodeError | GradientError | None,
        lines: Sequence[str],
        explanation: FailureExplanation | None = None,
    ) -> LawViolation:
        """Return the violation with its explanation; add a line to the summary, and the facts to reports."""
        reason = reason_of(violation, wrong)
        note_row(self._item, SummaryRow(self._subject.name, pass_run.name, reason=reason))
        if self._options.reports:
            facts = failure_facts(pass_run, comparison, violation, wrong, lines, explanation)
            record_failure(self._item, facts)
        message = violation.with_message("\n".join(map(shortened, [str(violation), *lines])))
        message.reason = reason
        return message

    def _explained(
        self,
        pass_run: PassRun,
        comparison: Comparison,
        violations: list[LawViolation],
        unless_reported: bool,
        small_test: bool,
    ) -> LawViolation:
        """Return the first violation with its explanation; skip the test if another test reports the same failure."""
        violation, pass_ = violations[0], pass_run.pass_
        name = importable_name(pass_, self._options.passes)
        failure = Failure(
            self._subject, pass_, pass_run.contract, violation, pass_run.name, name, pass_run.leaves,
            self._item.nodeid, keywords_of_model(self._item),
        )  # fmt: skip
        self._subject.tidy_up()  # frees the copy of a large model in float64
        explanation = FailureExplanation(failure)
        if unless_reported and (pass_, explanation.cause) in self._subject.reported_failures:
            pytest.skip(f"{pass_run.name} breaks the law {violation.law!r} in the way that another test reports")
        self._subject.reported_failures.append((pass_, explanation.cause))
        explanation.write(self._item.config.rootpath / FOLDER, small_test=small_test)
        message = with_ways_out(violation, violations[1:], pass_, pass_run.mode)
        lines = [*form_lines(pass_run), *explanation.lines]
        return self._reported(pass_run, comparison, message, explanation.wrong, lines, explanation)

    def _warn_of_layouts(self, pass_run: PassRun) -> None:
        expected, actual = pass_run.eager(), pass_run.actual()
        for note in layout_notes(expected.output, actual.output):
            text = f"{pass_run.name} on {self._subject.name}: {note}"
            warnings.warn(text, MemoryLayoutWarning, stacklevel=3)

    def _contract_for(self, pass_: Pass) -> Contract:
        """Return the contract of the hook: of a user's implementation, else the command line, else the pass."""
        config = self._item.config
        contract = config.hook.pytest_fx_contract(
            config=config, model=self._subject.name, pass_=pass_, contract=contract_of(pass_), options=self._options
        )
        return load_contract(contract)


def _coarse(pass_run: PassRun, limit: DetectionLimit | None, dtype: str, wanted: float) -> CoarseVerdict:
    """Return the error of a verdict whose detection limit is above the demanded one, or unknown."""
    judged = "in float64 too" if pass_run.has_float64 else f"in {dtype} alone"
    verdict = f"{pass_run.name} keeps {pass_run.contract} on {pass_run.subject.name}, but"
    if limit is None:
        return CoarseVerdict(
            f"{verdict} the smallest error that would have been caught is unknown",
            why=f"no output is a floating-point number other than 0; --fx-detect asks for {wanted:.1e}",
            remedy="return such outputs, or leave --fx-detect for this model",
        )
    return CoarseVerdict(
        f"{verdict} so would outputs that are off by {limit.all_elements:.1e}",
        value=f"detection limit {limit.all_elements:.1e} of all elements, {limit.largest_element:.1e} of the largest, "
        f"{limit.median_element:.1e} of one of median size",
        why=f"it is judged {judged}; --fx-detect asks for {wanted:.1e}",
        remedy="judge it in float32 or float64 (--fx-dtype), give a pass in place of a program, which is judged in "
        "float64, too, or promise a stricter contract",
    )


def _inputs_taken(pass_run: PassRun) -> list[Inputs]:
    """Return the input sets and the steps in which eager and the program both can be called."""
    return [] if pass_run.program is None else calls_measured(pass_run)


def _why_nothing_was_compared(pass_run: PassRun) -> str:
    outputs = [pass_run.eager(number).output for number in _inputs_taken(pass_run)]
    if not outputs:
        return "eager and the program both take none of the inputs"
    tensors = [leaf for _, leaf in leaves(outputs) if isinstance(leaf, torch.Tensor)]
    if not any(tensor.numel() for tensor in tensors):
        return "all outputs are empty" if tensors else "it returns nothing"
    return "no output is a finite number"


def _require_paths(contract: Contract, subject: Subject) -> None:
    """Raise ``CannotLoadError`` if a contract names an output that the model does not return."""
    whole = contract.values if isinstance(contract, Measured) else contract
    if isinstance(whole, PerOutput):
        whole.require_paths(subject.eager().output, subject.name)


def with_cause(violations: list[LawViolation], violation: LawViolation) -> LawViolation:
    """Return ``violation`` with the cause of the first of ``violations``."""
    violation.__cause__ = violations[0].__cause__
    violation.__suppress_context__ = True
    return violation


def require_inputs(subject: Subject) -> Subject:
    """Return ``subject``, or raise ``InputError`` if it has no example inputs; later tests of it are skipped."""
    __tracebackhide__ = True
    if subject.has_inputs:
        return subject
    what = f"{subject.name} has no example inputs"
    if what in subject.reported:
        pytest.skip(f"{what}: another of its tests says how to give them")
    subject.reported.add(what)
    raise InputError(
        what,
        why="a model that cannot be called is captured, and nothing that it computes is compared",
        remedy="let its factory return a pair: (module, inputs), inputs a tuple (positional), a dict (keywords) or the "
        "only argument",
    )
