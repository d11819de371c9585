"""The objects behind the fixtures ``fx_equal`` and ``fx_timing``: they check or time, and tell the summary."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch import nn

from fx.passes import Contract, Pass, close, contract_of, pass_name

from .benchmark_records import BenchmarkRecord, add_benchmark, reason_not_to_time
from .capture import GraphModule
from .contracts import Comparison
from .errors import ContractViolation
from .explanation import explain
from .options import options_of
from .rewriting import rewrite
from .subject import Subject
from .summary import Row, record_row
from .timing import PairedTiming, time_pairs
from .verification import compare, require, verify

FAILURES = ".pytest_fx"
"""Folder below pytest's root folder where test files go that show a failure alone."""
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
        ``leaves`` is false. A program is called with ``draws`` sets of inputs, or as many as it takes to tell that it
        is not made for one. Skips the test if the model has no example inputs.
        """
        __tracebackhide__ = True
        require_inputs(self._subject)
        if isinstance(transform, nn.Module):
            return self._check_program(transform, contract or close, label or self._item.name, draws)
        label = label or pass_name(transform) + ("" if leaves else WITHOUT_LEAVES)
        contract = contract or self._contract_for(transform)
        try:
            return self._check_pass(transform, contract, label, leaves)
        except ContractViolation as error:
            violation = error
            folder = self._item.config.rootpath / FAILURES
            details = explain(self._subject, transform, contract, violation, label, folder, leaves=leaves)
        raise violation.with_details(details)

    def _contract_for(self, pass_: Pass) -> Contract:
        """What the hook says: somebody's implementation, or else the command line, or else the pass itself."""
        config = self._item.config
        return config.hook.pytest_fx_contract(
            config=config, model=self._subject.name, pass_=pass_, contract=contract_of(pass_), options=self._options
        )

    def _check_pass(self, pass_: Pass, contract: Contract, label: str, leaves: bool) -> Comparison:
        __tracebackhide__ = True
        verification = verify(self._subject, pass_, contract, label, leaves=leaves)
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


class TimingCheck:
    """Times a pass, or a program, in pairs with eager, and records both as benchmarks."""

    def __init__(self, subject: Subject, item: pytest.Item, threads: int | None = None) -> None:
        """``threads`` is how many PyTorch computes with; None for the first number that was asked for."""
        self._subject = subject
        self._item = item
        self._options = options_of(item)
        self._threads = threads or self._options.threads[0]

    def __call__(self, transform: Pass | nn.Module, label: str | None = None) -> PairedTiming:
        """Return what ``--fx-rounds`` pairs of calls took. Skips the test where times would mean nothing."""
        require_inputs(self._subject)
        reason = reason_not_to_time(self._item.config) if self._options.timing else "no times are wanted"
        if reason is not None:
            pytest.skip(reason)
        if isinstance(transform, nn.Module):
            program, label = transform, label or self._item.name
        else:
            program, label = rewrite(self._subject, transform).program, label or pass_name(transform)
        if len(self._options.threads) > 1:
            label = f"{label}, {self._threads} thread(s)"
        device = self._subject.device.type
        timing = time_pairs(
            self._call(self._subject.fresh()),
            self._call(program),
            rounds=self._options.rounds,
            threads=self._threads,
            device=device,
        )
        record_row(self._item, Row(self._subject.name, label).with_timing(timing))
        self._record_benchmarks(timing, label, device)
        return timing

    def _call(self, program: Callable[..., Any]) -> Callable[[], Any]:
        """Return a call of ``program`` on its own copy of the inputs."""
        arguments = self._subject.arguments().copies()
        return partial(program, *arguments.args, **arguments.kwargs)

    def _record_benchmarks(self, timing: PairedTiming, label: str, device: str) -> None:
        subject, item = self._subject, self._item
        callspec = getattr(item, "callspec", None)
        low, high = timing.interval
        for role, seconds in (("eager", timing.eager), (label, timing.transformed)):
            record = BenchmarkRecord(
                name=f"{subject.name} {role}" if role == label else f"{subject.name} eager, beside {label}",
                fullname=f"{item.nodeid}:{role}",
                group=f"fx {subject.name}",
                param=getattr(callspec, "id", None),
                params=dict(getattr(callspec, "params", {})) or None,
                extra_info={
                    "model": subject.name,
                    "pass": label,
                    "role": "eager" if role == "eager" else "transformed",
                    "batch": subject.batch,
                    "dtype": str(subject.dtype).removeprefix("torch."),
                    "device": device,
                    "threads": timing.threads,
                    "speedup": timing.speedup,
                    "speedup_interval": [low, high],
                },
            )
            add_benchmark(item.config, record, seconds, timing.iterations)


def require_inputs(subject: Subject) -> Subject:
    """Return ``subject``, or skip the test if it has no example inputs."""
    if not subject.has_inputs:
        pytest.skip(f"{subject.name} has no example inputs: let its factory return (module, inputs)")
    return subject
