"""``check_pass``: any pass against random programs; ``check_program``: against one (see :mod:`pytest_fx.laws`)."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
from hypothesis import Phase, core, given
from hypothesis import strategies as st
from torch import nn

from fx.errors import FxError, TraceError
from fx.passes import Contract, contract_of, pass_name
from pytest_fx import generation
from pytest_fx.errors import LawViolation, NothingJudged
from pytest_fx.harness.application import LARGEST_TIME, Application, may_change
from pytest_fx.harness.capture import capture
from pytest_fx.harness.deadline import TookTooLong, Watchdog
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.process import process_kept
from pytest_fx.harness.subject import Checked, GivenProgram, Subject
from pytest_fx.laws import Law, broken_laws, choose_laws
from pytest_fx.loading import load_contract, load_pass

from .blame import Blame
from .counterexample import FOLDER, describe
from .mentions import Mentions, mentioned
from .nearness import Steps, nearest, running, steps_of, variations
from .reduction import reduced

MODES = ("eval", "train")
ENOUGH_CHANGES = 0.05
"""The part of the programs that a pass must change, unless it is said otherwise."""
ONE_IN = 10
"""Slow laws are checked on one program in so many, and on the simplest."""
SHRINKING = 60.0
"""Seconds for which the first program that breaks a law is made smaller, at most."""
INDEPENDENT = 11
"""Examples of which Hypothesis makes no variants: the simplest one, and ten by which it judges whether all is well."""
SHORT = 1.0
"""Seconds that a pass may take on a program once it has taken too long on another."""


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

    def __str__(self) -> str:
        refused = f", refused {self.refused}" if self.refused else ""
        return f"{self.name} changed {self.changed} of {self.programs} programs{refused} and kept {len(self.laws)} laws"


def check_pass(
    pass_: Any,
    *,
    contract: Contract | str | None = None,
    modes: Sequence[str] = MODES,
    max_examples: int | None = None,
    without: Iterable[str] = (),
    demand: Iterable[str | Law] = (),
    like: Any = None,
    programs: st.SearchStrategy[Any] | None = None,
    min_changed: float = ENOUGH_CHANGES,
    seed: int | None = None,
    settings: hypothesis.settings | None = None,
    seconds: float = LARGEST_TIME,
    folder: Path | None = None,
) -> CheckReport:
    """Apply a pass to random programs, and check on each that it keeps the laws of :mod:`pytest_fx.laws`.

    Args:
        pass_: a pass, a pass class, a pass written for ``torch.fx``, a name or ``package.module:attribute``, or a text
            such as ``"fuse-conv-bn,split{at=layer3}"``.
        contract: what it promises about the numbers; by default what it says itself.
        modes: the modes of programs in which it claims to be right: ``"eval"``, ``"train"``.
        max_examples: how many programs; by default what Hypothesis's settings say.
        without: names of laws to switch off.
        demand: names of laws to check on every program, ``"idempotent"`` and ``"shrinks the graph"`` among them, and
            laws of the caller's own.
        like: a captured program to whose operations the random ones are biased, in place of those that the pass
            mentions; numbers and texts that it mentions stay frequent among the arguments.
        programs: a strategy of programs (:func:`pytest_fx.generation.programs`) to use instead.
        min_changed: how many programs it must change: a number of them, or a part if it is less than 1. With 0 a pass
            may find nothing to do.
        seed: makes the programs the same ones in each run.
        settings: Hypothesis's settings; by default those of the profile.
        seconds: how long the pass may take on one program.
        folder: where the test file of a failure goes; by default ``.pytest_fx`` in the current folder.

    Raises:
        LawViolation: the pass breaks a law. The message has the smallest program found, its code before and after the
            pass, the answers, and the path of a test file.
        NothingJudged: the pass changes too few programs, after as many again that are near to those on which it went
            furthest.
        FxError: the pass, the contract, or a law is not known by its name.
    """
    __tracebackhide__ = True
    made = load_pass(pass_)
    promise = contract_of(made) if contract is None else load_contract(contract)
    laws = choose_laws(without, demand, may_change(made))
    about = mentioned(made)
    search = _Search(made, promise, laws, {law for law in demand if isinstance(law, str)}, seconds, about)
    about = about if like is None else replace(about, operations=(), patterns=(like,))
    others = st.sampled_from(_checked_modes(modes)), st.integers(0, ONE_IN - 1)
    drawn = st.tuples(_programs(about) if programs is None else programs, *others)
    parent = hypothesis.settings() if settings is None else settings
    examples = _Examples(drawn, _settings(parent, max_examples), seed, f"{pass_name(made)} {promise} {modes}")
    violation = None
    with process_kept(), search.watchdog, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what random programs warn of is nobody's fault
        try:
            examples.try_on(search.check)
            if search.lacks(min_changed) and programs is None and Phase.generate in parent.phases:
                steps, half = search.steps(), -(-examples.settings.max_examples // 2)
                found = [running(source) for source in nearest(steps)]
                patterns = tuple(capture(program.module, program.inputs) for program in found if program)
                again = hypothesis.settings(examples.settings, max_examples=half, database=None)
                drawn = st.tuples(_programs(replace(about, patterns=patterns)), *others)
                replace(examples, drawn=drawn, settings=again).try_on(search.check)
                search.vary(steps, about.constants, modes, min_changed)
        except LawViolation as error:
            violation = error
        if violation is not None:
            if Phase.shrink in parent.phases:
                search.shrink(modes)
            violation = search.explained(folder or Path.cwd() / FOLDER)
    if violation is not None:
        # raised from here to leave Hypothesis's frames and its print of the whole example behind
        raise violation
    search.require_changes(min_changed)
    return search.report()


def check_program(
    pass_: Any,
    build: Callable[[], nn.Module],
    inputs: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
    *,
    laws: Iterable[str] | None = None,
    mode: str = "eval",
    contract: Contract | str | None = None,
    seconds: float = LARGEST_TIME,
) -> None:
    """Apply a pass to one program, and check that it keeps the laws; test files of failures call this.

    Args:
        pass_: the pass, as :func:`check_pass` takes it.
        build: makes the module.
        inputs: makes the positional and the keyword arguments of a call.
        laws: names of the laws to check; by default all that need not be demanded.
        mode: ``"eval"`` or ``"train"``.
        contract: what the pass promises; by default what it says itself.
        seconds: how long it may take.

    Raises:
        LawViolation: the pass breaks a law.
        FxError: the pass, the contract, or a law is not known by its name.
    """
    __tracebackhide__ = True
    made = load_pass(pass_)
    args, kwargs = inputs()
    promise = contract_of(made) if contract is None else load_contract(contract)
    chosen = choose_laws((), laws or (), may_change(made))
    names = None if laws is None else set(laws)
    with process_kept(), Watchdog() as watchdog:
        subject = Subject.of(GivenProgram(build, Arguments(args, kwargs)), _checked_modes((mode,))[0])
        application = Application(subject, made, contract=promise, watchdog=watchdog, seconds=seconds)
        violations = broken_laws([law for law in chosen if names is None or law.name in names], application)
    if violations:
        raise violations[0].with_others(violations[1:])


@dataclass(frozen=True, slots=True)
class _Found:
    """A law that the pass breaks."""

    law: Law
    """The law."""
    violation: LawViolation
    """What it says."""
    example: Application
    """The pass on the program on which it is broken."""


class _Search:
    """The examples so far: what they add up to, and the first law that was broken."""

    def __init__(
        self, pass_: Any, contract: Contract, laws: list[Law], always: set[str], seconds: float, about: Mentions
    ) -> None:
        self._pass = pass_
        self._blame = Blame(pass_, about)
        self._contract = contract
        self._laws = laws
        self._always = always
        self._seconds = seconds
        self.watchdog = Watchdog()
        self._tried = self._changed = self._refused = self._unjudged = 0
        self._kept: dict[tuple[str, str], None] = {}  # what need not be tried again
        self._found: _Found | None = None

    def check(self, program: Checked, mode: str, sample: int) -> bool:
        """Apply the pass to one program and raise the violation of a law that it breaks, on numbers if there is one.

        Returns whether the program is a new one; one that was tried before is not tried again. Raises ``TraceError``
        where it is none that can be captured, hence says nothing about the pass.

        Once a law was broken that is what comes of every program: Hypothesis tries it again, and a pass that breaks a
        law only at times is not to confuse it.
        """
        if self._found is not None:
            raise self._found.violation
        key = (mode, program.source or f"program {id(program)}")
        if key in self._kept:
            return False
        example = self._example(program, mode, self._seconds)
        self._tried += 1
        self._changed += example.changed
        self._refused += example.refusal is not None
        violations = broken_laws([law for law in self._laws if self._applies(law, example, sample)], example)
        blamed = next((found for found in violations if self._blame.is_due(self._law_of(found), example)), None)
        if blamed is not None:
            self._found = _Found(self._law_of(blamed), blamed, example)
            raise blamed
        self._unjudged += bool(violations)
        if program.source:
            self._kept[key] = None
        return True

    def _example(self, program: Checked, mode: str, seconds: float) -> Application:
        return Application(
            Subject.of(program, mode),
            self._pass,
            contract=self._contract,
            watchdog=self.watchdog,
            seconds=seconds,
        )

    def _law_of(self, violation: LawViolation) -> Law:
        return next(law for law in self._laws if law.name == violation.law)

    def shrink(self, modes: Sequence[str]) -> None:
        """Make what was found smaller as long as the pass breaks the same law on it, in evaluation mode if it can be.

        That is done to the text of the program; one without a text stays as it is.
        """
        assert self._found is not None, "there is nothing to make smaller"
        source, mode = self._found.example.subject.source, self._found.example.mode
        if not self._shows(source, mode):  # no text that makes a program, or a pass that is wrong at times
            return
        if "eval" in modes and self._shows(source, "eval"):
            mode = "eval"
        reduced(source, lambda text: self._shows(text, mode), SHRINKING)

    def _shows(self, source: str, mode: str) -> bool:
        """Whether the pass breaks the law that was broken on another program, too; if so, that is what was found."""
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
        try:
            law.check(example)
        except LawViolation as violation:
            if self._blame.is_due(law, example):
                self._found = _Found(law, violation, example)
                return True
        return False

    def _applies(self, law: Law, example: Application, sample: int) -> bool:
        sampled = law.kind == "sampled" and law.name not in self._always
        return (not sampled or sample == 0) and (law.when_unchanged or example.changed)

    def explained(self, folder: Path) -> LawViolation:
        """The violation, with the program on which it was found."""
        assert self._found is not None
        violation, example = self._found.violation, self._found.example
        tried = f"found after {self._tried} program(s), of which {example.name} changed {self._changed}"
        laws = [law for law in self._laws if law is not self._found.law and self._applies(law, example, 0)]
        others = [found for found in broken_laws(laws, example) if self._blame.is_due(self._law_of(found), example)]
        return violation.with_others(others).with_details(f"{tried}\n{describe(example, violation, folder)}")

    def lacks(self, least: float) -> bool:
        """Whether the pass changed fewer programs than ``least``, a number or a part."""
        return self._changed < self._wanted(least)

    def _wanted(self, least: float) -> float:
        return least * self._tried if least < 1 else least

    def steps(self) -> dict[str, Steps]:
        """How far the pass goes on each program that it was tried on, by its text."""
        found = {source: running(source) for _, source in self._kept}
        return {source: self._steps(program) for source, program in found.items() if program is not None}

    def _steps(self, program: Checked) -> Steps:
        try:
            with self.watchdog.limit(self._seconds):
                return steps_of(self._pass, program)
        except TookTooLong:
            return frozenset()

    def vary(self, steps: dict[str, Steps], constants: Sequence[Any], modes: Sequence[str], least: float) -> None:
        """Try variations of the programs on which the pass went furthest, until it changed enough or has seen many."""
        random, most = Random(0), self._tried // 3
        for program in itertools.islice(variations(steps, self._steps, constants, random), most):
            if not self.lacks(least):
                return
            with contextlib.suppress(TraceError):
                self.check(program, random.choice(modes), random.randrange(ONE_IN))

    def require_changes(self, least: float) -> None:
        """Raise :class:`~pytest_fx.errors.NothingJudged` if the pass changed fewer than ``least`` programs."""
        if self.lacks(least):
            raise NothingJudged(pass_name(self._pass), self._tried, self._changed, self._wanted(least))

    def report(self) -> CheckReport:
        """What the search found."""
        names = tuple(law.name for law in self._laws)
        return CheckReport(pass_name(self._pass), self._tried, self._changed, self._refused, self._unjudged, names)


@dataclass(frozen=True, slots=True)
class _Examples:
    """The examples of one search, drawn by Hypothesis.

    It is started again and again for a few of them, since after those it goes on to variants of each, which are five
    times as many and find less.
    """

    drawn: st.SearchStrategy[Any]
    """What one example is drawn from."""
    settings: hypothesis.settings
    """How many they are, among others."""
    seed: int | None
    """Makes them the same ones in each run."""
    name: str
    """Tells Hypothesis's database whose failures to remember."""

    def try_on(self, check: Callable[..., bool]) -> None:
        """Call ``check``, which says whether an example is a new one, with as many new ones as there are to be."""
        left, settings = self.settings.max_examples, self.settings
        while left > 0:
            first = left == self.settings.max_examples
            count = min(INDEPENDENT, left + (not first))
            new = self._start(check, hypothesis.settings(settings, max_examples=count), left)
            if len(new) < count or not any(new):  # there are no others
                return
            left -= sum(new)
            phases = [phase for phase in settings.phases if phase not in (Phase.explicit, Phase.reuse)]
            settings = hypothesis.settings(settings, phases=phases)

    def _start(self, check: Callable[..., bool], settings: hypothesis.settings, left: int) -> list[bool]:
        """Let Hypothesis draw some of ``left`` examples, and return for each whether it is a new one."""
        new: list[bool] = []

        @settings
        @given(self.drawn)
        def keep_the_laws(example: tuple[Checked, str, int]) -> None:
            new.append(False)
            try:
                new[-1] = check(*example)
            except TraceError:
                hypothesis.reject()

        test: Any = keep_the_laws
        if self.seed is not None:
            test = hypothesis.seed(f"{self.seed} {left}")(test)
        elif left < self.settings.max_examples:  # not the first ones once more
            again = self.name if settings.derandomize else getattr(core, "global_force_seed", None)
            if again is not None:  # as hypothesis.seed(), which would part from the database
                test._hypothesis_internal_use_seed = f"{again} {left}"
        # As Hypothesis's own plugin does it for parametrized tests: each pass has failures of its own in the database.
        test.hypothesis.inner_test._hypothesis_internal_add_digest = self.name.encode()
        test()
        return new


def _programs(about: Mentions) -> st.SearchStrategy[Any]:
    """Programs full of what the pass rewrites."""
    return st.one_of(
        [
            generation.programs(like=pattern, ops=about.operations, constants=about.constants)
            for pattern in about.patterns or (None,)
        ]
    )


def _settings(parent: hypothesis.settings, max_examples: int | None) -> hypothesis.settings:
    return hypothesis.settings(
        parent,
        max_examples=parent.max_examples if max_examples is None else max_examples,
        deadline=None,  # the first call of many operations is slow; passes have a limit of their own
        phases=[phase for phase in parent.phases if phase not in (Phase.shrink, Phase.explain)],  # see _Search.shrink
        report_multiple_bugs=False,  # one program with all there is to say about it
    )


def _checked_modes(modes: Sequence[str]) -> Sequence[str]:
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        what = f"there is no mode {unknown[0]!r}" if unknown else "no mode is given"
        raise FxError(what, remedy="use 'eval', 'train' or both")
    return modes
