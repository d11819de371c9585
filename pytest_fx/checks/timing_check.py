"""The object behind the fixture ``fx_timing``: it times in pairs, compares with an earlier run, and records both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from torch import nn

from fx.passes import Contract, Pass
from fx.quantize import kernels_used
from pytest_fx.checks.equality_check import require_inputs
from pytest_fx.checks.match_counts import require_changes
from pytest_fx.collection import label_of
from pytest_fx.errors import MissingBaseline, NoisyTiming, TimedOutputError, TimingRegression
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import applied
from pytest_fx.harness.run import hidden
from pytest_fx.harness.structure import dtype_name
from pytest_fx.harness.subject import Subject
from pytest_fx.loading import chosen_pass
from pytest_fx.options import options_of
from pytest_fx.parallel.distribution import reason_not_to_time
from pytest_fx.records.baseline import BASELINE, Change, Measurement, describe
from pytest_fx.records.records import describe_machine
from pytest_fx.records.running import FOLDER, announce
from pytest_fx.report.progress import progress_of, shown_seconds
from pytest_fx.report.recording import record_row
from pytest_fx.report.rows import WRONG, SummaryRow, at_base
from pytest_fx.timing import paired
from pytest_fx.timing.contents import Contents
from pytest_fx.timing.estimates import estimated_seconds
from pytest_fx.timing.memory import peak_memory
from pytest_fx.timing.outputs import OutputCheck
from pytest_fx.timing.paired import PairedTiming, Program, steady_conditions, time_pairs
from pytest_fx.timing.samples import SampledProgram

EAGER = "eager"
"""Placeholder for the machine of an earlier run if there is none, and the program is compared with eager.

