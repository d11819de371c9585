"""The child process of a campaign: batches of random programs, and each broken law as a fault."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fx.errors import TraceError
from pytest_fx.errors import LawViolation
from pytest_fx.generation.strategy import Bias, program_of
from pytest_fx.harness.evaluation import threads
from pytest_fx.harness.process import process_kept
from pytest_fx.laws import Law
from pytest_fx.search.fault import Fault, fault_of, operations_of
from pytest_fx.search.search import COSTLY, Search

BATCH = 64
"""The number of programs in a batch, which share a mode, and a line of the journal."""
STEPS = 6
"""The most lines of a program: short ones are compiled faster, and shrink faster."""
LEAST_GROUP, LARGEST_GROUP = 1, 32
"""Limits of the number of programs that are compiled as one."""
SHRINKING = 10.0
"""The seconds that the reduction of one fault may take."""


class FaultSearch(Search):
    """A search that goes on after a broken law, and keeps the first violation on each program."""

    restores_attributes = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._violations: list[Any] = []
        self.shrinking = SHRINKING
        self.group_failures = 0
        """The number of groups that had to be divided."""

    def _note(self, violated: Any) -> None:
        self._violations.append(violated)

    def _group(self, programs: Sequence[Any], mode: str) -> Any:
        group = super()._group(programs, mode)
        self.group_failures += group is None
        return group

    def _check(self, program: Any, mode: str, sample: int, if_changed: bool) -> None:
        """Check a program alone, mostly without a float64 model and other sizes unless it breaks a law."""
        group = super()._group([program], mode) if sample >= COSTLY and self.group_size > 1 else None
        if group is None or not self._keeps_laws(group.example, sample):
            super()._check(program, mode, sample, if_changed)
        else:
            self.counts = self.counts.plus(programs=1, changed=bool(group.changed))

    def _tries_one_alone(self, examples: Sequence[Any]) -> bool:
        return self._sample_of(examples) < COSTLY

    def adapt_group_size(self, failures: int, batch: int) -> None:
        """Make groups smaller if most of them had to be divided, larger if none had."""
        if failures * self.group_size > batch / 2:
            self.group_size = max(LEAST_GROUP, self.group_size // 2)
        elif not failures:
            self.group_size = min(LARGEST_GROUP, self.group_size * 2)

    def take_faults(self, modes: Sequence[str], is_known: Callable[[str, Counter[str]], bool]) -> list[Fault | str]:
        """Return the faults since the last call, each made smaller; of a known one, only the name of its law."""
        faults: list[Fault | str] = []
        violations, self._violations = self._violations, []
        for first in violations:
            example = first.example
            if is_known(first.law.name, Counter(operations_of(example.subject.source))):
                faults.append(first.law.name)
                continue
            self._found, self._first = first, example
            try:
                with contextlib.suppress(TraceError):
                    self.shrink(modes)
                smallest: Any = self._found
                example, violation = smallest.example, smallest.violation
                is_other = violation.inputs != 0 and example.subject.has(violation.inputs)
                arguments = example.subject.arguments(violation.inputs) if is_other else None
                faults.append(fault_of(violation, example.subject.source, example.mode, arguments))
            finally:
                self._found = self._first = None
        return faults


def run_batches(
    search: FaultSearch,
    bias: Bias,
    modes: Sequence[str],
    seed: int,
    first: int,
    earlier: Sequence[Fault],
    send: Callable[..., object],
    until: float,
) -> None:
    """Judge batches of programs until a time, and send each batch and each fault.

    Args:
        search: the search, with its laws.
        bias: the preferences of programs.
        modes: the modes of programs.
        seed: the seed of the campaign.
        first: the number of the first batch.
        earlier: the faults so far.
        send: called with the kind of a message and its parts.
        until: the end, by ``time.monotonic()``.
    """
    faults = list(earlier)

    def is_known(law: str, operations: Counter[str]) -> bool:
        return any(fault.explains(law, operations) for fault in faults)

    search.announce = lambda program, mode: send("trying", program.source, mode)
    with threads(1), process_kept(), search.watchdog, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in itertools.count(first):
            if time.monotonic() > until:
                return
            before, failures = search.counts, search.group_failures
            sample = Random(f"{seed} {number}").randrange(10)  # of a batch, so that parts of a group ask the same laws
            send("begins", number)
            for place in range(BATCH):
                if time.monotonic() > until:  # the programs so far are a batch, too
                    break
                random = Random(f"{seed} {number} {place}")
                program = program_of(random, bias, random.randint(1, STEPS))
                with contextlib.suppress(TraceError, LawViolation):
                    search.check(program, modes[number % len(modes)], sample)
            with contextlib.suppress(TraceError, LawViolation):
                search.check_waiting()
            search.adapt_group_size(search.group_failures - failures, BATCH)
            repeated = Counter[str]()
            for fault in search.take_faults(modes, is_known):
                if isinstance(fault, Fault):
                    if not any(each.key == fault.key for each in faults):
                        faults.append(fault)
                        send("fault", fault.as_record())
                        continue
                    fault = fault.law
                repeated[fault] += 1
            now = search.counts
            counted = {
                "programs": now.programs - before.programs,
                "refused": now.refused - before.refused,
                "unjudged": now.unjudged - before.unjudged,
                "repeated": dict(repeated),
            }
            send("batch", number, counted)


def laws_of_hunts(laws: Sequence[Law]) -> list[Law]:
    """Return the laws of a campaign: those about computed results and effects, without the slow ones."""
    return [law for law in laws if law.of in ("all", "transforms") and law.kind == "always"]
