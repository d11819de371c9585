"""The search for a program on which a pass breaks a law: what was tried so far, and the first that was found."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fx.errors import TraceError
from fx.passes import Contract, pass_name
from pytest_fx.errors import LawViolation, NothingJudged
from pytest_fx.harness.pass_run import PassRun, leave_alone
from pytest_fx.harness.subject import ProgramSource, Subject
from pytest_fx.laws import Law, broken_laws, why_not_asked
from pytest_fx.laws.ways_out import with_ways_out
from pytest_fx.processes.deadline import Watchdog
from pytest_fx.search.blame import Blame
from pytest_fx.search.counterexample import describe
from pytest_fx.search.coverage import Coverage, PassCode, Point
from pytest_fx.search.nearness import nearest, running, variations
from pytest_fx.search.reduction import reduced
from pytest_fx.search.references import PassReferences

ONE_IN = 10
"""Slow laws are checked on one program in so many, and on the simplest."""
SHRINKING = 60.0
"""Seconds for which the first program that breaks a law is made smaller, at most."""
SHORT = 1.0
"""Seconds that a pass may take on a program once it has taken too long on another."""
Counts = tuple[int, int, int, int, tuple[frozenset[Point], frozenset[Point]]]
"""Programs tried, changed, refused and not judged; what there is of the code of the pass, and what they reached."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a search found that found no broken law."""

    name: str
    """The pass."""
    programs: int
    """Programs that it was tried on."""
    changed: int
    """Those that it changed."""
    refused: int
    """Those that it refused with a ``PassError``."""
    unjudged: int
    """Those on which the capture itself, before the pass, breaks the law that is broken after it, or what torch.fx
    offers to passes does."""
    laws: tuple[str, ...]
    """The laws that it kept."""
    coverage: Coverage | None = None
    """How much of its own code they reached; None if it has none that could be seen to run."""

    def __str__(self) -> str:
        refused = f", refused {self.refused}" if self.refused else ""
        counts = (
            f"{self.name} changed {self.changed} of {self.programs} programs{refused} and kept {len(self.laws)} laws"
        )
        if self.coverage is None:
            return counts
        return "\n  ".join([f"{counts}; {self.coverage}", *self.coverage.listed.splitlines()])


@dataclass(frozen=True, slots=True)
class _Found:
    """A law that the pass breaks."""

    law: Law
    """The law."""
    violation: LawViolation
    """What it says."""
    example: PassRun
    """The pass on the program on which it is broken."""


