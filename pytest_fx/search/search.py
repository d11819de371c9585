"""The search for a program on which a pass breaks a law: the programs so far, and the first broken law."""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from fx.errors import FxError, InteropError, TraceError
from fx.passes import Contract, pass_name
from pytest_fx.errors import LawViolation, NothingJudged
from pytest_fx.forms import FormedPass
from pytest_fx.generation.record import is_raised_by_program
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun, leave_alone
from pytest_fx.harness.subject import ExportKind, GivenProgram, ProgramSource, Subject
from pytest_fx.laws import Law, broken_at_levels, broken_laws, is_kept_without, why_not_asked
from pytest_fx.laws.ways_out import with_form, with_ways_out
from pytest_fx.processes.deadline import Watchdog
from pytest_fx.search.aten_spellings import may_call, packet_of
from pytest_fx.search.blame import Blame
from pytest_fx.search.check_report import NOT_BY_EDITS, CheckReport, Counts
from pytest_fx.search.comparisons import Mismatch, PassComparisons
from pytest_fx.search.counterexample import describe, visibility
from pytest_fx.search.coverage import PassCode, Point
from pytest_fx.search.drawn_options import (
    takes_options_for_programs,
    with_drawn_options,
    with_drawn_order,
    without_one,
    written_with_options,
)
from pytest_fx.search.exploration import Explored, called_names, trials, variety
from pytest_fx.search.groups import SIZE, Kind, changed_parts, group_of, traits_of, worst_part
from pytest_fx.search.growth import growths, starts
from pytest_fx.search.model_cuts import AROUND, places
from pytest_fx.search.nearness import cuts, nearest, running, variations
from pytest_fx.search.observed import Observed
from pytest_fx.search.reduction import reduced, written
from pytest_fx.search.references import PassReferences
from pytest_fx.search.simplifications import of_sizes, tensors_in
from pytest_fx.search.syntax import WrittenCall, edited, expression
from pytest_fx.search.tensor_variations import wider

MOST_CUT = 10
"""The number of changed programs that are cut to seeds."""
MOST_CUT_OF_EXPORTED = 4
"""The same for a pass that needs an export of each part."""
MOST_SEEDS = 6
"""The number of seeds that are explored."""
ENLARGED = (4, 6, 5)
"""Sizes that replace smaller ones in seeds, one after the other."""
ONE_IN = 10
"""Slow laws are checked on one program in so many, and on the simplest."""
CHEAP = 1
"""The most calls of a law that is checked on every program of an exploration."""
COSTLY = 3
"""The share in ten of programs on which the other laws are checked: sizes, values and layouts are varied anyway."""
SHRINKING = 60.0
"""The most seconds for making the first program that breaks a law smaller."""
VISIBLE = 1e-2
"""An error of an output, relative to its largest element, that is visible when both are printed."""
REMAINS = 0.1
"""The least part of an error that must remain in smaller programs, if it is smaller than that."""
LONGEST_ON_MODEL = 60.0
"""The least limit of seconds for a pass on a whole model."""
OTHER_OPTIONS = 4
"""Draws of options on a smaller program, for a pass with such options, if those of the larger one show nothing."""
LONGEST_GROWTH = 5
"""The most programs that grow toward a pass, in multiples of those after which growth in vain ends."""
MOST_OF_BLOCKS = 24
"""The most places of building blocks that are tried: some passes act in each of them."""
RecordedKind = Literal["changed", "unchanged", "unknown"]
"""Whether the pass changes a recorded program; unknown of a program that cannot be recorded."""
EXPORTED_ONE_IN: dict[RecordedKind, int] = {"changed": 32, "unchanged": 64, "unknown": 16}
"""One in so many programs is exported although its recording shows no fault."""
IN_VAIN = 4
"""One in so many programs without the operators that a pass names is given to it: others take time in vain."""
SHORT = 1.0
"""Seconds that a pass may take on a program after it has taken too long on another one."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A law that the pass breaks."""

    law: Law
    """The law."""
    violation: LawViolation
    """The violation."""
    example: PassRun
    """The run of the pass on the program."""


_Example = tuple[ProgramSource, str, int]
"""A program, its mode, and a number: slow laws are checked if it is 0."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Several programs to which the pass was applied as one."""

    example: PassRun
    """The run of the pass."""
    changed: frozenset[int]
    """The numbers of the programs that it changed."""
    reached: frozenset[Any]
    """The paths through the pass's code."""


Progress = tuple[Counts, frozenset[Point], frozenset[Point], Explored]
"""The counts, the points of the pass's code, the reached points, and the varied properties."""


