"""``check_pass``: any pass against random programs; ``check_program``: against one (see :mod:`pytest_fx.laws`)."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from types import NoneType
from typing import Any, cast

import hypothesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase
from torch import nn

from fx import GraphModule
from fx.arguments import expect, expect_all, expect_callable, refusal
from fx.errors import FxError, TraceError
from fx.passes import Contract, contract_of, pass_name
from pytest_fx.errors import LawViolation
from pytest_fx.forms import FormedPass
from pytest_fx.generation.strategy import STEPS, Bias, bias_toward, program_of
from pytest_fx.generation.transcription import transcribed
from pytest_fx.harness.capture import capture
from pytest_fx.harness.evaluation import Arguments, threads
from pytest_fx.harness.pass_run import LARGEST_TIME, PassRun, in_fitting_form, may_change, parts_of
from pytest_fx.harness.process import process_kept
from pytest_fx.harness.subject import GivenProgram, ProgramSource, Subject
from pytest_fx.laws import Law, affordable, broken_at_levels, choose_laws
from pytest_fx.laws.ways_out import with_form, with_ways_out
from pytest_fx.loading import load_contract, load_pass
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
"""The default share of the programs that a pass must change."""
ENOUGH_CHANGES = 30
"""The default number of programs that the search lets the pass change, if possible."""
PART_OF_FEW = 0.3
"""The same as a share of the programs, for a small number of them."""
EXPLORED = 5
"""The number of trials of an exploration for each requested program."""
FEW_CHANGES = 5
"""The number of changed programs below which the places of small models are tried, too."""
GROWN = 8
"""The number of programs that grow toward a pass that changes few, for each requested program."""
GROWN_FOR_EDITS = 2
"""The same number for a pass that changes enough programs, but has unreached lines that edit programs."""
GROWN_BY = 24
"""The number of mentioned operations by which programs grow."""
INSTEAD = 24
"""The number of operations that are tried in place of each call of a seed."""
FEW_STEPS = 4
"""The most lines of programs that are near to a short one."""
VARIED = 0.25
"""The share of the programs that are variations of others, if part of the pass's own code is still unreached."""
INDEPENDENT = 11
"""Examples of which Hypothesis makes no variants: the simplest one, and ten for its health check."""


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
    orders: bool = False,
) -> CheckReport:
    """Apply a pass to random programs, and check on each that it keeps the laws of :mod:`pytest_fx.laws`.

    Args:
        pass_: a pass, a pass class, a pass written for ``torch.fx``, a name or ``package.module:attribute``, or a text
            such as ``"fuse-conv-bn,split{at=layer3}"``.
        contract: the promise about the numbers; by default the pass's own contract.
        modes: the modes of programs in which the pass claims to be right: ``"eval"``, ``"train"``.
        max_examples: the number of drawn programs; by default Hypothesis's setting. Five times as
            many vary the properties of those that the pass changes.
        without: names of laws to switch off.
        demand: names of laws to check on every program, ``"idempotent"`` and ``"shrinks the graph"`` among them, and
            laws of the caller's own.
        like: a captured program, or a tuple of one and the arguments of a call. It is tried first, then variations of
            it, half of the programs. In the others its operations are frequent, instead of those that the pass
            mentions. Numbers and texts that the pass mentions stay frequent among the arguments.
        programs: a strategy of programs (:func:`pytest_fx.generation.programs`) to use instead.
        models: models, each in a form that ``--fx-model`` accepts: a name, ``package.module:factory``, a factory, a
            pair of a module and its example inputs. The places where the pass acts in them are cut out and tried first.
        min_changed: the least number of programs that the pass must change, or a share if it is less than 1. With 0 the
            pass may change none.
        enough_changed: the number of programs that the search lets the pass change, three in ten at most. If
            ``max_examples`` are too few, it goes on with programs near to those on which the pass went furthest, with
            as many again at most.
        seed: makes the programs the same in each run: they depend on it and on the pass alone. Some of those of
            ``programs`` have constants that Hypothesis takes from modules of yours.
        settings: Hypothesis's settings; by default those of the profile.
        seconds: the seconds of a processor that the pass may take on one program; by the clock, four times as many.
        folder: the folder for the test file of a failure; by default ``.pytest_fx`` in the current folder.
        isolate: true to search in a child process, so that a pass that ends it, hangs in native code or takes too much
            memory breaks a law like any other.
        timeout: with ``isolate``, seconds for one program with all checks on it; by default 60.
        memory: with ``isolate``, MiB that the child may need; by default most of the machine's available memory.
        on_program: called before each program with its number and the number of programs planned so far. The latter
            is None while a program on which the pass breaks a law is made smaller.
        form: the form of program that the pass gets, as ``--fx-form`` spells it; by default the form that it shows.
        orders: true to run on each program some of the passes of a pipeline, in any order. If a law is broken, passes
            are left out while the rest breaks it: mostly a pair remains, of which each keeps the law alone.

    Raises:
        LawViolation: the pass breaks a law. The message has the smallest program found, its code before and after the
            pass, the outputs, and the path of a test file.
        NothingJudged: the pass changes fewer programs than ``min_changed``.
        FxError: the pass, the contract, or a law is unknown by its name, there can be no child process, or ``orders``
            is asked of a single pass.
    """
    __tracebackhide__ = True
    limits = isolation_limits(isolate, timeout, memory)
    loaded = load_pass(pass_, form)
    expect(orders, bool, "orders= is True or False", error=FxError)
    if orders and len(parts_of(loaded)) < 2:
        raise FxError(f"{pass_name(loaded)} has no orders: it is a single pass", remedy="name several: 'a,b,c'")
    promise = contract_of(loaded) if contract is None else load_contract(contract)
    laws, modes = choose_laws(without, demand, may_change(loaded)), tuple(_checked_modes(modes))
    laws = [law for law in laws if law.of != "forms" or isinstance(loaded, FormedPass)]
    demand = (demand,) if isinstance(demand, str) else demand
    _expect_search(max_examples, like, programs, min_changed, enough_changed, seed, settings, folder)
    _expect_seconds(seconds)
    subjects = load_models(models, modes)
    about = references_of(loaded)
    folder = Path.cwd() / FOLDER if folder is None else Path(folder)
    search = Search(loaded, promise, laws, {law for law in demand if isinstance(law, str)}, seconds, about, orders)
    example, *arguments = like if isinstance(like, tuple) else (like,)
    about = about if like is None else replace(about, operations=(), patterns=(example,))
    model = None if like is None else transcribed(example, arguments or None)
    parent = hypothesis.settings() if settings is None else settings
    if on_program is not None:
        search.on_program = on_program
    examples = _Examples(_settings(parent, max_examples), seed, f"{pass_name(loaded)} {promise} {modes}")

    wanted = min(enough_changed, int(PART_OF_FEW * examples.settings.max_examples)) if min_changed else 0

    def is_enough() -> bool:
        """Return whether the pass changed as many programs as required."""
        return not search.lacks(wanted) and not search.lacks(min_changed)

    def find() -> LawViolation | None:
        """Search for a broken law, and return the explained first violation."""
        # On programs this small several threads only wait for each other, on a busy machine for milliseconds.
        with threads(1), process_kept(), search.watchdog, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of random programs do not matter
            try:
                most, is_free = examples.settings.max_examples, programs is None and Phase.generate in parent.phases
                patterns = about.patterns
                if (
                    is_free
                    and model is None
                    and any("replace_pattern" in name or "Matcher" in name for name in about.names)
                ):
                    patterns = (*patterns, *patterns_looked_for(loaded, search.watchdog, seconds))
                search.planned = most
                if model is not None and is_free:
                    search.planned += 1 + most // 2
                    search.check(model, modes[0], 0, is_drawn=False)
                    search.vary(about.constants, modes, most // 2, lambda: False, changed=False)
                for pattern in patterns if is_free and model is None else ():
                    if (program := transcribed(pattern)) is not None:
                        with contextlib.suppress(TraceError):  # a pattern may be no program of its own
                            search.check(program, modes[0], 0, is_drawn=False)
                search.try_places(subjects, modes)
                draw = _Drawing(modes, _biases(about, patterns) if programs is None else ())
                remaining = examples.try_on(
                    draw.examples(programs),
                    search.check,
                    lambda number: number <= VARIED * most and is_free and not search.code.is_whole,
                )
                search.check_waiting()
                if is_free:
                    search.try_blocks(building_blocks(modes, most), modes)
                search.vary(about.constants, modes, remaining, lambda: search.code.is_whole, changed=False)
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
                    replace(examples, settings=again).try_on(
                        nearer.examples(), search.check, lambda number: is_enough()
                    )
                    rest = max(0, bound - search.counts.programs)
                    search.vary(about.constants, modes, rest, is_enough, changed=True)
                if is_free:
                    search.planned = search.counts.programs + search.counts.varied + EXPLORED * most
                    search.explore(modes, EXPLORED * most, about.names, about.operations[:INSTEAD])
                search.raise_deferred()
            except LawViolation:
                pass
            else:
                return None
            if orders:
                search.drop_passes()
            if Phase.shrink in parent.phases:
                search.shrink(modes)
            return search.explained(folder)

    if limits is None:
        violation = find()
    else:
        search.group_size = 1  # the program that ends the child has to be known
        violation = search_isolated(find, search, limits, folder, shrink=Phase.shrink in parent.phases)
    if violation is not None:
        # raised from here to drop the frames of Hypothesis and its print of the whole example
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
        laws: names of the laws to check; by default all but those on demand.
        mode: ``"eval"`` or ``"train"``.
        contract: the pass's promise; by default its own contract.
        seconds: as for :func:`check_pass`.
        isolate: true to apply it in a child process, with the limits ``timeout`` and ``memory``, like
            :func:`check_pass`.
        timeout: see there.
        memory: see there.
        form: the form of program that the pass gets, as in :func:`check_pass`.

    Raises:
        LawViolation: the pass breaks a law.
        FxError: the pass, the contract, or a law is unknown by its name, or there can be no child process.
    """
    __tracebackhide__ = True
    limits = isolation_limits(isolate, timeout, memory)
    loaded = load_pass(pass_, form)
    _expect_seconds(seconds)
    what = "check_program takes a function that makes the module"
    expect_callable(build, what, error=FxError)

    def module() -> nn.Module:
        built = build()
        expect(built, nn.Module, what, error=FxError)
        return built

    args, kwargs = _arguments_of(inputs)
    promise = contract_of(loaded) if contract is None else load_contract(contract)
    laws = (laws,) if isinstance(laws, str) else laws
    chosen = choose_laws((), () if laws is None else laws, may_change(loaded))
    names, mode = None if laws is None else set(laws), _checked_modes((mode,))[0]

    def judge() -> list[LawViolation]:
        with process_kept(), Watchdog() as watchdog:
            subject = Subject.of(GivenProgram(module, Arguments(args, kwargs)), mode)
            pass_run = in_fitting_form(PassRun(subject, loaded, contract=promise, watchdog=watchdog, seconds=seconds))
            requested = [law for law in chosen if names is None or law.name in names]
            run, violations = broken_at_levels(partial(affordable, requested), pass_run)
            return [with_form(violation, run) for violation in violations[:1]] + violations[1:]

    violations = judge() if limits is None else judge_isolated(judge, pass_name(loaded), limits)
    if violations:
        raise with_ways_out(violations[0], violations[1:], loaded, mode)


@dataclass(frozen=True, slots=True)
class _Examples:
    """The examples of one search, drawn by Hypothesis.

    Hypothesis is started again for every few of them. After the first ten valid examples it makes variants of each
    example by copying parts of its choices, which suits a condition on few numbers, not a program of a dozen lines. Of
    100 different programs of :func:`~pytest_fx.generation.strategy.programs` from one start, 57 to 59 share four fifths
    of their operations with an earlier one, and 100 cost 200 draws. From ten starts none do, and 121 draws are enough.
    Together they call 225 to 232 different functions and methods from one start, 435 to 461 from ten, in the same time
    (three seeds, Hypothesis 6.170).
    """

    settings: hypothesis.settings
    """Hypothesis's settings, with the number of examples."""
    seed: int | None
    """Makes the examples the same in each run."""
    name: str
    """The name under which Hypothesis's database keeps failures."""

    def try_on(
        self,
        drawn: st.SearchStrategy[Any],
        check: Callable[..., bool],
        is_enough: Callable[[int], bool] = lambda number: False,
    ) -> int:
        """Call ``check``, which returns whether an example is new, with the required number of new ones.

        Stop earlier if ``is_enough`` is true of the remaining number. Return that number.
        """
        remaining, settings = self.settings.max_examples, self.settings
        if self.seed is not None:  # findings of an earlier run would come first
            settings = hypothesis.settings(settings, database=None)
        elif settings.database is not None:
            settings = hypothesis.settings(settings, database=_OfOnePass(settings.database, self.name))
        seed = self.seed if self.seed is not None else f"{self.name} {self._numbers()}"
        while remaining > 0 and not is_enough(remaining):
            first = remaining == self.settings.max_examples
            count = min(INDEPENDENT, remaining + (not first))
            new = self._start(drawn, check, hypothesis.settings(settings, max_examples=count), f"{seed} {remaining}")
            if len(new) < count or not any(new):  # there are no others
                return 0
            remaining -= sum(new)
            phases = [phase for phase in settings.phases if phase not in (Phase.explicit, Phase.reuse)]
            settings = hypothesis.settings(settings, phases=phases)
        return max(remaining, 0)

    def _start(
        self, drawn: st.SearchStrategy[Any], check: Callable[..., bool], settings: hypothesis.settings, seed: str
    ) -> list[bool]:
        """Let Hypothesis draw some examples, and return for each whether it is new."""
        new: list[bool] = []

        @settings  # outside of the seed, since Hypothesis uses no database with a seed
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
        """Draw numbers, the same in each run if Hypothesis has a seed, such as that of ``--hypothesis-seed``.

        The seed of each start is made of them: otherwise Hypothesis would then draw the same examples in each start.
        """
        numbers: list[int] = []

        @hypothesis.settings(self.settings, max_examples=INDEPENDENT, database=None)
        @given(_SEEDS)
        def note(number: int) -> None:
            numbers.append(number)

        note()
        return numbers


class _OfOnePass(ExampleDatabase):
    """The failures of one pass in a database of Hypothesis, which itself distinguishes only the names of tests."""

    def __init__(self, database: ExampleDatabase, name: str) -> None:
        super().__init__()
        self._database, self._name = database, name.encode()

    def save(self, key: bytes, value: bytes) -> None:
        """Save an example."""
        self._database.save(key + self._name, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the saved examples."""
        return self._database.fetch(key + self._name)

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete an example."""
        self._database.delete(key + self._name, value)


_Example = tuple[ProgramSource, str, int]
"""A program, the mode, and a number: slow laws are checked if it is 0."""


def _integers(bits: int) -> st.SearchStrategy[int]:
    """Return a strategy of integers with so many bits, 0 first; integers as such would include the user's constants."""
    drawn = st.lists(st.booleans(), min_size=bits, max_size=bits)
    return drawn.map(lambda drawn: sum(bit << place for place, bit in enumerate(drawn)))


_SEEDS = _integers(64)
"""The seeds of programs."""
_FEW = _integers(5)
"""Numbers for the mode and the laws of a program: few, so that Hypothesis knows when all are used."""


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The rules for drawing examples: each depends on an integer, or on that and a strategy of programs."""

    modes: Sequence[str]
    """The modes of programs."""
    biases: tuple[Bias, ...]
    """The biases of programs; each program has one of them."""
    steps: int = STEPS
    """The most lines of a program."""

    def examples(self, programs: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[_Example]:
        """Return a strategy of examples, with our own programs or with those of ``programs``."""
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
    """Return biases toward the operations that the pass rewrites, and toward one of the patterns each."""
    return tuple(bias_toward(about.operations, pattern, about.constants) for pattern in patterns or (None,))


def _near(patterns: Sequence[GraphModule], about: PassReferences, modes: Sequence[str]) -> _Drawing | None:
    """Return a drawing of short programs near those that a pass changes, in the same modes; None if there are none."""
    biases = tuple(bias_toward((), pattern, about.constants) for pattern in patterns)
    return _Drawing(modes, biases, FEW_STEPS) if modes and biases else None


def _settings(parent: hypothesis.settings, max_examples: int | None) -> hypothesis.settings:
    return hypothesis.settings(
        parent,
        max_examples=parent.max_examples if max_examples is None else max_examples,
        deadline=None,  # the first call of many operations is slow; passes have their own limit
        phases=[phase for phase in parent.phases if phase not in (Phase.shrink, Phase.explain)],  # see Search.shrink
        report_multiple_bugs=False,  # one program with everything known about it
        # On a loaded machine programs are slow to draw.
        suppress_health_check={*parent.suppress_health_check, HealthCheck.too_slow},
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
    """Refuse invalid arguments of a search, before it takes its time."""
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


def _arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call that the caller's function makes."""
    what = "check_program takes a function that makes the arguments of a call"
    expect_callable(inputs, what, error=FxError)
    arguments: Any = inputs()
    kinds = [type(part) for part in cast("tuple[Any, ...]", arguments)] if isinstance(arguments, tuple) else []
    if kinds not in ([tuple, dict], [list, dict]):
        raise refusal(f"{what}, positional and keyword ones: ((x,), {{}})", arguments, error=FxError)
    return arguments


def _checked_modes(modes: Sequence[str]) -> Sequence[str]:
    what = "modes are 'eval' and 'train'"
    names = (modes,) if isinstance(modes, str) else modes
    modes = expect_all(names, lambda mode: isinstance(mode, str), what, error=FxError)
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        what = f"there is no mode {unknown[0]!r}" if unknown else "no mode is given"
        raise FxError(what, remedy="use 'eval', 'train' or both")
    return modes