class Search:
    """The examples so far: what they add up to, and the first law that was broken."""

    def __init__(
        self, pass_: Any, contract: Contract, laws: list[Law], always: set[str], seconds: float, about: PassReferences
    ) -> None:
        self._pass = pass_
        self._blame = Blame(pass_, about)
        self._contract = contract
        self._laws = laws
        self._always = always
        self._seconds = seconds
        self.watchdog = Watchdog()
        self.code = PassCode(about.codes, pass_)
        """The code of the pass, and what was reached of it."""
        self._reached: dict[str, frozenset[Point]] = {}  # by each program
        self.announce: Callable[[ProgramSource, str], None] = lambda program, mode: None
        """Told of each program, and the mode, before the pass is applied to it."""
        self.planned = 0
        """How many programs are to be tried, as far as that is known."""
        self.on_program: Callable[[int, int | None], object] = lambda number, count: None
        """Called with the number of each program and :attr:`planned`, or None while that program is made smaller."""
        self._tried = self._changed = self._refused = self._unjudged = 0
        self._kept: dict[tuple[str, str], None] = {}  # what need not be tried again
        self._skipped: set[tuple[str, str]] = set()  # what may not: it ends the process by itself
        self._found: _Found | None = None
        self._first: PassRun | None = None  # on which a law was found broken, before it was made smaller

    def check(self, program: ProgramSource, mode: str, sample: int) -> bool:
        """Apply the pass to one program and raise the violation of a law that it breaks, on numbers if there is one.

        Returns whether the program is a new one; one that was tried before is not tried again. Raises ``TraceError``
        where it is none that can be captured, hence says nothing about the pass.

        Once a law was broken that is what comes of every program: Hypothesis tries it again, and a pass that breaks a
        law only at times is not to confuse it.
        """
        if self._found is not None:
            raise self._found.violation
        key = (mode, program.source or f"program {id(program)}")
        if key in self._kept or key in self._skipped:
            return False
        self.on_program(self._tried + 1, max(self.planned, self._tried + 1))
        example = self._example(program, mode, self._seconds, recorded=True)
        if program.source:
            self._reached[program.source] = self.code.latest | self._reached.get(program.source, frozenset())
        if example.after is not None:
            self.code.leave_out_what_runs_in(example.after)
        self._tried += 1
        self._changed += example.changed
        self._refused += example.refusal is not None
        violations = broken_laws([law for law in self._laws if self._applies(law, example, sample)], example)
        blamed = next((found for found in violations if self._blame.caused_by_pass(self._law_of(found), example)), None)
        if blamed is not None:
            self._found, self._first = _Found(self._law_of(blamed), blamed, example), example
            raise blamed
        self._unjudged += bool(violations)
        if program.source:
            self._kept[key] = None
        return True

    @property
    def name(self) -> str:
        """Return what the pass is called."""
        return pass_name(self._pass)

    @property
    def counts(self) -> Counts:
        """Return how many programs were tried, changed, refused and not judged, and what they reached."""
        code = self.code.points, self.code.reached
        return self._tried, self._changed, self._refused, self._unjudged, code

    def count(self, counts: Counts) -> None:
        """Take the counts of the same search in another process."""
        self._tried, self._changed, self._refused, self._unjudged, code = counts
        self.code.points, self.code.reached = code

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
        self, program: ProgramSource, mode: str, seconds: float, pass_: Any = None, recorded: bool = False
    ) -> PassRun:
        self.announce(program, mode)
        return PassRun(
            Subject.of(program, mode),
            self._pass if pass_ is None else pass_,
            contract=self._contract,
            watchdog=self.watchdog,
            seconds=seconds,
            recording=self.code.recording if recorded else nullcontext,
        )

    def _law_of(self, violation: LawViolation) -> Law:
        return next(law for law in self._laws if law.name == violation.law)

    def shrink(self, modes: Sequence[str]) -> None:
        """Make what was found smaller as long as the pass breaks the same law on it, in evaluation mode if it can be.

        That is done to the text of the program; one without a text stays as it is. Where a law on numbers is broken,
        too, in another mode say, that is reported first, so the program is made smaller by that one.
        """
        self.on_program(self._tried, None)
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
        if not self._shows(source, mode):  # no text that makes a program, or a pass that is wrong at times
            return
        if "eval" in modes and self._shows(source, "eval"):
            mode = "eval"
        reduced(source, lambda text: self._shows(text, mode), SHRINKING)

    def _shows(self, source: str, mode: str) -> bool:
        """Return whether the pass breaks the same law on another program, too; if so, that is what was found."""
        assert self._found is not None
        law, before = self._found.law, self._found.example
        seconds = self._seconds if before.too_long is None else min(self._seconds, SHORT)
        program = running(source, mode)
        if program is None:
            return False
        try:
            example = self._example(program, mode, seconds)
        except TraceError:
            return False
        violation = law.find_violation(example)
        if violation is None or not self._blame.caused_by_pass(law, example):
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
        return told.with_details(f"{self.tried}\n{describe(example, violation, folder)}")

    def _broken_on(self, example: PassRun, laws: list[Law]) -> list[LawViolation]:
        """Return how the pass breaks those of ``laws`` that it breaks on one program, on numbers first."""
        violations = broken_laws([law for law in laws if self._applies(law, example, 0)], example)
        return [found for found in violations if self._blame.caused_by_pass(self._law_of(found), example)]

    @property
    def tried(self) -> str:
        """A line on how many programs it took, and how much of the code of the pass they reached."""
        coverage = self.code.coverage()
        reached = "" if coverage is None else f"; {coverage}"
        return f"found after {self._tried} program(s), of which {self.name} changed {self._changed}{reached}"

    def lacks(self, least: float) -> bool:
        """Return whether the pass changed fewer programs than ``least``, a number or a part."""
        return self._changed < self._wanted(least)

    def _wanted(self, least: float) -> float:
        return least * self._tried if least < 1 else least

    def nearest(self) -> list[str]:
        """The programs on which the pass went furthest."""
        return nearest(self._reached)

    def vary(self, constants: Sequence[Any], modes: Sequence[str], most: int, is_enough: Callable[[], bool]) -> None:
        """Try variations of the programs on which the pass went furthest, until it is enough, and ``most`` at most."""
        random = Random(0)
        for program in itertools.islice(variations(self._reached, constants, random), most):
            with contextlib.suppress(TraceError):
                self.check(program, random.choice(modes), random.randrange(ONE_IN))
            if is_enough():
                return

    def require_changes(self, least: float) -> None:
        """Raise :class:`~pytest_fx.errors.NothingJudged` if the pass changed fewer than ``least`` programs."""
        if self.lacks(least):
            coverage = self.code.coverage()
            unreached = "" if coverage is None else coverage.listed
            raise NothingJudged(self.name, self._tried, self._changed, self._wanted(least), unreached)

    def report(self) -> CheckReport:
        """Return what the search found."""
        names = tuple(law.name for law in self._laws if law.of != "programs")
        counts = self._tried, self._changed, self._refused, self._unjudged
        return CheckReport(self.name, *counts, names, self.code.coverage())