Where it is compared with another revision, its name is in this place. In both cases the earlier speed-up is exactly 1.
"""
CONFIRMATIONS = 2
"""Number of times that a slowdown is measured again, on new copies, before the test fails."""
OF_TIMINGS = ("speedup", "verdict", "outliers", "noise", "processors", "loaded", "looks", "is_open")
OF_ROWS = (
    *("host_seconds", "eager_host_seconds", "kernels"),
    *("estimated", "eager_estimated", "peak_memory", "eager_peak_memory"),
)
"""Attributes of a timing, and of its row, that records store."""


class TimingCheck:
    """Times a pass, or a program, in pairs with eager, and records both as benchmarks."""

    def __init__(self, subject: Subject, item: pytest.Item, threads: int | None = None) -> None:
        """Take the number of PyTorch's ``threads``; None for the first number of ``--fx-threads``."""
        self._subject = subject
        self._item = item
        self._options = options_of(item)
        self.threads = threads or self._options.threads[0]
        """Threads that PyTorch computes with."""

    def __call__(self, transform: str | Pass | nn.Module, label: str | None = None) -> PairedTiming:
        """Return the times of ``--fx-rounds`` pairs of calls, or more. Skip the test if times would mean nothing.

        ``transform`` is a program, or a value that ``--fx-pass`` accepts: a pass, or its name.

        A slowdown is measured again before it fails the test, and the mildest measurement counts: each measurement
        places the tensors' copies anew in memory, and the interval of a single one does not cover that effect.

        Raises:
            TimingRegression: the slowdown exceeds the limit of ``--fx-fail-slower``.
            NoisyTiming: under ``--fx-strict``, the times are too noisy to decide.
            MissingBaseline: under ``--fx-strict``, the baseline has no comparable timing.
        """
        __tracebackhide__ = True
        self.skip_unless_timed()
        if isinstance(transform, nn.Module):
            program, label, contract = transform, label or self._item.name, None
        else:
            pass_ = chosen_pass(self._item.config, transform)
            label = label or label_of(self._item, pass_)
            announce(self._item.config, f"{label} on {self._subject.name}")
            pass_run = applied(self._subject, pass_)
            require_changes(self._item, pass_run)
            program, contract = pass_run.program, pass_run.contract
            if program is None:
                pytest.skip(f"{label} makes no program of {self._subject.name} that could be timed")
        if (law := self._subject.wrong.get(label)) is not None:
            pytest.skip(f"{label} breaks the law {law!r} on {self._subject.name}, and is not timed")
        state = self._subject.runner(program)  # other programs of the model share it
        try:
            time, change_of = partial(self._time, program, label, contract), partial(self._change, label)
            timing, change = self._mildest(time, change_of)
            self._record(program, timing, change, label)
        except TimedOutputError:
            record_row(self._item, SummaryRow(self._subject.name, label, outcome=f"{WRONG}: timed outputs"))
            raise
        finally:
            state.restore()
        limit = self._options.fail_slower
        if change is None and limit is not None and self._options.strict:
            raise self._missing(timing, label)
        self._require_no_regression(change)
        return timing

    def against(self, base: SampledProgram, head: SampledProgram, base_name: str, label: str) -> PairedTiming:
        """Return the times of pairs of a call of ``base`` and one of ``head``, the same pass at two revisions.

        The ratio of both counts for ``--fx-fail-slower``. Rows for both are recorded; that of the base is called as
        ``base_name`` says. Raises as for a pass.
        """
        __tracebackhide__ = True
        self.skip_unless_timed()

        def change_of(timing: PairedTiming) -> Change:
            now = self._measurement(timing, label)
            return Change(replace(now, speedup=1.0, low=1.0, high=1.0, machine=base_name), now)

        timing, change = self._mildest(partial(self._pairs, base, head, label, None, change_of), change_of)
        assert change is not None
        name = self._subject.name
        record_row(self._item, SummaryRow(name, at_base(label, base_name), seconds=median(timing.eager)))
        row = SummaryRow(name, label).with_timing(timing).with_change(change, self._options.fail_slower)
        eager = ("eager_seconds", "speedup", "speedup_low", "speedup_high", "verdict", "baseline_speedup")
        record_row(self._item, replace(row, **dict.fromkeys((*eager, "eager_host_seconds"))))
        self._require_no_regression(change)
        return timing

    def skip_unless_timed(self) -> None:
        """Skip the test if the run takes no times, or if they would mean nothing."""
        __tracebackhide__ = True
        require_inputs(self._subject)
        if not self._options.timing:
            pytest.skip("the run takes no times (--fx-no-timing)")
        if (reason := reason_not_to_time(self._item.config)) is not None:
            pytest.skip(reason)

    def _require_no_regression(self, change: Change | None) -> None:
        __tracebackhide__ = True
        limit = self._options.fail_slower
        if change is not None and limit is not None and self._fails(change):
            raise _regression(change, limit) if change.exceeds(limit) else _noisy(change, limit)

    def _missing(self, timing: PairedTiming, label: str) -> MissingBaseline:
        """Return the error for a timing without a comparable one in the baseline."""
        baseline, now = self._item.config.stash[BASELINE], self._measurement(timing, label)
        assert baseline is not None, "without a baseline a timing is compared with eager"
        elsewhere = baseline.measured_elsewhere(now)
        return MissingBaseline(
            f"{baseline.name} has no timing to compare {label} on {now.model} with",
            where=f"batch {now.batch}, {now.dtype}, {now.device}, {now.threads} thread(s)",
            value=f"speed-up now {now}",
            why="none is of this model, pass, batch, dtype, device and number of threads"
            if elsewhere is None
            else f"it was measured on host {elsewhere}, and times of two machines are not compared",
            remedy="make a new baseline on this machine, or leave out --fx-strict",
        )

    def _fails(self, change: Change) -> bool:
        """Return whether a test fails for this change: it exceeds the limit, or is strict and too noisy to decide."""
        limit = self._options.fail_slower
        return limit is not None and (change.exceeds(limit) or (self._options.strict and change.too_noisy(limit)))

    def _mildest(
        self, time: Callable[[], PairedTiming], change_of: Callable[[PairedTiming], Change | None]
    ) -> tuple[PairedTiming, Change | None]:
        """Time once, and again while the slowdown fails; return the timing with the mildest change, and the change."""
        timing = time()
        change = change_of(timing)
        for _ in range(CONFIRMATIONS):
            if change is None or not self._fails(change):
                break
            again = time()
            once_more = change_of(again)
            if once_more is not None and (not self._fails(once_more) or once_more.slowdown < change.slowdown):
                timing, change = again, once_more
        return timing, change

    def _time(self, program: nn.Module, label: str, contract: Contract | None) -> PairedTiming:
        __tracebackhide__ = True
        with hidden(self._subject.runs), self._subject.to_be_timed() as eager:
            return self._pairs(eager, program, label, contract, partial(self._change, label))

    def _pairs(
        self,
        reference: Program,
        program: Program,
        label: str,
        contract: Contract | None,
        change_of: Callable[[PairedTiming], Change | None],
    ) -> PairedTiming:
        __tracebackhide__ = True
        return time_pairs(
            reference,
            program,
            rounds=self._options.rounds,
            budget=self._options.budget,
            decides=partial(self._decides, change_of),
            threads=self.threads,
            device=self._subject.device.type,
            announce=partial(self._announce, label),
            contents=Contents(self._subject.arguments, self._accepts),
            outputs=OutputCheck(label, self._subject.name, contract),
        )

    def _decides(self, change_of: Callable[[PairedTiming], Change | None], timing: PairedTiming) -> bool:
        """Return whether no more pairs are needed to decide the ratio, and the slowdown against the limit."""
        limit = self._options.fail_slower
        change = None if limit is None else change_of(timing)
        return timing.decides and (change is None or not change.too_noisy(limit))

    def _accepts(self, arguments: Arguments) -> bool:
        """Return whether the model can be called with these arguments."""
        return self._subject.eager_runner()(arguments, self._subject.dtype).error is None

    def _call(self, program: Callable[..., Any]) -> Callable[[], Any]:
        """Return a call of ``program`` on its own copy of the inputs."""
        arguments = self._subject.arguments().copies()
        return partial(program, *arguments.args, **arguments.kwargs)

    def _announce(self, label: str, seconds: float) -> None:
        """Announce the duration of a timing: in the progress line, and in the terminal's log if it is long."""
        progress = progress_of(self._item.config)
        reporter = self._item.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and seconds > paired.LONG_TIMING:
            progress.clear()  # the next line replaces the progress line
            reporter.write_line(
                f"fx: {self._options.rounds} rounds of {self._subject.name} with {label} take about "
                f"{seconds / 60:.0f} min; --fx-rounds takes fewer"
            )
        progress.doing(f"{self._options.rounds} pairs, about {shown_seconds(seconds)}")

    def _change(self, label: str, timing: PairedTiming) -> Change | None:
        """Return the change from the timing's row in the baseline, or from eager if there is no baseline."""
        baseline, now = self._item.config.stash[BASELINE], self._measurement(timing, label)
        if baseline is not None:
            return baseline.change(now)
        eager = replace(now, speedup=1.0, low=1.0, high=1.0, machine=EAGER)
        return None if self._options.fail_slower is None else Change(eager, now)

    def _measurement(self, timing: PairedTiming, label: str) -> Measurement:
        low, high = timing.interval
        machine = describe_machine()
        return Measurement(
            **self._conditions(timing),
            program=label,
            speedup=timing.speedup,
            low=low,
            high=high,
            machine=describe(machine),
            host=machine["host"],
        )

    def _conditions(self, timing: PairedTiming) -> dict[str, Any]:
        """Return the conditions, beside the pass, under which timings are comparable."""
        subject = self._subject
        return {
            "model": subject.name.removesuffix(f", batch {subject.batch}"),
            "batch": subject.batch,
            "dtype": dtype_name(subject.dtype),
            "device": subject.device.type,
            "threads": timing.threads,
        }

    def _estimates(self, program: nn.Module) -> tuple[float | None, float | None]:
        """Return the estimated seconds of a call of the model and of the program; None if unknown."""
        subject = self._subject
        if subject.device.type != "cpu":
            return None, None
        arguments = subject.arguments()
        with hidden(subject.runs):
            eager, transformed = estimated_seconds((subject.captured, program), arguments, Path(FOLDER))
            return eager, transformed

    def _record(self, program: nn.Module, timing: PairedTiming, change: Change | None, label: str) -> None:
        subject, item = self._subject, self._item
        row_label = label if len(self._options.threads) == 1 else f"{label}, {self.threads} thread(s)"
        device = subject.device.type
        row = SummaryRow(subject.name, row_label).with_timing(timing)
        with steady_conditions(self.threads), subject.to_be_timed() as eager:
            memory = (peak_memory(self._call(eager), device), peak_memory(self._call(program), device))
            estimates = self._estimates(program) if self._options.estimate else (None, None)
        row = replace(row, eager_peak_memory=memory[0], peak_memory=memory[1])
        row = replace(row, eager_estimated=estimates[0], estimated=estimates[1])
        row = row.with_kernels(kernels_used(program, self.threads))
        baseline = item.config.stash[BASELINE]
        if change is not None and baseline is not None:
            row = row.with_change(change, self._options.fail_slower)
        elif baseline is not None:
            row = replace(row, measured_elsewhere=baseline.measured_elsewhere(self._measurement(timing, label)))
        callspec = getattr(item, "callspec", None)
        params: dict[str, Any] = getattr(callspec, "params", {})
        info = {
            **self._conditions(timing),
            "pass": label,
            "host": describe_machine()["host"],
            "rounds": len(timing.eager),
            "speedup_interval": list(timing.interval),
            **{name: getattr(timing, name) for name in OF_TIMINGS},
            **{name: getattr(row, name) for name in OF_ROWS},
        }
        record_row(
            item,
            row,
            {
                "info": info,
                "model": subject.name,
                "label": row_label,
                "param": getattr(callspec, "id", None),
                "params": {name: str(getattr(value, "label", value)) for name, value in params.items()} or None,
                "iterations": timing.iterations,
                "eager": list(timing.eager),
                "transformed": list(timing.transformed),
            },
        )


