"""The search for a program on which a pass breaks a law: what was tried so far, and the first that was found."""

from __future__ import annotations

import ast
import contextlib
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from fx.errors import FxError, InteropError, TraceError
from fx.passes import Contract, pass_name
from pytest_fx.errors import LawViolation, NothingJudged
from pytest_fx.generation.record import is_raised_by_program
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.pass_run import PassRun, leave_alone
from pytest_fx.harness.subject import GivenProgram, ProgramSource, Subject
from pytest_fx.laws import Law, broken_laws, why_not_asked
from pytest_fx.laws.ways_out import with_ways_out
from pytest_fx.processes.deadline import Watchdog
from pytest_fx.search.blame import Blame
from pytest_fx.search.check_report import NOT_BY_EDITS, CheckReport, Counts
from pytest_fx.search.comparisons import Mismatch, PassComparisons
from pytest_fx.search.counterexample import describe, visibility
from pytest_fx.search.coverage import PassCode, Point
from pytest_fx.search.drawn_options import (
    takes_options_for_programs,
    with_drawn_options,
    written_with_options,
)
from pytest_fx.search.exploration import Explored, called_names, trials, variety
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
"""How many changed programs are cut to seeds."""
MOST_SEEDS = 6
"""How many seeds are explored."""
ENLARGED = (4, 6, 5)
"""Sizes of seeds in the place of smaller ones, one after the other."""
ONE_IN = 10
"""Slow laws are checked on one program in so many, and on the simplest."""
CHEAP = 1
"""Calls that laws take which are asked of every program of an exploration."""
COSTLY = 3
"""The others are asked of so many in ten: sizes, values and layouts are varied anyway."""
SHRINKING = 60.0
"""Seconds for which the first program that breaks a law is made smaller, at most."""
VISIBLE = 1e-2
"""An error of an output, as a part of its largest element, that is seen when both are printed."""
REMAINS = 0.1
"""The part of an error that is left, at least, in smaller programs, where it is not as large as that."""
LONGEST_ON_MODEL = 60.0
"""Seconds that a pass may take on a whole model, at least."""
OTHER_OPTIONS = 4
"""Draws of options on a smaller program, for a pass that names some, where those on the larger one show nothing."""
MOST_OF_BLOCKS = 24
"""Places of building blocks that are tried: some passes act in each of them."""
SHORT = 1.0
"""Seconds that a pass may take on a program once it has taken too long on another."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A law that the pass breaks."""

    law: Law
    """The law."""
    violation: LawViolation
    """What it says."""
    example: PassRun
    """The pass on the program on which it is broken."""


Progress = tuple[Counts, frozenset[Point], frozenset[Point], Explored]
"""Counts, what there is of the code of the pass, what was reached of it, and what was varied."""


