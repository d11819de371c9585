"""The object behind the fixture ``fx_equal``: it checks, and tells the summary."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from fx.errors import add_note
from fx.passes import Approximate, Close, Contract, Pass, close, contract_of, pass_name

from .comparison.capture import GraphModule
from .comparison.contracts import Comparison
from .comparison.rewriting import may_change, rewritten
from .comparison.subject import Subject
from .comparison.verification import alike_on, compare, require, verify
from .errors import ComparisonError, ContractViolation, MemoryLayoutWarning
from .failures.details import fitted
from .failures.explanation import explain
from .failures.failure import Failure
from .laws.example import Example, GivenProgram
from .laws.gradients import gradients, look_kept
from .loading import importable_name
from .options import options_of
from .recording import record_row
from .storage.journal import FOLDER
from .summary import Row

WITHOUT_LEAVES = ", no leaf modules"
"""What the summary adds to the name of a program captured in functions only."""


class EqualityCheck:
    """Compares what a pass, or a program, computes with what the model does."""

    def __init__(self, subject: Subject, item: pytest.Item) -> None:
        self._subject = subject
        self._item = item
        self._options = options_of(item)

    def __call__(
        self,
        transform: Pass | nn.Module,
        contract: Contract | None = None,
        label: str | None = None,
        *,
        leaves: bool = True,
        draws: int | None = None,
    ) -> Comparison:
        """Raise :class:`~pytest_fx.errors.ContractViolation` if ``transform`` breaks its contract.

        ``contract`` stands in for what the command line or the pass itself says, or for ``close`` if ``transform`` is
        a program; ``label`` is what the summary calls it. A pass is applied to a capture in functions only if
        ``leaves`` is false. It is called with ``draws`` sets of inputs, or as many as it takes to tell that
        it is not made for one. Skips the test if the model has no example inputs.
        """
        __tracebackhide__ = True
        require_inputs(self._subject)
        if isinstance(transform, nn.Module):
            return self._check_program(transform, contract or close, label or self._item.name, draws)
        label = label or pass_name(transform) + ("" if leaves else WITHOUT_LEAVES)
        contract = contract or self._contract_for(transform)
        self._require_working_model()
        try:
            comparison = self._check_pass(transform, contract, label, leaves, draws)
        except ComparisonError:
            raise
        except Exception as error:
            name = importable_name(transform, self._options.passes)
            failure = Failure(self._subject, transform, contract, error, label, name, leaves, self._item.nodeid)
        else:
            for note in comparison.notes:
                warnings.warn(f"{label} on {self._subject.name}: {note}", MemoryLayoutWarning, stacklevel=2)
            return comparison
        raise self._explained(failure)

    def _require_working_model(self) -> None:
        """Raise what the model raises when it is captured or called: that is no failure of a pass."""
        __tracebackhide__ = True
        if self._subject.capture_error is not None:
            raise self._subject.capture_error
        self._subject.eager_answers(torch.float64, 1)

    def _explained(self, failure: Failure) -> Exception:
        """The error of ``failure`` with what is known about it: in its message if it is ours, or else in a note."""
        details = explain(failure, self._item.config.rootpath / FOLDER)
        if isinstance(failure.error, ContractViolation):
            return failure.error.with_message(f"{fitted(str(failure.error))}\n{details}")
        add_note(failure.error, f"in {failure.label} on {self._subject.name}\n{details}")
        return failure.error

    def at_another_batch(self, pass_: Pass) -> None:
        """Raise :class:`~pytest_fx.errors.ContractViolation` if ``pass_`` makes a program for one number of samples.

        Skips the test if it is not known how to make other inputs, or the model does not take them.
        """
        __tracebackhide__ = True
        other = require_inputs(self._subject).at_another_batch
        if other is None:
            pytest.skip(f"{self._subject.name} has no inputs with another number of samples, or does not take them")
        contract = self._contract_for(pass_)
        program = rewritten(self._subject, pass_).program
        try:
            if not isinstance(contract, Close) or not alike_on(other, program, pass_name(pass_), self._subject):
                require(compare(other, program, None, pass_name(pass_)), contract)
        except ContractViolation:
            EqualityCheck(other, self._item)(pass_, contract)  # asks in float64 as well, and looks for the reason

    def gradients(self, pass_: Pass) -> None:
        """Raise :class:`~pytest_fx.laws.LawViolation` if inputs, or parameters that are kept, get other gradients.

        Skips the test if the pass makes no promise about them.
        """
        __tracebackhide__ = True
        contract = self._contract_for(pass_)
        if "gradients" in may_change(pass_) or isinstance(contract, Approximate):
            pytest.skip(f"{pass_name(pass_)} makes no promise about gradients")
        self._require_working_model()
        subject, arguments = self._subject, require_inputs(self._subject).arguments()
        rewriting = rewritten(subject, pass_)
        if not look_kept(rewriting.original, rewriting.program, arguments, subject.dtype):
            gradients(Example(pass_, GivenProgram(subject.fresh, arguments), contract=contract))

    def _contract_for(self, pass_: Pass) -> Contract:
        """What the hook says: somebody's implementation, or else the command line, or else the pass itself."""
        config = self._item.config
        return config.hook.pytest_fx_contract(
            config=config, model=self._subject.name, pass_=pass_, contract=contract_of(pass_), options=self._options
        )

    def _check_pass(self, pass_: Pass, contract: Contract, label: str, leaves: bool, draws: int | None) -> Comparison:
        __tracebackhide__ = True
        verification = verify(self._subject, pass_, contract, label, leaves=leaves, draws=draws)
        before, after = verification.rewriting.nodes_before, verification.rewriting.nodes_after
        row = Row(self._subject.name, label, nodes_before=before, nodes_after=after)
        return self._judge(verification.comparison, contract, row)

    def _check_program(self, program: nn.Module, contract: Contract, label: str, draws: int | None) -> Comparison:
        __tracebackhide__ = True
        nodes = len(program.graph.nodes) if isinstance(program, GraphModule) else None
        comparison = compare(self._subject, program, None, label, draws)
        return self._judge(comparison, contract, Row(self._subject.name, label, nodes_after=nodes))

    def _judge(self, comparison: Comparison, contract: Contract, row: Row) -> Comparison:
        __tracebackhide__ = True
        # Recorded first, so that the summary has the errors of a pass that breaks its contract, too.
        record_row(
            self._item,
            row.with_errors(
                dtype=str(self._subject.dtype).removeprefix("torch."),
                float64_error=comparison.largest_error64(),
                error=comparison.largest_error(),
                eager_error=comparison.largest_eager_error(),
            ),
        )
        require(comparison, contract)
        return comparison


def require_inputs(subject: Subject) -> Subject:
    """Return ``subject``, or skip the test if it has no example inputs."""
    if not subject.has_inputs:
        pytest.skip(f"{subject.name} has no example inputs: let its factory return (module, inputs)")
    return subject
