"""``check_pass``: any pass against random programs; ``check_program``: against one (see :mod:`pytest_fx.laws`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hypothesis
import torch
from hypothesis import Phase, core, given
from hypothesis import strategies as st
from torch import nn

from fx.errors import FxError, TraceError
from fx.interop import AdaptedPass, adapt
from fx.passes import Contract, contract_of, exact, pass_name
from pytest_fx import generation
from pytest_fx.comparison.evaluation import Arguments
from pytest_fx.comparison.rewriting import may_change
from pytest_fx.laws import Checked, Example, Law, LawViolation, choose_laws
from pytest_fx.laws.deadline import Watchdog
from pytest_fx.laws.example import LARGEST_TIME, GivenProgram
from pytest_fx.loading import load_contract, load_pass

from .counterexample import FOLDER, describe
from .mentions import Mentions, mentioned
from .placement import PutBack

MODES = ("eval", "train")
ENOUGH_CHANGES = 0.05
"""The part of the programs that a pass must change, unless it is said otherwise."""
ONE_IN = 10
"""Slow laws are checked on one program in so many, and on the simplest."""
MOST_SHRINKS = 600
"""How many programs are tried after the first that breaks a law: the shrinking of a failure ends there."""
MOST_HANGS = 12
"""How many of these may take longer than the pass is allowed to."""
INDEPENDENT = 11
"""Examples of which Hypothesis makes no variants: the simplest one, and ten by which it judges whether all is well."""
SHRINKING_TIME = 1.0
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
        LawViolation: the pass breaks a law, or changes too few programs. The message has the smallest program found,
            its code before and after the pass, the answers, and the path of a test file.
        FxError: the pass, the contract, or a law is not known by its name.
    """
    __tracebackhide__ = True
    made = load_pass(pass_)
    promise = contract_of(made) if contract is None else load_contract(contract)
    laws = choose_laws(without, demand, may_change(made))
    about = mentioned(made)
    search = _Search(made, promise, laws, {law for law in demand if isinstance(law, str)}, seconds, about)
    drawn = st.tuples(
        _programs(about if like is None else replace(about, operations=(), patterns=(like,)))
        if programs is None
        else programs,
        st.sampled_from(_checked_modes(modes)),
        st.integers(0, ONE_IN - 1),
    )

    examples = _Examples(drawn, _settings(settings, max_examples), seed, f"{pass_name(made)} {promise} {modes}")
    random_state: Any = torch.random.fork_rng(devices=[])  # pyright: ignore[reportUnknownMemberType]
    violation = None
    with random_state, search.watchdog, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what random programs warn of is nobody's fault
        try:
            examples.try_on(search.check)
        except ShrunkEnough:
            violation = search.explained(search.smallest(), folder or Path.cwd() / FOLDER)
        except LawViolation as error:
            # not raised from here, to leave Hypothesis's frames and its print of the whole example behind
            violation = search.explained(error, folder or Path.cwd() / FOLDER)
    if violation is not None:
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
    random_state: Any = torch.random.fork_rng(devices=[])  # pyright: ignore[reportUnknownMemberType]
    with random_state, Watchdog() as watchdog:
        program, mode = GivenProgram(build, Arguments(args, kwargs)), _checked_modes((mode,))[0]
        example = Example(made, program, mode=mode, contract=promise, watchdog=watchdog, seconds=seconds)
        for law in chosen:
            if names is None or law.name in names:
                law.check(example)


class ShrunkEnough(BaseException):
    """Ends Hypothesis's shrinking, which else goes on drawing programs for minutes; no error that it would handle."""