class Search:
    """The examples so far: what they add up to, and the first law that was broken."""

    def __init__(
        self, pass_: Any, contract: Contract, laws: list[Law], always: set[str], seconds: float, about: PassReferences
    ) -> None:
        self._pass = pass_
        self._draws_options = takes_options_for_programs(pass_)
        self._blame = Blame(pass_, about)
        self._contract = contract
        self._laws = laws
        self._always = always
        self._seconds = seconds
        self.watchdog = Watchdog()
        self.code = PassCode(about.codes, pass_)
        """The code of the pass, and what was reached of it."""
        self._reached: dict[str, frozenset[Any]] = {}  # by each program
        self._reached_in_changed: dict[str, frozenset[Any]] = {}  # by each that the pass changed
        self._changed_modes: dict[str, str] = {}  # the modes of these
        self.announce: Callable[[ProgramSource, str], None] = lambda program, mode: None
        """Told of each program, and the mode, before the pass is applied to it."""
        self.planned = 0
        """How many programs are to be tried, as far as that is known."""
        self.on_program: Callable[[int, int | None], object] = lambda number, count: None
        """Called with the number of each program and :attr:`planned`, or None while that program is made smaller."""
        self.counts = Counts()
        """What became of the programs so far."""
        self._kept: dict[tuple[str, str], None] = {}  # what need not be tried again
        self._skipped: set[tuple[str, str]] = set()  # what may not: it ends the process by itself
        self._found: _Found | None = None
        self._held: _Found | None = None  # of a law that says less than wrong values do
        self._first: PassRun | None = None  # on which a law was found broken, before it was made smaller
        self._least_visibility = 0.0
        self._compares = any(law.judges == "values" for law in laws)
        self.explored = Explored()
        """What was varied around the places where the pass acts."""

    def check(self, program: ProgramSource, mode: str, sample: int, *, if_changed: bool = False) -> bool:
        """Apply the pass to one program and raise the violation of a law that it breaks, on numbers if there is one.

        Returns whether the program is a new one; one that was tried before is not tried again. With ``if_changed``,
        programs that the pass does not change are not counted. Raises ``TraceError`` where it is none that can be
        captured, hence says nothing about the pass.

        Once a law was broken that is what comes of every program: Hypothesis tries it again, and a pass that breaks a
        law only at times is not to confuse it.
        """
        if self._found is not None:
            raise self._found.violation
        key = (mode, program.source or f"program {id(program)}")
        if key in self._kept or key in self._skipped:
            return False
        with _programs_that_raise_rejected():
            self._check(program, mode, sample, if_changed)
        if program.source:
            self._kept[key] = None
        return True

    def _check(self, program: ProgramSource, mode: str, sample: int, if_changed: bool) -> None:
        number = self.counts.programs + self.counts.varied + 1
        self.on_program(number, max(self.planned, number))
        example = self._example(program, mode, self._seconds, recording=self.code.recording)
        if program.source:
            self._reached[program.source] = self.code.latest_paths | self._reached.get(program.source, frozenset())
        if example.after is not None:
            self.code.leave_out_what_runs_in(example.after)
        is_changed = self._count_one(example, if_changed)
        if is_changed and program.source:
            self._reached_in_changed[program.source] = self._reached[program.source]
            self._changed_modes[program.source] = mode
        if if_changed and not is_changed and example.after is not None and example.damage is None:
            return  # what a pass does to programs that it leaves alone is judged on drawn ones
        laws = [law for law in self._laws if law.calls <= CHEAP or not if_changed or sample < COSTLY]
        violations = broken_laws([law for law in laws if self._applies(law, example, sample)], example)
        blamed = next((found for found in violations if self._blame.caused_by_pass(self._law_of(found), example)), None)
        if blamed is not None:
            self._note(_Found(self._law_of(blamed), blamed, example))
        self.counts = self.counts.plus(unjudged=bool(violations))
        if is_changed and not violations and not example.compared and self._compares:
            self.counts = self.counts.plus(uncompared=1, **{"varied" if if_changed else "changed": -1})

    def _note(self, found: _Found) -> None:
        """Raise a violation; one of a law that says less than wrong values do only once nothing else is found."""
        self._first = self._first or found.example
        if found.law.says_less:
            self._held = self._held or found
            self._laws = [law for law in self._laws if not law.says_less]
            return
        self._found, self._first = found, found.example
        raise found.violation

    def raise_held(self) -> None:
        """Raise the violation that was kept for the end, if there is one."""
        if self._held is not None:
            self._found = self._held
            raise self._held.violation

    @property
    def name(self) -> str:
        """Return what the pass is called."""
        return pass_name(self._pass)

    @property
    def progress(self) -> Progress:
        """Return what became of the programs so far, and what they reached."""
        return self.counts, self.code.points, self.code.reached, self.explored

    def resume(self, progress: Progress) -> None:
        """Take the progress of the same search in another process."""
        self.counts, self.code.points, self.code.reached, self.explored = progress

    def _count_one(self, example: PassRun, if_changed: bool) -> bool:
        """Count a program, only if it is changed where that is asked for, and return whether the pass changed it."""
        if self.code.has_edited:
            changed = example.changed
        else:
            changed = self.code.may_have_edited and self._blame.changed_by_pass(example)
        if if_changed:
            self.counts = self.counts.plus(varied=changed)
            return changed
        untranslated = _is_untranslated(example)
        self.counts = self.counts.plus(
            programs=1,
            changed=changed,
            tidied=example.changed and not changed,
            refused=example.refusal is not None and not untranslated,
            untranslated=untranslated,
        )
        return changed

    def applied_to(self, model: Subject) -> PassRun:
        """Apply the pass to a model, to find its places; the laws are not checked on it."""
        self.announce(GivenProgram(model.fresh, Arguments()), model.mode)
        seconds = max(self._seconds, LONGEST_ON_MODEL)
        return PassRun(model, self._pass, contract=self._contract, watchdog=self.watchdog, seconds=seconds)

    def try_blocks(self, blocks: Iterable[Subject], modes: Sequence[str]) -> None:
        """Try the places of building blocks where the pass acts, and note them as those of one model."""
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
        """Try the places of models where the pass acts, in each mode in which it does, until it is enough.

        Without ``is_enough`` all models were asked for, and those without a place are noted, too. Raises the violation
        of a law that the pass breaks.
        """
        for model in models:
            if is_enough is not None and is_enough():
                return
            number, why = self._try_model(model, modes)
            if number or is_enough is None:
                self.counts = self.counts.looked_through(model.name, number, why)

    def _try_model(self, model: Subject, modes: Sequence[str]) -> tuple[int, str]:
        """Try the places of a model where the pass acts, and return their number, and why there may be none."""
        pass_run = self.applied_to(model)
        found = places(model, pass_run, lambda program: any(self.acts_on(program, mode) for mode in modes))
        number = 0
        for number, program in enumerate(found, 1):
            for mode in modes:
                if self.acts_on(program, mode):
                    self.check(program, mode, number - 1)
        self.require_returned(pass_run)
        why = "which it refuses" if pass_run.refusal else "where it has no text" if pass_run.changed else ""
        pass_run.close()
        return number, why

    def require_returned(self, example: PassRun) -> None:
        """Raise the violation of a law by a pass that raises on a model, or does not end there."""
        violations = self._broken_on(example, self._laws) if example.error or example.too_long else []
        if violations:
            self._found = _Found(self._law_of(violations[0]), violations[0], example)
            raise violations[0]

    def skip(self, source: str, mode: str) -> None:
        """Do not try this program."""
        self._skipped.add((mode, source))

    def judge(self, program: ProgramSource, mode: str, pass_: Any = None) -> None:
        """Check all laws, whatever comes of it, with ``pass_`` in the place of the pass if that is given."""
        example = self._example(program, mode, self._seconds, pass_)
        broken_laws([law for law in self._laws if self._applies(law, example, 0)], example)

    def untouched(self, program: ProgramSource, mode: str) -> PassRun:
        """A program to which the pass was not applied, as what was found before it was."""
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
    ) -> PassRun:
        self.announce(program, mode)
        subject = Subject.of(program, mode)
        if pass_ is None and self._draws_options:
            pass_ = with_drawn_options(self._pass, subject.capture(), Random(f"{draw} {subject.source}"))
        return PassRun(
            subject,
            self._pass if pass_ is None else pass_,
            contract=self._contract,
            watchdog=self.watchdog,
            seconds=seconds,
            recording=recording,
        )

    def _law_of(self, violation: LawViolation) -> Law:
        return next(law for law in self._laws if law.name == violation.law)

    def shrink(self, modes: Sequence[str]) -> None:
        """Make what was found smaller as long as the pass breaks the same law on it, in evaluation mode if it can be.

        That is done to the text of the program; one without a text stays as it is. Where a law on numbers is broken,
        too, in another mode say, that is reported first, so the program is made smaller by that one.
        """
        self.on_program(self.counts.programs, None)
        self._lead_with_numbers(modes)
        self._shrink(modes)
        if self._lead_with_numbers(modes):
            self._shrink(modes)

    def _lead_with_numbers(self, modes: Sequence[str]) -> bool:
        """Return whether the found program breaks a law on numbers, where the one before did not; take it if so."""
        assert self._found is not None, "there is nothing to make smaller"
        source, seconds = self._found.example.subject.source, self._seconds
        for mode in () if self._found.law.judges or self._found.example.after is None else modes:
            with contextlib.suppress(TraceError):
                example = None if (program := running(source, mode)) is None else self._example(program, mode, seconds)
                violations = [] if example is None else self._broken_on(example, self._laws)
                if violations and example is not None and (law := self._law_of(violations[0])).judges:
                    self._found = _Found(law, violations[0], example)
                    return True
        return False

    def _shrink(self, modes: Sequence[str]) -> None:
        assert self._found is not None, "there is nothing to make smaller"
        source, mode = self._found.example.subject.source, self._found.example.mode
        self._least_visibility = min(VISIBLE, REMAINS * visibility(self._found.example, self._found.violation))
        if not self._shows(source, mode):  # no text that makes a program, or a pass that is wrong at times
            return
        if "eval" in modes and self._shows(source, "eval"):
            mode = "eval"
        reduced(source, lambda text: self._shows(text, mode), SHRINKING)

    def _shows(self, source: str, mode: str) -> bool:
        """Return whether the pass breaks the same law on another program, too; if so, that is what was found.

        Where outputs differ, they must go on to do so visibly: a batch norm with fresh statistics does next to nothing.
        """
        assert self._found is not None
        program, before = running(source, mode), self._found.example
        if program is None:
            return False
        if not self._draws_options:
            return self._shows_on(program, mode)
        drawn = (self._shows_on(program, mode, draw=number) for number in range(OTHER_OPTIONS))
        return self._shows_on(program, mode, before.pass_) or any(drawn)

    def _shows_on(self, program: ProgramSource, mode: str, pass_: Any = None, draw: int = 0) -> bool:
        assert self._found is not None
        law, before = self._found.law, self._found.example
        seconds = self._seconds if before.too_long is None else min(self._seconds, SHORT)
        try:
            with _programs_that_raise_rejected():
                example = self._example(program, mode, seconds, pass_, draw=draw)
        except TraceError:
            return False
        violation = law.find_violation(example)
        if violation is None or visibility(example, violation) < self._least_visibility:
            return False
        if not self._blame.caused_by_pass(law, example):
            return False
        self._found = _Found(law, violation, example)
        return True

    def _applies(self, law: Law, example: PassRun, sample: int) -> bool:
        sampled = law.kind == "sampled" and law.name not in self._always
        return (not sampled or sample == 0) and why_not_asked(law, example) is None

    def explained(self, folder: Path) -> LawViolation:
        """The violation, with the program on which it was found."""
        assert self._found is not None
        violation, example = self._found.violation, self._found.example
        others = self._broken_on(example, [law for law in self._laws if law is not self._found.law])
        earlier = () if self._first is None or self._first is example else self._broken_on(self._first, self._laws)
        told = with_ways_out(violation, others, self._pass, example.mode, [each.law for each in earlier])
        if isinstance(example.subject.source, str) and not example.subject.source and example.after is None:
            return told.with_details(f"{self.tried}\non all of {example.subject.name}, and on no part of it")
        options = f"with these options: {written_with_options(example.pass_)}\n" if self._draws_options else ""
        return told.with_details(f"{self.tried}\n{options}{describe(example, violation, folder)}")

    def _broken_on(self, example: PassRun, laws: list[Law]) -> list[LawViolation]:
        """Return how the pass breaks those of ``laws`` that it breaks on one program, on numbers first."""
        violations = broken_laws([law for law in laws if self._applies(law, example, 0)], example)
        return [found for found in violations if self._blame.caused_by_pass(self._law_of(found), example)]

    @property
    def tried(self) -> str:
        """A line on how many programs it took, and how much of the code of the pass they reached."""
        coverage = self.code.coverage()
        reached = "" if coverage is None else f"; {coverage}"
        count = self.counts
        programs = count.programs + count.varied
        return f"found after {programs} program(s), of which {self.name} changed {count.acted}{reached}"

    def lacks(self, least: float) -> bool:
        """Return whether the pass changed fewer programs than ``least``, a number or a part."""
        return self.counts.acted < self._wanted(least)

    def _wanted(self, least: float) -> float:
        return least * self.counts.programs if least < 1 else least

    @property
    def changed_modes(self) -> tuple[str, ...]:
        """The modes in which the pass changed programs."""
        return tuple(dict.fromkeys(self._changed_modes.values()))

    def nearest(self, most: int) -> list[str]:
        """The programs on which the pass went furthest: if it changed some, parts of those that it changes, too.

        At most as many parts are tried as ``most``.
        """
        changed = nearest(self._reached_in_changed)[:most]
        return [self._cut(source, self._changed_modes[source]) for source in changed] or nearest(self._reached)

    def _cut(self, source: str, mode: str) -> str:
        """Return the shortest part of a changed program that the pass changes, too."""
        for program in cuts(source):
            if self.acts_on(program, mode):
                self.check(program, mode, 1, if_changed=True)
                return program.source
        return source

    def acts_on(self, program: ProgramSource, mode: str) -> bool:
        """Return whether the pass changes a program, on which nothing is judged."""
        try:
            with _programs_that_raise_rejected():
                return self._blame.changed_by_pass(self._example(program, mode, self._seconds))
        except TraceError:
            return False

    def vary(
        self, constants: Sequence[Any], modes: Sequence[str], most: int, is_enough: Callable[[], bool], *, changed: bool
    ) -> None:
        """Try variations of the programs on which the pass went furthest, until it is enough, and ``most`` at most.

        Only of those that it ``changed``, if that is asked for and there are some.
        """
        random, reached = Random(0), (changed and self._reached_in_changed) or self._reached
        for program in itertools.islice(variations(reached, constants, random), most):
            with contextlib.suppress(TraceError):
                self.check(program, random.choice(modes), random.randrange(ONE_IN))
            if is_enough():
                return

    def grow(self, operations: Sequence[Any], mode: str, most: int, is_enough: Callable[[], bool]) -> None:
        """Pass values of the programs on which the pass went furthest through some operations, until it is enough."""
        programs = itertools.chain(starts(), self._growths(operations))
        for program in itertools.islice(programs, most):
            with contextlib.suppress(TraceError):
                self.check(program, mode, 1, if_changed=True)
            if is_enough():
                return

    def _growths(self, operations: Sequence[Any]) -> Iterator[ProgramSource]:
        """Yield programs that grow toward the pass."""
        comparisons = PassComparisons(self.code.codes)

        def compared(text: str) -> Sequence[Mismatch]:
            """Return the mismatches of a program."""
            program = running(text)
            if program is None:
                return ()
            with contextlib.suppress(TraceError), _programs_that_raise_rejected():
                self._example(program, "eval", self._seconds, recording=comparisons.recording)
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
        """Vary every property of the programs that the pass changed, until it changed ``most`` of those that result.

        Args:
            modes: in which the pass is to be right.
            most: how many trials count; twice as many are tried at most.
            looked_at: names that the pass mentions.
            operations: those that it mentions.
        """
        random, seeds = Random(0), self._seeds()
        names = {text: self._names_made(text, mode) for text, mode in seeds}
        for trial in itertools.islice(
            trials(seeds, modes, looked_at, random, self.explored.acted, names, operations), 2 * most
        ):
            before = self.counts.varied
            with contextlib.suppress(TraceError):
                sample = random.randrange(ONE_IN) if trial.is_usual else 1
                self.check(trial.program, trial.mode, sample, if_changed=True)
            self.explored.note(trial, self.counts.varied > before)
            if self.explored.trials >= most:
                return

    def _seeds(self) -> list[tuple[str, str]]:
        """Return short parts of changed programs that call different things, and their modes.

        Each is the place where the pass acts, alone or with one step around it, or the shortest part of that.
        """
        texts: dict[Any, tuple[str, str]] = {}
        for source in nearest(self._reached_in_changed, MOST_CUT):
            mode = self._changed_modes[source]
            for place in self._places(source, mode) or [source]:
                for seed in (self._cut(place, mode), place):
                    known, _ = texts.setdefault(called_names(seed), (seed, mode))
                    if variety(seed) > variety(known):
                        texts[called_names(seed)] = seed, mode
        chosen = _of_most_names(sorted(texts.values(), key=lambda seed: len(seed[0])))
        self.explored.seeds = len(chosen)
        return [(self._enlarged(self._with_distinct_values(text, mode), mode), mode) for text, mode in chosen]

    def _with_distinct_values(self, source: str, mode: str) -> str:
        """Return a program on inputs with no two equal values, if the pass acts on it: equal ones hide much."""
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
        """Return a program with larger sizes where it has 1 and 2, as far as the pass acts on it: these hide much.

        Where a call names both dimensions of matrices it gets a third one.
        """
        for size in ENLARGED:
            tree = ast.parse(source)
            for edits in of_sizes(tree, WrittenCall.of(tree), lambda old, known: [size] if 0 < old < 3 else []):  # noqa: B023
                program = running(written(edited(tree, edits)), mode)
                if program is not None and self.acts_on(program, mode):
                    source = program.source
                    break
        seen = Observed.of(source, mode)
        if seen is not None and (edits := wider(seen)):
            program = running(written(edited(seen.tree, edits)), mode)
            return program.source if program is not None and self.acts_on(program, mode) else source
        return source

    def _names_made(self, source: str, mode: str) -> list[str]:
        """Return the attributes that the pass adds to a program."""
        program = running(source, mode)
        if program is None:
            return []
        with contextlib.suppress(TraceError), _programs_that_raise_rejected():
            after = self._example(program, mode, self._seconds).after
            known = vars(program.module)
            kinds = ("_modules", "_parameters", "_buffers")
            return [
                name
                for kind in kinds
                for name in vars(after or program.module)[kind]
                if not any(name in known[each] for each in kinds)
            ]
        return []

    def _places(self, source: str, mode: str) -> list[str]:
        """Return the places of a changed program where the pass acts, each alone and with one step around it."""
        program = running(source, mode)
        if program is None:
            return []
        with contextlib.suppress(TraceError), _programs_that_raise_rejected():
            example = self._example(program, mode, self._seconds)
            found = places(example.subject, example, lambda program: self.acts_on(program, mode), ((0,), AROUND))
            return [program.source for program in found]
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
        """Return what the search found, of which ``wanted`` programs were to be changed."""
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
        )


def _of_most_names(seeds: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Choose some seeds: first those that call something which none before calls."""
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
    """Take what a program raises where it is captured for a program that cannot be."""
    try:
        yield
    except (FxError, LawViolation):
        raise
    except Exception as error:
        if not is_raised_by_program(error):
            raise
        raise TraceError("the program raises where it is captured", why=str(error)) from error


def _is_untranslated(example: PassRun) -> bool:
    """Return whether the pass is written for torch.fx, which cannot hold the program."""
    error: BaseException | None = example.refusal
    while error is not None and not isinstance(error, InteropError):
        error = error.__cause__
    return error is not None
