"""``check_pass``: any pass against random programs; ``check_program``: against one (see :mod:`pytest_fx.laws`)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import NoneType
from typing import Any, cast

import hypothesis
from hypothesis import Phase, given
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase
from torch import nn

from fx import GraphModule
from fx.arguments import expect, expect_all, expect_callable, refusal
from fx.errors import FxError, TraceError
from fx.passes import Contract, contract_of, pass_name
from pytest_fx.errors import LawViolation
from pytest_fx.generation.strategy import STEPS, Bias, bias_toward, program_of
from pytest_fx.generation.transcription import transcribed
from pytest_fx.harness.capture import capture
from pytest_fx.harness.evaluation import Arguments, threads
from pytest_fx.harness.pass_run import LARGEST_TIME, PassRun, may_change
from pytest_fx.harness.process import process_kept
from pytest_fx.harness.subject import GivenProgram, ProgramSource, Subject
from pytest_fx.laws import Law, affordable, broken_laws, choose_laws
from pytest_fx.laws.ways_out import with_ways_out
from pytest_fx.loading import for_random_programs, load_contract, load_pass
from pytest_fx.processes.deadline import Watchdog
from pytest_fx.search.check_report import CheckReport
from pytest_fx.search.counterexample import FOLDER
from pytest_fx.search.isolated_search import isolation_limits, judge_isolated, search_isolated
from pytest_fx.search.nearness import running
from pytest_fx.search.patterns import patterns_looked_for
from pytest_fx.search.references import PassReferences, references_of
from pytest_fx.search.search import ONE_IN, Search
from pytest_fx.search.seed_models import building_blocks, load_models, small_models

MODES = ("eval", "train")
FEWEST_CHANGES = 0.05
"""The part of the programs that a pass must change, unless it is said otherwise."""
ENOUGH_CHANGES = 30
"""Programs that the search has the pass change, if it can, unless it is said otherwise."""
PART_OF_FEW = 0.3
"""The same as a part of the programs, where few are asked for."""
EXPLORED = 5
"""How many trials an exploration has for each of the programs asked for."""
FEW_CHANGES = 5
"""Changed programs below which the places of small models are tried, too."""
GROWN = 8
"""How many programs grow toward a pass that changes few, for each of those asked for."""
GROWN_FOR_EDITS = 2
"""The same, where it changes enough of them, but not by each line of it that edits programs."""
GROWN_BY = 24
"""How many of the operations that a pass mentions they grow by."""
INSTEAD = 24
"""Operations that are tried in the place of each call of a seed."""
FEW_STEPS = 4
"""Lines of programs that are near to a short one."""
VARIED = 0.25
"""The part of the programs that are variations of others, where part of the pass's own code was not reached by then."""
INDEPENDENT = 11
"""Examples of which Hypothesis makes no variants: the simplest one, and ten by which it judges whether all is well."""


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
    models: Any = (),
    min_changed: float = FEWEST_CHANGES,
    enough_changed: int = ENOUGH_CHANGES,
    seed: int | None = None,
    settings: hypothesis.settings | None = None,
    seconds: float = LARGEST_TIME,
    folder: Path | None = None,
    isolate: bool = False,
    timeout: float | None = None,
    memory: int | None = None,
    on_program: Callable[[int, int | None], object] | None = None,
    form: str = "auto",
) -> CheckReport:
    """Apply a pass to random programs, and check on each that it keeps the laws of :mod:`pytest_fx.laws`.

    Args:
        pass_: a pass, a pass class, a pass written for ``torch.fx``, a name or ``package.module:attribute``, or a text
            such as ``"fuse-conv-bn,split{at=layer3}"``.
        contract: what it promises about the numbers; by default what it says itself.
        modes: the modes of programs in which it claims to be right: ``"eval"``, ``"train"``.
        max_examples: how many programs are drawn; by default what Hypothesis's settings say. Five times as many vary
            the properties of those that the pass changes.
        without: names of laws to switch off.
        demand: names of laws to check on every program, ``"idempotent"`` and ``"shrinks the graph"`` among them, and
            laws of the caller's own.
        like: a captured program, or a tuple of one and the arguments of a call. It is tried first, then variations of
            it, half of the programs; the others have its operations frequent, in place of those that the pass mentions.
            Numbers and texts that the pass mentions stay frequent among the arguments.
        programs: a strategy of programs (:func:`pytest_fx.generation.programs`) to use instead.
        models: models, each as ``--fx-model`` takes it: a name, ``package.module:factory``, a factory, a pair of a
            module and its example inputs. The places where the pass acts in them are cut out, and tried first.
        min_changed: how many programs it must change: a number of them, or a part if it is less than 1. With 0 a pass
            may find nothing to do.
        enough_changed: how many programs the search has it change, three in ten at most. Where ``max_examples`` do not
            do, it goes on with programs near to those on which the pass went furthest, with as many again at most.
        seed: makes the programs the same ones in each run: they depend on it and on the pass alone. Of those of
            ``programs``, some have constants that Hypothesis takes from modules of yours.
        settings: Hypothesis's settings; by default those of the profile.
        seconds: how long the pass may take on one program.
        folder: where the test file of a failure goes; by default ``.pytest_fx`` in the current folder.
        isolate: search in a child process, so that a pass that ends it, hangs in native code or takes too much memory
            is a broken law like any other.
        timeout: with ``isolate``, seconds that one program may take with all that is checked on it; by default 60.
        memory: with ``isolate``, MiB that the child may need; by default most of what the machine has left.
        on_program: called before each program with its number and how many are to be tried so far; with None for that
            while the program, on which the pass breaks a law, is made smaller.
        form: in which form the pass is given programs, as ``--fx-form`` takes it; by default that which it shows.

    Raises:
        LawViolation: the pass breaks a law. The message has the smallest program found, its code before and after the
            pass, the outputs, and the path of a test file.
        NothingJudged: the pass changes fewer programs than ``min_changed``.
        FxError: the pass, the contract, or a law is not known by its name, or there can be no child process.
    """
    __tracebackhide__ = True
    limits = isolation_limits(isolate, timeout, memory)
    made = load_pass(pass_, form) if form != "auto" else for_random_programs(load_pass(pass_))
    promise = contract_of(made) if contract is None else load_contract(contract)
    laws, modes = choose_laws(without, demand, may_change(made)), tuple(_checked_modes(modes))
    demand = (demand,) if isinstance(demand, str) else demand
    _expect_search(max_examples, like, programs, min_changed, enough_changed, seed, settings, folder)
    _expect_seconds(seconds)
    subjects = load_models(models, modes)
    about = references_of(made)
    folder = Path.cwd() / FOLDER if folder is None else Path(folder)
    search = Search(made, promise, laws, {law for law in demand if isinstance(law, str)}, seconds, about)
    example, *arguments = like if isinstance(like, tuple) else (like,)
    about = about if like is None else replace(about, operations=(), patterns=(example,))
    model = None if like is None else transcribed(example, arguments or None)
    parent = hypothesis.settings() if settings is None else settings
    if on_program is not None:
        search.on_program = on_program
    examples = _Examples(_settings(parent, max_examples), seed, f"{pass_name(made)} {promise} {modes}")

    wanted = min(enough_changed, int(PART_OF_FEW * examples.settings.max_examples)) if min_changed else 0

    def is_enough() -> bool:
        """Return whether the pass changed as many programs as are looked for."""
        return not search.lacks(wanted) and not search.lacks(min_changed)

    def find() -> LawViolation | None:
        """Search for a broken law, and return what there is to say about the first."""
        # Several threads only wait for each other on programs as small as these, on a busy machine for milliseconds.
        with threads(1), process_kept(), search.watchdog, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what random programs warn of is nobody's fault
            try:
                most, is_free = examples.settings.max_examples, programs is None and Phase.generate in parent.phases
                patterns = about.patterns
                if (
                    is_free
                    and model is None
                    and any("replace_pattern" in name or "Matcher" in name for name in about.names)
                ):
                    patterns = (*patterns, *patterns_looked_for(made, search.watchdog, seconds))
                search.planned = most
                if model is not None and is_free:
                    search.planned += 1 + most // 2
                    search.check(model, modes[0], 0)
                    search.vary(about.constants, modes, most // 2, lambda: False, changed=False)
                for pattern in patterns if is_free and model is None else ():
                    if (program := transcribed(pattern)) is not None:
                        search.check(program, modes[0], 0)
                search.try_places(subjects, modes)
                draw = _Drawing(modes, _biases(about, patterns) if programs is None else ())
                left = examples.try_on(
                    draw.examples(programs),
                    search.check,
                    lambda left: left <= VARIED * most and is_free and not search.code.is_whole,
                )
                if is_free:
                    search.try_blocks(building_blocks(modes, most), modes)
                search.vary(about.constants, modes, left, lambda: search.code.is_whole, changed=False)
                few = min(FEW_CHANGES, wanted)
                if is_free and search.lacks(few):
                    search.try_places(small_models(modes), modes, lambda: not search.lacks(few))
                if min_changed and is_free and (search.lacks(few) or search.code.has_unreached_edits):
                    grown = GROWN if search.lacks(few) else GROWN_FOR_EDITS
                    is_grown = lambda: not search.lacks(few) and not search.code.has_unreached_edits  # noqa: E731
                    search.grow(about.operations[:GROWN_BY], modes[0], grown * most, is_grown)
                if min_changed and is_free and not is_enough():
                    search.planned += most
                    bound = search.counts.programs + most
                    sources = search.nearest(-(-most // 4))
                    near = tuple(
                        capture(program.module, program.inputs) for program in map(running, sources) if program
                    )
                    half = max(1, (bound - search.counts.programs) // 2)
                    again = hypothesis.settings(examples.settings, max_examples=half, database=None)
                    nearer = _near(near, about, search.changed_modes) or _Drawing(modes, _biases(about, near))
                    replace(examples, settings=again).try_on(nearer.examples(), search.check, lambda left: is_enough())
                    rest = max(0, bound - search.counts.programs)
                    search.vary(about.constants, modes, rest, is_enough, changed=True)
                if is_free:
                    search.planned = search.counts.programs + search.counts.varied + EXPLORED * most
                    search.explore(modes, EXPLORED * most, about.names, about.operations[:INSTEAD])
                search.raise_held()
            except LawViolation:
                pass
            else:
                return None
            if Phase.shrink in parent.phases:
                search.shrink(modes)
            return search.explained(folder)

    if limits is None:
        violation = find()
    else:
        violation = search_isolated(find, search, limits, folder, shrink=Phase.shrink in parent.phases)
    if violation is not None:
        # raised from here to leave Hypothesis's frames and its print of the whole example behind
        raise violation
    search.require_changes(min_changed)
    return search.report(wanted)


def check_program(
    pass_: Any,
    build: Callable[[], nn.Module],
    inputs: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
    *,
    laws: Iterable[str] | None = None,
    mode: str = "eval",
    contract: Contract | str | None = None,
    seconds: float = LARGEST_TIME,
    isolate: bool = False,
    timeout: float | None = None,
    memory: int | None = None,
    form: str = "auto",
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
        isolate: whether to do so in a child process, with the limits ``timeout`` and ``memory``, as
            :func:`check_pass` does.
        timeout: see there.
        memory: see there.
        form: in which form the pass is given the program, as :func:`check_pass` takes it.

    Raises:
        LawViolation: the pass breaks a law.
        FxError: the pass, the contract, or a law is not known by its name, or there can be no child process.
    """
    __tracebackhide__ = True
    limits = isolation_limits(isolate, timeout, memory)
    made = load_pass(pass_, form)
    _expect_seconds(seconds)
    what = "check_program takes a function that makes the module"
    expect_callable(build, what, error=FxError)

    def module() -> nn.Module:
        made = build()
        expect(made, nn.Module, what, error=FxError)
        return made

    args, kwargs = _made_by(inputs)
    promise = contract_of(made) if contract is None else load_contract(contract)
    laws = (laws,) if isinstance(laws, str) else laws
    chosen = choose_laws((), () if laws is None else laws, may_change(made))
    names, mode = None if laws is None else set(laws), _checked_modes((mode,))[0]

    def judge() -> list[LawViolation]:
        with process_kept(), Watchdog() as watchdog:
            subject = Subject.of(GivenProgram(module, Arguments(args, kwargs)), mode)
            pass_run = PassRun(subject, made, contract=promise, watchdog=watchdog, seconds=seconds)
            asked = [law for law in chosen if names is None or law.name in names]
            return broken_laws(affordable(asked, pass_run), pass_run)

    violations = judge() if limits is None else judge_isolated(judge, pass_name(made), limits)
    if violations:
        raise with_ways_out(violations[0], violations[1:], made, mode)


@dataclass(frozen=True, slots=True)
class _Examples:
    """The examples of one search, drawn by Hypothesis.

    It is started again for every few of them. After the first ten valid examples Hypothesis makes variants of each
    example by copying parts of its choices, which suits a condition on few numbers, not a program of a dozen lines. Of
    100 different programs of :func:`~pytest_fx.generation.strategy.programs`, 57 to 59 of those of one start share four
    fifths of their operations with an earlier one, and 100 cost 200 draws; of ten starts none do, and 121 draws are
    enough. All together they call 225 to 232 different functions and methods in one start, 435 to 461 in ten, in the
    same time (three seeds, Hypothesis 6.170).
    """

    settings: hypothesis.settings
    """How many they are, among others."""
    seed: int | None
    """Makes them the same ones in each run."""
    name: str
    """Tells Hypothesis's database whose failures to remember."""

    def try_on(
        self,
        drawn: st.SearchStrategy[Any],
        check: Callable[..., bool],
        is_enough: Callable[[int], bool] = lambda left: False,
    ) -> int:
        """Call ``check``, which says whether an example is a new one, with as many new ones as there are to be.

        Ends before where it is enough, which is asked with the number that is left. Returns that number.
        """
        left, settings = self.settings.max_examples, self.settings
        if self.seed is not None:  # what an earlier run found would come first
            settings = hypothesis.settings(settings, database=None)
        elif settings.database is not None:
            settings = hypothesis.settings(settings, database=_OfOnePass(settings.database, self.name))
        seed = self.seed if self.seed is not None else f"{self.name} {self._numbers()}"
        while left > 0 and not is_enough(left):
            first = left == self.settings.max_examples
            count = min(INDEPENDENT, left + (not first))
            new = self._start(drawn, check, hypothesis.settings(settings, max_examples=count), f"{seed} {left}")
            if len(new) < count or not any(new):  # there are no others
                return 0
            left -= sum(new)
            phases = [phase for phase in settings.phases if phase not in (Phase.explicit, Phase.reuse)]
            settings = hypothesis.settings(settings, phases=phases)
        return max(left, 0)

    def _start(
        self, drawn: st.SearchStrategy[Any], check: Callable[..., bool], settings: hypothesis.settings, seed: str
    ) -> list[bool]:
        """Let Hypothesis draw some examples, and return for each whether it is a new one."""
        new: list[bool] = []

        @settings  # outside of the seed, with which Hypothesis uses no database
        @hypothesis.seed(seed)
        @given(drawn)
        def keep_the_laws(example: _Example) -> None:
            new.append(False)
            try:
                new[-1] = check(*example)
            except TraceError:
                hypothesis.reject()

        keep_the_laws()
        return new

    def _numbers(self) -> list[int]:
        """Draw numbers, the same ones in each run where Hypothesis is told so, as by ``--hypothesis-seed``.

        Each start has a seed that is made of them: of itself, Hypothesis would draw the same examples in each then.
        """
        numbers: list[int] = []

        @hypothesis.settings(self.settings, max_examples=INDEPENDENT, database=None)
        @given(_SEEDS)
        def note(number: int) -> None:
            numbers.append(number)

        note()
        return numbers


class _OfOnePass(ExampleDatabase):
    """The failures of one pass in a database of Hypothesis's, which else tells apart what tests are called alone."""

    def __init__(self, database: ExampleDatabase, name: str) -> None:
        super().__init__()
        self._database, self._name = database, name.encode()

    def save(self, key: bytes, value: bytes) -> None:
        """Remember an example."""
        self._database.save(key + self._name, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return what is remembered."""
        return self._database.fetch(key + self._name)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget an example."""
        self._database.delete(key + self._name, value)


_Example = tuple[ProgramSource, str, int]
"""A program, the mode, and a number: slow laws are checked where it is 0."""


def _integers(bits: int) -> st.SearchStrategy[int]:
    """Integers of so many bits, 0 the first: of integers as such, some would be constants of the user's modules."""
    drawn = st.lists(st.booleans(), min_size=bits, max_size=bits)
    return drawn.map(lambda drawn: sum(bit << place for place, bit in enumerate(drawn)))


_SEEDS = _integers(64)
"""What programs are drawn from."""
_FEW = _integers(5)
"""What decides on the mode and the laws of a program: few, so that Hypothesis sees where there are no others."""


@dataclass(frozen=True, slots=True)
class _Drawing:
    """How examples are drawn: each depends on an integer alone, or on that and on what draws programs."""

    modes: Sequence[str]
    """The modes of programs."""
    biases: tuple[Bias, ...]
    """What programs lean toward, one or another of these."""
    steps: int = STEPS
    """Lines that they have at most."""

    def examples(self, programs: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[_Example]:
        """Examples of programs of our own, or of what ``programs`` draws."""
        if programs is None:
            return _SEEDS.map(lambda seed: (self._program(seed), *self._how(seed)))
        return st.tuples(programs, _FEW).map(lambda drawn: (drawn[0], *self._how(drawn[1])))

    def _program(self, seed: int) -> ProgramSource:
        random = Random(seed)
        return program_of(random if seed else None, random.choice(self.biases), self.steps)

    def _how(self, seed: int) -> tuple[str, int]:
        number, sample = divmod(seed, ONE_IN)
        return self.modes[number % len(self.modes)], sample


def _biases(about: PassReferences, patterns: Sequence[GraphModule]) -> tuple[Bias, ...]:
    """Programs full of what the pass rewrites, and of one or another of some patterns."""
    return tuple(bias_toward(about.operations, pattern, about.constants) for pattern in patterns or (None,))


def _near(patterns: Sequence[GraphModule], about: PassReferences, modes: Sequence[str]) -> _Drawing | None:
    """Short programs with little else than what a pass changes, in the modes in which it does; None if it does not."""
    biases = tuple(bias_toward((), pattern, about.constants) for pattern in patterns)
    return _Drawing(modes, biases, FEW_STEPS) if modes and biases else None


def _settings(parent: hypothesis.settings, max_examples: int | None) -> hypothesis.settings:
    return hypothesis.settings(
        parent,
        max_examples=parent.max_examples if max_examples is None else max_examples,
        deadline=None,  # the first call of many operations is slow; passes have a limit of their own
        phases=[phase for phase in parent.phases if phase not in (Phase.shrink, Phase.explain)],  # see Search.shrink
        report_multiple_bugs=False,  # one program with all there is to say about it
    )


def _expect_search(
    max_examples: Any,
    like: Any,
    programs: Any,
    min_changed: Any,
    enough_changed: Any,
    seed: Any,
    settings: Any,
    folder: Any,
) -> None:
    """Refuse what makes no sense of a search, before it takes its time."""
    if max_examples is not None and (type(max_examples) is not int or not 0 < max_examples < 2**31):
        raise refusal("max_examples= is a number of programs from 1 on", max_examples, error=FxError)
    if not isinstance(min_changed, (int, float)) or not 0 <= min_changed < float("inf"):
        raise refusal("min_changed= is a number of programs, or a part of them", min_changed, error=FxError)
    if type(enough_changed) is not int or enough_changed < 0:
        raise refusal("enough_changed= is a number of programs", enough_changed, error=FxError)
    for value, kinds, what in (
        (like[0] if isinstance(like, tuple) and like else like, (GraphModule, NoneType), "like= is a captured program"),
        (programs, (st.SearchStrategy, NoneType), "programs= is a strategy of Hypothesis"),
        (seed, (int, NoneType), "seed= is an integer"),
        (settings, (hypothesis.settings, NoneType), "settings= are Hypothesis's: hypothesis.settings(…)"),
        (folder, (str, os.PathLike, NoneType), "folder= is the path of a folder"),
    ):
        expect(value, kinds, f"check_pass: {what}", error=FxError)


def _expect_seconds(seconds: Any) -> None:
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 2**31:
        raise refusal("seconds= is a number above 0", seconds, error=FxError)


def _made_by(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call that the caller's function makes."""
    what = "check_program takes a function that makes the arguments of a call"
    expect_callable(inputs, what, error=FxError)
    made: Any = inputs()
    kinds = [type(part) for part in cast("tuple[Any, ...]", made)] if isinstance(made, tuple) else []
    if kinds not in ([tuple, dict], [list, dict]):
        raise refusal(f"{what}, positional and keyword ones: ((x,), {{}})", made, error=FxError)
    return made


def _checked_modes(modes: Sequence[str]) -> Sequence[str]:
    what = "modes are 'eval' and 'train'"
    given = (modes,) if isinstance(modes, str) else modes
    modes = expect_all(given, lambda mode: isinstance(mode, str), what, error=FxError)
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        what = f"there is no mode {unknown[0]!r}" if unknown else "no mode is given"
        raise FxError(what, remedy="use 'eval', 'train' or both")
    return modes