class Search:
    """The examples so far: their counts, and the first broken law."""

    restores_attributes = False
    """True if programs may keep state in attributes of modules."""

    def __init__(
        self,
        pass_: Any,
        contract: Contract,
        laws: list[Law],
        always: set[str],
        seconds: float,
        about: PassReferences,
        draws_orders: bool = False,
    ) -> None:
        self._pass = pass_
        self._draws_options = takes_options_for_programs(pass_)
        self._draws_orders = draws_orders
        self._orders: set[str] = set()  # the drawn ones
        self._blame = Blame(pass_, about)
        self._contract = contract
        self._laws = laws
        self._always = always
        self._operators = about.operators if isinstance(pass_, FormedPass) else ()
        self._seconds = seconds
        self.watchdog = Watchdog()
        self.code = PassCode(about.codes, pass_)
        """The code of the pass, and its reached points."""
        self._reached: dict[str, frozenset[Any]] = {}  # by program
        self._reached_in_changed: dict[str, frozenset[Any]] = {}  # by program that the pass changed
        self._changed_modes: dict[str, str] = {}  # the modes of the changed programs
        self.announce: Callable[[ProgramSource, str], object] = lambda program, mode: None
        """Called with each program and its mode before the pass is applied to it."""
        self.planned = 0
        """The number of programs to be tried, as far as it is known."""
        self.on_program: Callable[[int, int | None], object] = lambda number, count: None
        """Called with the number of each program and :attr:`planned`, or None while that program is made smaller."""
        self.counts = Counts()
        """The counts of the programs so far."""
        self._tried: dict[tuple[str, str], None] = {}  # programs that need not be tried again
        self._skipped: set[tuple[str, str]] = set()  # programs that end the process without the pass
        self._records = isinstance(pass_, FormedPass) and pass_.form.is_recordable
        self.group_size = SIZE if isinstance(pass_, FormedPass) and not self._records else 1
        """The number of programs that the pass is given at a time; more than one if each has to be compiled."""
        self._recorded = dict[RecordedKind, int].fromkeys(EXPORTED_ONE_IN, 0)
        self._in_vain = 0  # programs in a row without the operators that the pass names
        self._waiting: dict[tuple[str, Kind], list[_Example]] = {}  # programs for the next groups, by mode and kind
        self._found: _Found | None = None
        self._deferred: _Found | None = None  # of a law that matters less than wrong values
        self._first: PassRun | None = None  # the example of the first broken law, before it was made smaller
        self._least_visibility = 0.0
        self._compares = any(law.judges == "values" for law in laws)
        self.shrinking = SHRINKING
        """The most seconds for making a program smaller."""
        self.explored = Explored()
        """The properties that were varied around the places where the pass acts."""

    def check(
        self, program: ProgramSource, mode: str, sample: int, *, if_changed: bool = False, is_drawn: bool = True
    ) -> bool:
        """Apply the pass to one program and raise the violation of a law that it breaks, preferably one on numbers.

        Return whether the program is new; a program is not tried twice. With ``if_changed``, programs that the pass
        does not change are not counted. Raises ``TraceError`` if the program cannot be captured, and so shows nothing
        about the pass; also for most drawn programs that have none of the operators which the pass names.

        After a law was broken, every program raises that violation: Hypothesis tries programs again, and a pass that
        breaks a law only sometimes must not confuse it.
        """
        if self._found is not None:
            raise self._found.violation
        key = (mode, program.source or f"program {id(program)}")
        if key in self._tried or key in self._skipped:
            return False
        if self._records:
            self._check_recorded(program, mode, sample, if_changed=if_changed, is_drawn=is_drawn)
        elif self.group_size > 1 and not if_changed:
            traits = traits_of(program, mode, self._operators)
            self._reject_in_vain(traits.lacks_operators, is_drawn)
            kind: tuple[str, Kind] = mode, traits.kind
            waiting = self._waiting.setdefault(kind, [])
            waiting.append((program, mode, sample))
            if len(waiting) >= self.group_size or kind[1] == "data-dependent":
                self._check_group(self._waiting.pop(kind), if_changed=False)
        else:
            with _programs_that_raise_rejected():
                self._check(program, mode, sample, if_changed)
        if program.source:
            self._tried[key] = None
        return True

    def _reject_in_vain(self, lacks_operators: bool, is_drawn: bool) -> None:
        """Raise ``TraceError`` for most drawn programs without the operators that the pass names."""
        self._in_vain = self._in_vain + 1 if lacks_operators else 0
        if is_drawn and 0 < self._in_vain < IN_VAIN:
            raise TraceError("the program has none of the operators that the pass names")
        self._in_vain = 0

    def _check_recorded(
        self, program: ProgramSource, mode: str, sample: int, *, if_changed: bool, is_drawn: bool
    ) -> None:
        """Apply the pass to a recorded program, and check a program by ``torch.export`` where that may say more.

        These are programs that cannot be recorded, those on which the pass breaks a law, and a sample of the others.
        """
        number = self.counts.programs + self.counts.varied + 1
        self.on_program(number, max(self.planned, number))
        example = self._example_recorded(program, mode, recording=self.code.recording)
        reached, is_changed = self.code.latest_paths, example is not None and self._is_changed(example)
        if example is not None and not example.changed and not example.error and self._operators:
            operators = example.subject.export_source().operators()
            self._reject_in_vain(operators.isdisjoint(map(packet_of, self._operators)), is_drawn)
        kind: RecordedKind = "unknown" if example is None else "changed" if is_changed else "unchanged"
        recorded = self._recorded[kind] = self._recorded[kind] + 1
        is_due = recorded == 1 or recorded % EXPORTED_ONE_IN[kind] == 0
        if example is None and is_drawn and not is_due:
            raise TraceError("the program cannot be recorded, and only some of these are exported")
        if (
            example is None
            or self._may_break_law(example, sample, is_changed)
            or (is_due and not self._is_kept_when_exported(program, mode, sample, is_changed))
        ):
            with _programs_that_raise_rejected():
                self._check(program, mode, sample, if_changed)
        else:
            self._count(example, is_changed, if_changed)
            self._note_reached(program, mode, reached, is_changed)
            self._count_uncompared(example, is_changed, if_changed)

    def _is_kept_when_exported(self, program: ProgramSource, mode: str, sample: int, is_changed: bool) -> bool:
        """Return whether the pass acts on an exported program as on a recorded one, and breaks no law there."""
        with _programs_that_raise_rejected():
            example = self._example(program, mode, self._seconds)
        is_judged = not (example.error or example.too_long or example.not_judged)
        return is_judged and (is_changed or not example.changed) and self._keeps_laws(example, sample)

    def _may_break_law(self, example: PassRun, sample: int, is_changed: bool) -> bool:
        """Return whether the pass fails on a recorded program, or breaks a law there that it may keep."""
        if example.error or example.too_long or example.damage or example.disturbance:
            return True
        if not example.changed or not (is_changed or sample == 0):
            return False
        laws = [law for law in self._laws if (law.calls <= CHEAP or sample < COSTLY) and _is_of_recorded(law)]
        for run in example.at_each_level():
            for law in self._applicable(laws, sample, run):
                if law.find_violation(run) is not None and self._blame.caused_by_pass(law, run):
                    return True
        return False

    def _example_recorded(
        self, program: ProgramSource, mode: str, recording: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> PassRun | None:
        """Apply the pass to a recorded program; None if it cannot be recorded."""
        with _programs_that_raise_rejected():
            example = self._example(program, mode, self._seconds, recording=recording, export="recording")
        return None if example.not_judged else example

    def check_waiting(self) -> None:
        """Check the programs that wait for a group."""
        while self._waiting:
            self._check_group(self._waiting.pop(next(iter(self._waiting))), if_changed=False)

    def _check_in_groups(self, examples: Sequence[_Example], *, if_changed: bool) -> list[bool]:
        """Check programs, several of one mode and kind at a time, and return for each whether the pass changed it."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for number, (program, mode, _) in enumerate(examples):
            kind = traits_of(program, mode).kind if len(examples) > 1 else "finite"
            alone = number if kind == "data-dependent" else None
            groups.setdefault((mode, kind, alone), []).append(number)
        acted = [False] * len(examples)
        for numbers in groups.values():
            results = self._check_group([examples[number] for number in numbers], if_changed)
            for number, changed in zip(numbers, results, strict=True):
                acted[number] = changed
        return acted

    def _check_group(self, examples: Sequence[_Example], if_changed: bool) -> list[bool]:
        """Check programs as one, and each alone if that breaks a law or shows too little.

        The first of those that the pass changes is checked alone, too: some laws vary the sizes of all inputs.
        """
        if len(examples) == 1:
            ((program, mode, sample),) = examples
            before = self.counts.acted
            with contextlib.suppress(TraceError):
                if if_changed:
                    self.check(program, mode, sample, if_changed=True)
                else:  # it has waited
                    with _programs_that_raise_rejected():
                        self._check(program, mode, sample, if_changed=False)
            return [self.counts.acted > before]
        group = self._group([program for program, _, _ in examples], examples[0][1])
        if group is None or not self._keeps_laws(group.example, self._sample_of(examples)):
            first = None if group is None else worst_part(group.example, group.changed)
            if first is not None:
                acted_first = self._check_group([examples[first]], if_changed)
                others = self._check_halves([*examples[:first], *examples[first + 1 :]], if_changed)
                return others[:first] + acted_first + others[first:]
            return self._check_halves(examples, if_changed)
        acted = [number in group.changed for number in range(len(examples))]
        alone = acted.index(True) if any(acted) and self._tries_one_alone(examples) else None
        for number, (program, mode, _) in enumerate(examples):
            if number == alone:
                self._check_group([examples[number]], if_changed)
                continue
            counted = {"varied": acted[number]} if if_changed else {"programs": 1, "changed": acted[number]}
            self.counts = self.counts.plus(**counted)
            for reached in (self._reached, *([self._reached_in_changed] if acted[number] else [])):
                reached[program.source] = group.reached | reached.get(program.source, frozenset())
            if acted[number]:
                self._changed_modes[program.source] = mode
        return acted

    def _tries_one_alone(self, examples: Sequence[_Example]) -> bool:
        """Return whether a program of a group that keeps all laws is checked alone, too."""
        return True

    def _sample_of(self, examples: Sequence[_Example]) -> int:
        """Return the number of a group that decides on the slow laws: the least of its programs."""
        return min(sample for _, _, sample in examples)

    def _check_halves(self, examples: Sequence[_Example], if_changed: bool) -> list[bool]:
        half = len(examples) // 2
        groups = filter(None, (examples[:half], examples[half:]))
        return [acted for group in groups for acted in self._check_group(group, if_changed)]

    def _group(self, programs: Sequence[ProgramSource], mode: str) -> _Group | None:
        """Apply the pass to several programs as one; None if anything went wrong, maybe for a single one of them."""
        try:
            with _programs_that_raise_rejected():
                group = group_of(programs, mode)
                example = self._example(group, mode, self._seconds, recording=self.code.recording, is_group=True)
        except TraceError:
            return None
        reached = self.code.latest_paths
        failed = example.error or example.refusal or example.too_long or example.not_judged or example.damage
        changed = None if failed or example.disturbance else changed_parts(example, len(programs))
        return None if changed is None else _Group(example, changed, reached)

    def _keeps_laws(self, example: PassRun, sample: int) -> bool:
        """Return whether a group breaks no law, and its numbers could be compared where the pass changed any.

        They are compared in the working dtype alone: an export in float64 takes as long as all else.
        """
        if not example.changed:
            return True
        laws = [law for law in self._laws if law.calls <= CHEAP or sample < COSTLY]
        try:
            for run in example.at_each_level():
                run.forget_float64()
                for law in self._applicable(laws, sample, run):
                    if law.find_violation(run) is not None:
                        run.with_nothing_changed().forget_float64()
                        if is_kept_without(law, run):
                            return False
        except TraceError:  # a law captures the program, and one of the group refuses that
            return False
        return bool(example.compared) or not self._compares

    def _check(self, program: ProgramSource, mode: str, sample: int, if_changed: bool) -> None:
        number = self.counts.programs + self.counts.varied + 1
        self.on_program(number, max(self.planned, number))
        example = self._example(program, mode, self._seconds, recording=self.code.recording)
        if example.form_result is not None and not example.changed:  # it may act on fixed sizes only
            example = self._example(program, mode, self._seconds, recording=self.code.recording, export="fixed")
        if example.after is not None:
            self.code.leave_out_what_runs_in(example.after)
        reached, is_changed = self.code.latest_paths, self._is_changed(example)
        self._count(example, is_changed, if_changed)
        self._note_reached(program, mode, reached, is_changed)
        if if_changed and not is_changed and example.after is not None and example.damage is None:
            return  # the effect of a pass on programs that it leaves alone is judged on drawn ones
        laws = [law for law in self._laws if law.calls <= CHEAP or not if_changed or sample < COSTLY]
        run, violations = broken_at_levels(partial(self._applicable, laws, sample), example)
        blamed = next((each for each in violations if self._blame.caused_by_pass(self._law_of(each), run)), None)
        if blamed is not None:
            self._note(_Found(self._law_of(blamed), blamed, run))
        self.counts = self.counts.plus(unjudged=bool(violations))
        if not violations:
            self._count_uncompared(example, is_changed, if_changed)

    def _count_uncompared(self, example: PassRun, is_changed: bool, if_changed: bool) -> None:
        """Move a counted program whose results could not be compared from the changed ones to the uncompared ones."""
        if is_changed and not example.compared and self._compares:
            self.counts = self.counts.plus(uncompared=1, **{"varied" if if_changed else "changed": -1})

    def _note_reached(self, program: ProgramSource, mode: str, reached: frozenset[Any], is_changed: bool) -> None:
        """Note the paths through the pass's code that a program with a text reached."""
        if not program.source:
            return
        reached |= self._reached.get(program.source, frozenset())
        self._reached[program.source] = reached
        if is_changed:
            self._reached_in_changed[program.source] = reached
            self._changed_modes[program.source] = mode

    def _note(self, violated: _Found) -> None:
        """Raise a violation, but defer one of a law that matters less than wrong values."""
        self._first = self._first or violated.example
        if violated.law.says_less:
            self._deferred = self._deferred or violated
            self._laws = [law for law in self._laws if not law.says_less]
            return
        self._found, self._first = violated, violated.example
        raise violated.violation

    def raise_deferred(self) -> None:
        """Raise the deferred violation, if there is one."""
        self.check_waiting()
        if self._deferred is not None:
            self._found = self._deferred
            raise self._deferred.violation

    @property
    def name(self) -> str:
        """The name of the pass."""
        return pass_name(self._pass)

    @property
    def progress(self) -> Progress:
        """The counts so far, and the reached points."""
        return self.counts, self.code.points, self.code.reached, self.explored

    def resume(self, progress: Progress) -> None:
        """Continue from the progress of the same search in another process."""
        self.counts, self.code.points, self.code.reached, self.explored = progress

    def _is_changed(self, example: PassRun) -> bool:
        """Return whether the pass itself changed a program, which is the latest one."""
        if self.code.has_edited:
            return example.changed
        return self.code.may_have_edited and self._blame.changed_by_pass(example)

    def _count(self, example: PassRun, is_changed: bool, if_changed: bool) -> None:
        """Count a program, with ``if_changed`` only a changed one."""
        if if_changed:
            self.counts = self.counts.plus(varied=is_changed)
            return
        untranslated = _is_untranslated(example)
        self.counts = self.counts.plus(
            programs=1,
            changed=is_changed,
            tidied=example.changed and not is_changed,
            refused=example.refusal is not None and not untranslated,
            untranslated=untranslated,
        )

    def applied_to(self, model: Subject) -> PassRun:
        """Apply the pass to a model, to find its places; the laws are not checked on it."""
        self.announce(GivenProgram(model.fresh, Arguments()), model.mode)
        seconds = max(self._seconds, LONGEST_ON_MODEL)
        subjects = [model.exported_by("recording"), model] if self._records else [model]
        runs = (
            PassRun(subject, self._pass, contract=self._contract, watchdog=self.watchdog, seconds=seconds)
            for subject in subjects
        )
        return next(run for run in runs if run.subject is model or not (run.not_judged or run.error or run.too_long))

    def try_blocks(self, blocks: Iterable[Subject], modes: Sequence[str]) -> None:
        """Try the places of building blocks where the pass acts, and record them as those of one model."""
        number = 0
        for block in blocks:
            number += self._try_model(block, modes)[0]
            if number >= MOST_OF_BLOCKS:
                break
        if number:
            self.counts = self.counts.looked_through("building blocks", number)

    def try_places(
        self, models: Iterable[Subject], modes: Sequence[str], is_enough: Callable[[], bool] | None = None
    ) -> None:
        """Try the places of models where the pass acts, in each mode in which it does, until ``is_enough``.

        Without ``is_enough`` the caller has asked for all models, and those without a place are recorded, too. Raises
        the violation of a law that the pass breaks.
        """
        for model in models:
            if is_enough is not None and is_enough():
                return
            number, why = self._try_model(model, modes)
            if number or is_enough is None:
                self.counts = self.counts.looked_through(model.name, number, why)

    def _try_model(self, model: Subject, modes: Sequence[str]) -> tuple[int, str]:
        """Try the places of a model where the pass acts, and return their number, and the reason if there are none."""
        if self._operators and not may_call(model.fresh(), model.arguments().copies(), self._operators):
            return 0, "which has none of the operators that it names"
        pass_run = self.applied_to(model)
        programs = places(model, pass_run, lambda program: any(self.acts_on(program, mode) for mode in modes))
        number = 0
        for number, program in enumerate(programs, 1):
            for mode in modes:
                if self.acts_on(program, mode):
                    self.check(program, mode, number - 1)
        self.require_returned(pass_run)
        why = "which it refuses" if pass_run.refusal else "where it has no text" if pass_run.changed else ""
        pass_run.close()
        return number, why

    def require_returned(self, example: PassRun) -> None:
        """Raise the violation of a law if the pass raises on a model, or does not return there."""
        violations = self._broken_on(example, self._laws) if example.error or example.too_long else []
        if violations:
            self._found = _Found(self._law_of(violations[0]), violations[0], example)
            raise violations[0]

    def skip(self, source: str, mode: str) -> None:
        """Do not try this program."""
        self._skipped.add((mode, source))

    def judge(self, program: ProgramSource, mode: str, pass_: Any = None) -> None:
        """Check all laws, whatever the result, with ``pass_`` instead of the pass if it is not None."""
        example = self._example(program, mode, self._seconds, pass_)
        broken_laws([law for law in self._laws if self._applies(law, example, 0)], example)

    def untouched(self, program: ProgramSource, mode: str) -> PassRun:
        """Return a program to which the pass was not applied, as an example of the pass."""
        example = self._example(program, mode, self._seconds, leave_alone)
        example.pass_, example.name, example.result = self._pass, self.name, None
        return example

    def _example(
        self,
        program: ProgramSource,
        mode: str,
        seconds: float,
        pass_: Any = None,
        recording: Callable[[], AbstractContextManager[None]] = nullcontext,
        draw: int = 0,
        *,
        is_group: bool = False,
        export: ExportKind = "dynamic",
    ) -> PassRun:
        """Apply the pass to a program."""
        self.announce(program, mode)
        subject = Subject.of(program, mode)
        subject.export, subject.is_group = export, is_group
        subject.restores_attributes = self.restores_attributes
        return PassRun(
            subject,
            self._drawn(subject, draw) if pass_ is None else pass_,
            contract=self._contract,
            watchdog=self.watchdog,
            seconds=seconds,
            recording=recording,
        )

    def _drawn(self, subject: Subject, draw: int) -> Any:
        """Return the pass, with drawn options if it takes some, and in a drawn order if orders are drawn."""
        drawn, seed = self._pass, f"{draw} {subject.source}"
        if self._draws_options:
            drawn = with_drawn_options(drawn, subject.capture(), Random(seed))
        if self._draws_orders:
            drawn = with_drawn_order(drawn, Random(seed))
            self._orders.add(str(drawn))
        return drawn

    def _law_of(self, violation: LawViolation) -> Law:
        return next(law for law in self._laws if law.name == violation.law)

    def shrink(self, modes: Sequence[str]) -> None:
        """Make the found program smaller while the pass breaks the same law on it, in evaluation mode if possible.

        This edits the text of the program; a program without a text stays unchanged. If a law on numbers is broken,
        too, in another mode say, it is reported first, so the program is made smaller by that law.
        """
        self.on_program(self.counts.programs, None)
        self._lead_with_numbers(modes)
        self._shrink(modes)
        if self._lead_with_numbers(modes):
            self._shrink(modes)

    def drop_passes(self) -> None:
        """Leave out passes of the found order while the rest still breaks the same law on the same program."""
        assert self._found is not None, "there is nothing to make smaller"
        subject = self._found.example.subject
        program = running(subject.source, self._found.example.mode)
        smaller = iter(()) if program is None else without_one(self._found.example.pass_)
        while program is not None and (fewer := next(smaller, None)) is not None:
            if self._shows_on(program, self._found.example.mode, fewer):
                smaller = without_one(fewer)

    def _lead_with_numbers(self, modes: Sequence[str]) -> bool:
        """Return whether the found program breaks a law on numbers, unlike the one before; if so, take this one."""
        assert self._found is not None, "there is nothing to make smaller"
        source, seconds = self._found.example.subject.source, self._seconds
        for mode in () if self._found.law.judges or self._found.example.after is None else modes:
            with contextlib.suppress(TraceError):
                program, pass_ = running(source, mode), self._found.example.pass_ if self._draws_orders else None
                example = None if program is None else self._example(program, mode, seconds, pass_)
                violations = [] if example is None else self._broken_on(example, self._laws)
                if violations and example is not None and (law := self._law_of(violations[0])).judges:
                    self._found = _Found(law, violations[0], example)
                    return True
        return False

    def _shrink(self, modes: Sequence[str]) -> None:
        assert self._found is not None, "there is nothing to make smaller"
        source, mode = self._found.example.subject.source, self._found.example.mode
        self._least_visibility = min(VISIBLE, REMAINS * visibility(self._found.example, self._found.violation))
        if not self._shows(source, mode):  # the text makes no program, or the pass is wrong only sometimes
            return
        if "eval" in modes and self._shows(source, "eval"):
            mode = "eval"
        if self._shows_recorded(source, mode):
            smaller = reduced(source, lambda text: self._shows_recorded(text, mode), self.shrinking)
            if self._shows(smaller, mode):
                return
        reduced(source, lambda text: self._shows(text, mode), self.shrinking)

    def _shows_recorded(self, source: str, mode: str) -> bool:
        """Return whether the pass breaks the same law on another program as it is recorded, without an export."""
        assert self._found is not None
        program = running(source, mode) if self._records and _is_of_recorded(self._found.law) else None
        return program is not None and self._breaking(program, mode, export="recording") is not None

    def _shows(self, source: str, mode: str) -> bool:
        """Return whether the pass breaks the same law on another program, too; if so, take that program.

        A difference of outputs must stay visible: a batch norm with fresh statistics is nearly the identity.
        """
        assert self._found is not None
        program, before = running(source, mode), self._found.example
        if program is None:
            return False
        if self._draws_orders:
            fewer_break = (self._breaking(program, mode, fewer) is not None for fewer in without_one(before.pass_))
            return not any(fewer_break) and self._shows_on(program, mode, before.pass_)
        if not self._draws_options:
            return self._shows_on(program, mode)
        drawn = (self._shows_on(program, mode, draw=number) for number in range(OTHER_OPTIONS))
        return self._shows_on(program, mode, before.pass_) or any(drawn)

    def _shows_on(self, program: ProgramSource, mode: str, pass_: Any = None, draw: int = 0) -> bool:
        broken = self._breaking(program, mode, pass_, draw)
        self._found = broken or self._found
        return broken is not None

    def _breaking(
        self, program: ProgramSource, mode: str, pass_: Any = None, draw: int = 0, export: ExportKind = "dynamic"
    ) -> _Found | None:
        """Return how the pass breaks the found law on another program, if it does."""
        assert self._found is not None
        law, before = self._found.law, self._found.example
        seconds = self._seconds if before.too_long is None else min(self._seconds, SHORT)
        if isinstance(self._pass, FormedPass) and before.form_result is not None and before.form_result.level:
            pass_ = self._pass.at(before.form_result.level)
        try:
            with _programs_that_raise_rejected():
                example = self._example(program, mode, seconds, pass_, draw=draw, export=export)
        except TraceError:
            return None
        for run in example.at_each_level():
            violation = law.find_violation(run)
            if violation is None or visibility(run, violation) < self._least_visibility:
                continue
            if self._blame.caused_by_pass(law, run):
                return _Found(law, violation, run)
        return None

    def _applicable(self, laws: Iterable[Law], sample: int, example: PassRun) -> list[Law]:
        return [law for law in laws if self._applies(law, example, sample)]

    def _applies(self, law: Law, example: PassRun, sample: int) -> bool:
        sampled = law.kind == "sampled" and law.name not in self._always
        return (not sampled or sample == 0) and why_not_asked(law, example) is None

    def explained(self, folder: Path) -> LawViolation:
        """Return the violation, with the program on which it was found."""
        assert self._found is not None
        violation, example = self._found.violation, self._found.example
        others = self._broken_on(example, [law for law in self._laws if law is not self._found.law])
        earlier = () if self._first is None or self._first is example else self._broken_on(self._first, self._laws)
        explained = with_ways_out(violation, others, self._pass, example.mode, [each.law for each in earlier])
        explained = with_form(explained, example)
        if isinstance(example.subject.source, str) and not example.subject.source and example.after is None:
            return explained.with_details(f"{self.tried}\non all of {example.subject.name}, and on no part of it")
        options = self._drawn_in_words(example.pass_)
        return explained.with_details(f"{self.tried}\n{options}{describe(example, violation, folder)}")

    def _drawn_in_words(self, pass_: Any) -> str:
        """Return a line on the drawn options and the drawn order, empty if none are drawn."""
        text = written_with_options(pass_)
        if not self._draws_orders:
            return f"with these options: {text}\n" if self._draws_options else ""
        if (number := len(list(without_one(pass_)))) < 2:
            return f"the fault is in one pass: {text} breaks the law alone\n"
        rest = "each keeps it alone" if number == 2 else "without any of them the others keep it"
        return f"in this order: {text}; {rest}\n"

    def _broken_on(self, example: PassRun, laws: list[Law]) -> list[LawViolation]:
        """Return the violations of those ``laws`` that the pass breaks on one program, laws on numbers first."""
        violations = broken_laws([law for law in laws if self._applies(law, example, 0)], example)
        return [each for each in violations if self._blame.caused_by_pass(self._law_of(each), example)]

    @property
    def tried(self) -> str:
        """A line on the number of programs so far, and on the part of the pass's code that they reached."""
        coverage = self.code.coverage()
        reached = "" if coverage is None else f"; {coverage}"
        count = self.counts
        programs = count.programs + count.varied
        return f"found after {programs} program(s), of which {self.name} changed {count.acted}{reached}"

    def lacks(self, least: float) -> bool:
        """Return whether the pass changed fewer programs than ``least``, a number or a share."""
        return self.counts.acted < self._wanted(least)

    def _wanted(self, least: float) -> float:
        return least * self.counts.programs if least < 1 else least

    @property
    def changed_modes(self) -> tuple[str, ...]:
        """The modes in which the pass changed programs."""
        return tuple(dict.fromkeys(self._changed_modes.values()))

    def nearest(self, most: int) -> list[str]:
        """Return the programs on which the pass went furthest; if it changed some, also parts of these.

        At most ``most`` parts are tried.
        """
        self.check_waiting()
        changed = nearest(self._reached_in_changed)[:most]
        return [self._cut(source, self._changed_modes[source]) for source in changed] or nearest(self._reached)

    def _cut(self, source: str, mode: str) -> str:
        """Return the shortest part of a changed program that the pass still changes."""
        candidates = iter(cuts(source))
        while group := list(itertools.islice(candidates, self.group_size)):
            together = self._group(group, mode) if len(group) > 1 else None
            for number in range(len(group)) if together is None else sorted(together.changed):
                if together is not None or self.acts_on(group[number], mode):
                    self.check(group[number], mode, 1, if_changed=True)
                    return group[number].source
        return source

    def acts_on(self, program: ProgramSource, mode: str) -> bool:
        """Return whether the pass changes a program; no law is checked."""
        try:
            with _programs_that_raise_rejected():
                example = self._example_recorded(program, mode) if self._records else None
                return self._blame.changed_by_pass(
                    example or self._example(program, mode, self._seconds, export="fixed")
                )
        except TraceError:
            return False

    def vary(
        self, constants: Sequence[Any], modes: Sequence[str], most: int, is_enough: Callable[[], bool], *, changed: bool
    ) -> None:
        """Try variations of the programs on which the pass went furthest, until ``is_enough``, ``most`` at most.

        With ``changed`` only programs that the pass changed are varied, if there are some.
        """
        random, reached = Random(0), (changed and self._reached_in_changed) or self._reached
        for program in itertools.islice(variations(reached, constants, random), most):
            with contextlib.suppress(TraceError):
                self.check(program, random.choice(modes), random.randrange(ONE_IN))
            if is_enough():
                return

    def grow(self, operations: Sequence[Any], mode: str, most: int, is_enough: Callable[[], bool]) -> None:
        """Pass values of the programs on which the pass went furthest through some operations, until ``is_enough``.

        Growth ends after ``most`` programs in a row that reach no new code of the pass, and in any case after
        :data:`LONGEST_GROWTH` times as many.
        """
        programs = itertools.islice(itertools.chain(starts(), self._growths(operations)), LONGEST_GROWTH * most)
        met, in_vain = set[Any]().union(*self._reached.values()), 0
        while in_vain < most and not is_enough() and (group := list(itertools.islice(programs, self.group_size))):
            self._check_in_groups([(program, mode, 1) for program in group], if_changed=True)
            new = frozenset[Any]().union(*(self._reached.get(program.source, ()) for program in group)) - met
            met |= new
            in_vain = 0 if new else in_vain + len(group)

    def _growths(self, operations: Sequence[Any]) -> Iterator[ProgramSource]:
        """Yield programs that grow toward the pass."""
        comparisons = PassComparisons(self.code.codes)

        def compared(text: str) -> Sequence[Mismatch]:
            """Return the mismatches of a program."""
            program = running(text)
            if program is None:
                return ()
            with contextlib.suppress(TraceError), _programs_that_raise_rejected():
                if not (self._records and self._example_recorded(program, "eval", recording=comparisons.recording)):
                    self._example(program, "eval", self._seconds, recording=comparisons.recording, export="fixed")
            return tuple(comparisons.latest.values())

        return growths(
            self._reached,
            operations,
            Random(0),
            compared,
            self.code.conditions,
        )

    def explore(
        self, modes: Sequence[str], most: int, looked_at: Collection[str], operations: Sequence[Any] = ()
    ) -> None:
        """Vary every property of the programs that the pass changed, until it changed ``most`` of the variations.

        Args:
            modes: the modes in which the pass must be right.
            most: the number of trials on which the pass acts; at most twice as many are tried.
            looked_at: names that the pass mentions.
            operations: operations that the pass mentions.
        """
        self.check_waiting()
        random, seeds = Random(0), self._seeds()
        names = {text: self._names_made(text, mode) for text, mode in seeds}
        drawn = itertools.islice(
            trials(seeds, modes, looked_at, random, self.explored.acted, names, operations), 2 * most
        )
        while self.explored.trials < most and (group := list(itertools.islice(drawn, self.group_size))):
            examples = [
                (trial.program, trial.mode, random.randrange(ONE_IN) if trial.is_usual else 1) for trial in group
            ]
            for trial, acted in zip(group, self._check_in_groups(examples, if_changed=True), strict=True):
                self.explored.note(trial, acted)

    def _seeds(self) -> list[tuple[str, str]]:
        """Return short parts of changed programs that call different functions, and their modes.

        Each is the place where the pass acts, alone or with one step around it, or the shortest part of that.
        """
        texts: dict[Any, tuple[str, str]] = {}
        is_exported = isinstance(self._pass, FormedPass)
        for source in nearest(self._reached_in_changed, MOST_CUT_OF_EXPORTED if is_exported else MOST_CUT):
            mode = self._changed_modes[source]
            for place in self._places(source, mode) or [source]:
                for seed in (self._cut(place, mode), place):
                    shorter, _ = texts.setdefault(called_names(seed), (seed, mode))
                    if variety(seed) > variety(shorter):
                        texts[called_names(seed)] = seed, mode
        chosen = _of_most_names(sorted(texts.values(), key=lambda seed: len(seed[0])))
        self.explored.seeds = len(chosen)
        return [(self._enlarged(self._with_distinct_values(text, mode), mode), mode) for text, mode in chosen]

    def _with_distinct_values(self, source: str, mode: str) -> str:
        """Return a program on inputs without equal values, if the pass acts on it: equal values hide differences."""
        tree = ast.parse(source)
        call = WrittenCall.of(tree)
        recipes = tensors_in(call.inputs) if call else []
        edits = {
            part: [expression(replace(recipe, elements="waves", wave=(1.0, 0.1 * number)).text)]
            for number, (part, recipe) in enumerate(recipes, 1)
            if recipe.dtype.is_floating_point
        }
        program = running(written(edited(tree, edits)), mode) if edits else None
        return program.source if program is not None and self.acts_on(program, mode) else source

    def _enlarged(self, source: str, mode: str) -> str:
        """Return a program with larger sizes in place of 1 and 2, if the pass acts on it: those hide differences.

        If a call names both dimensions of matrices, it gets a third one.
        """
        for size in ENLARGED:
            tree = ast.parse(source)
            for edits in of_sizes(tree, WrittenCall.of(tree), lambda old, known: [size] if 0 < old < 3 else []):  # noqa: B023
                program = running(written(edited(tree, edits)), mode)
                if program is not None and self.acts_on(program, mode):
                    source = program.source
                    break
        observed = Observed.of(source, mode)
        if observed is not None and (edits := wider(observed)):
            program = running(written(edited(observed.tree, edits)), mode)
            return program.source if program is not None and self.acts_on(program, mode) else source
        return source

    def _names_made(self, source: str, mode: str) -> list[str]:
        """Return the attributes that the pass adds to a program; none are known of a program of torch."""
        program = None if isinstance(self._pass, FormedPass) else running(source, mode)
        if program is None:
            return []
        with contextlib.suppress(TraceError), _programs_that_raise_rejected():
            after = self._example(program, mode, self._seconds).after
            attributes = vars(program.module)
            kinds = ("_modules", "_parameters", "_buffers")
            return [
                name
                for kind in kinds
                for name in vars(after or program.module)[kind]
                if not any(name in attributes[each] for each in kinds)
            ]
        return []

    def _places(self, source: str, mode: str) -> list[str]:
        """Return the places of a changed program where the pass acts, each alone and with one step around it.

        None are known of a program of torch: its nodes are not those of our capture.
        """
        program = None if isinstance(self._pass, FormedPass) else running(source, mode)
        if program is None:
            return []
        with contextlib.suppress(TraceError), _programs_that_raise_rejected():
            example = self._example(program, mode, self._seconds)
            programs = places(example.subject, example, lambda program: self.acts_on(program, mode), ((0,), AROUND))
            return [program.source for program in programs]
        return []

    def require_changes(self, least: float) -> None:
        """Raise :class:`~pytest_fx.errors.NothingJudged` if the pass changed fewer than ``least`` programs."""
        if self.lacks(least):
            coverage = self.code.coverage()
            unreached = "" if coverage is None else coverage.listed
            tidied = f"{self.counts.tidied} others were changed {NOT_BY_EDITS}" if self.counts.tidied else ""
            where = "\n".join(filter(None, (tidied, unreached)))
            raise NothingJudged(self.name, self.counts.programs, self.counts.acted, self._wanted(least), where)

    def report(self, wanted: int = 0) -> CheckReport:
        """Return the report of the search; ``wanted`` is the required number of changed programs."""
        names = tuple(law.name for law in self._laws if law.of != "programs")
        return CheckReport(
            **asdict(self.counts),
            name=self.name,
            laws=names,
            coverage=self.code.coverage(),
            seeds=self.explored.seeds,
            trials=self.explored.trials,
            varied_properties=tuple(self.explored.acted),
            unvaried_properties=self.explored.not_varied,
            wanted=wanted,
            orders=len(self._orders),
        )


def _of_most_names(seeds: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return some seeds, first those with a call that no earlier one has."""
    met = set[str]()
    new: list[tuple[str, str]] = []
    for seed in seeds:
        names = set(called_names(seed[0]))
        if not names <= met:
            new.append(seed)
            met |= names
    return [*new, *(seed for seed in seeds if seed not in new)][:MOST_SEEDS]


@contextlib.contextmanager
def _programs_that_raise_rejected() -> Generator[None]:
    """Turn an exception that a program raises during its capture into a ``TraceError``."""
    try:
        yield
    except (FxError, LawViolation):
        raise
    except Exception as error:
        if not is_raised_by_program(error):
            raise
        raise TraceError("the program raises where it is captured", why=str(error)) from error


def _is_of_recorded(law: Law) -> bool:
    """Return whether a law can be judged on a recorded program, which has fixed sizes and is no result of torch."""
    return law.may_change != "sizes" and not (law.of == "forms" and law.calls)


def _is_untranslated(example: PassRun) -> bool:
    """Return whether the pass is written for torch.fx, which cannot hold the program."""
    error: BaseException | None = example.refusal
    while error is not None and not isinstance(error, InteropError):
        error = error.__cause__
    return error is not None