class _Search:
    """The examples so far: what they add up to, and the first law that was broken."""

    def __init__(
        self, pass_: Any, contract: Contract, laws: list[Law], always: set[str], seconds: float, about: Mentions
    ) -> None:
        is_for_torch = isinstance(pass_, AdaptedPass)
        self._pass = pass_
        self._tools = [adapt(_pass_through)] if is_for_torch else []
        self._tools += [adapt(_remove_dead_code)] if is_for_torch and about.removes else []
        self._replaces = is_for_torch and about.replaces
        self._contract = contract
        self._laws = laws
        self._always = always
        self._seconds = seconds
        self.watchdog = Watchdog()
        self._tried = self._changed = self._refused = self._unjudged = self._shrinks = self._hangs = 0
        self._kept: set[tuple[str, str]] = set()  # what need not be tried again
        self._broken: Law | None = None
        self._violations: dict[tuple[str, str], tuple[LawViolation, Example]] = {}
        self._last: tuple[LawViolation, Example] | None = None

    def check(self, program: Checked, mode: str, sample: int) -> bool:
        """Apply the pass to one program and raise the violation of the first law that it breaks.

        Returns whether the program is a new one; one that was tried before is not tried again.

        Once a law was broken only that one is checked: Hypothesis is then making the program smaller. What broke it
        breaks it again without another look, so that a pass which does so only at times cannot confuse Hypothesis.
        """
        if self._broken is not None:
            self._shrinks += 1
            if self._shrinks > MOST_SHRINKS or self._hangs > MOST_HANGS:
                raise ShrunkEnough
        key = (mode, program.source or f"program {id(program)}")
        if key in self._violations:
            self._last = self._violations[key]
            raise self._last[0]
        if key in self._kept:
            return False
        seconds = min(self._seconds, SHRINKING_TIME) if self._hangs else self._seconds
        try:
            example = Example(
                self._pass, program, mode=mode, contract=self._contract, watchdog=self.watchdog, seconds=seconds
            )
        except TraceError:  # no program, hence nothing to say about the pass
            hypothesis.reject()
        self._hangs += example.too_long is not None
        if self._broken is None:
            self._tried += 1
            self._changed += example.changed
            self._refused += example.refusal is not None
        for law in self._laws if self._broken is None else [self._broken]:
            if not self._applies(law, example, sample):
                continue
            try:
                law.check(example)
            except LawViolation as violation:
                if not self._is_to_blame(law, example):
                    self._unjudged += 1
                    break
                self._broken = law
                self._last = self._violations[key] = (violation, example)
                raise
        if program.source:
            self._kept.add(key)
        return True

    def _is_to_blame(self, law: Law, example: Example) -> bool:
        """Whether it is the pass that breaks a law, and neither the capture nor what torch.fx offers to passes."""
        if not all(_is_kept_by(tool, law, example, exact) for tool in (_leave_alone, *self._tools)):
            return False
        return not self._replaces or not _is_kept_by(PutBack(self._pass), law, example, example.contract)

    def _applies(self, law: Law, example: Example, sample: int) -> bool:
        sampled = law.kind == "sampled" and law.name not in self._always
        return (not sampled or sample == 0) and (law.when_unchanged or example.changed)

    def smallest(self) -> LawViolation:
        """The violation on the shortest program, where Hypothesis is not left to find out which one that is."""
        self._last = min(self._violations.values(), key=lambda found: len(found[1].program.source))
        return self._last[0]

    def explained(self, violation: LawViolation, folder: Path) -> LawViolation:
        """The violation, with the program on which it was found."""
        found, example = self._last or (violation, None)
        if example is None:
            return violation
        tried = f"found after {self._tried} program(s), of which {example.name} changed {self._changed}"
        return found.with_details(f"{tried}\n{describe(example, found, folder)}")

    def require_changes(self, least: float) -> None:
        """Raise :class:`LawViolation` if the pass changed fewer programs than ``least``, a number or a part."""
        wanted = least * self._tried if least < 1 else least
        if self._changed < wanted:
            raise LawViolation(
                "changes",
                f"{pass_name(self._pass)} changed {self._changed} of {self._tried} programs",
                why=f"that tells little about it; at least {wanted:g} must be changed",
                remedy="say what it is about with like=…, or allow it with min_changed=0",
            )

    def report(self) -> CheckReport:
        """What the search found."""
        names = tuple(law.name for law in self._laws)
        return CheckReport(pass_name(self._pass), self._tried, self._changed, self._refused, self._unjudged, names)


def _remove_dead_code(program: Any) -> Any:
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def _pass_through(program: Any) -> Any:
    """What torch.fx does to the arguments of each node that it touches: a ``torch.Size`` becomes a tuple."""
    for node in program.graph.nodes:
        node.args = torch.fx.map_arg(node.args, lambda read: read)
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda read: read)
    program.recompile()
    return program


def _leave_alone(program: Any) -> Any:
    return program


def _is_kept_by(pass_: Any, law: Law, example: Example, contract: Contract) -> bool:
    """Whether another pass keeps a law on a program: none at all, say, or else it is not the pass that breaks it."""
    try:
        law.check(Example(pass_, example.program, mode=example.mode, contract=contract))
    except LawViolation:
        return False
    return True


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
            new[-1] = check(*example)

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


def _settings(given: hypothesis.settings | None, max_examples: int | None) -> hypothesis.settings:
    parent = hypothesis.settings() if given is None else given
    return hypothesis.settings(
        parent,
        max_examples=parent.max_examples if max_examples is None else max_examples,
        deadline=None,  # the first call of many operations is slow; passes have a limit of their own
        phases=[phase for phase in parent.phases if phase is not Phase.explain],  # comments on what we do not print
        report_multiple_bugs=False,  # one program with all there is to say about it
    )


def _checked_modes(modes: Sequence[str]) -> Sequence[str]:
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        what = f"there is no mode {unknown[0]!r}" if unknown else "no mode is given"
        raise FxError(what, remedy="use 'eval', 'train' or both")
    return modes