def _regression(change: Change, limit: float) -> TimingRegression:
    now = change.now
    low, high = change.interval
    longer, value, remedy = _compared(change)
    return TimingRegression(
        f"{now.program} on {now.model} takes {change.slowdown:.1%} longer{longer}",
        where=f"batch {now.batch}, {now.dtype}, {now.device}, {now.threads} thread(s)",
        value=value,
        why=f"the 95 % interval of the slowdown is {low:+.1%} to {high:+.1%}, above the limit of {limit:.1%}; "
        f"{CONFIRMATIONS} more measurements did not show less",
        remedy=remedy,
    )


def _compared(change: Change) -> tuple[str, str, str]:
    """Return three parts of a message: the reference of the comparison, the speed-ups, and a remedy."""
    if change.before.machine == EAGER:
        remedy = "leave the pass out for this model, or allow more with --fx-fail-slower"
        return " than eager", f"speed-up {change.now}", remedy
    if change.before.low == change.before.high:
        remedy = "find the commit with git bisect, or allow more with --fx-fail-slower"
        return f" than at {change.before.machine}", f"speed-up over it {change.now}", remedy
    value = f"speed-up now {change.now}\n         in the baseline {change.before}"
    remedy = "find the commit with git bisect, or accept it by making a new baseline"
    return ", relative to eager, than in the baseline", value, remedy


def _noisy(change: Change, limit: float) -> NoisyTiming:
    now = change.now
    low, high = change.interval
    return NoisyTiming(
        f"it is too noisy to tell whether {now.program} on {now.model} takes more than {limit:.1%} longer",
        where=f"batch {now.batch}, {now.dtype}, {now.device}, {now.threads} thread(s)",
        value=_compared(change)[1],
        why=f"the 95 % interval of the slowdown is {low:+.1%} to {high:+.1%}, which holds no change and the limit",
        remedy="measure more pairs with --fx-rounds, on a machine with nothing else to do, for both runs",
    )
