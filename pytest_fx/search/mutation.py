"""The strength of a search: the number of a pass's mutants that it kills (:mod:`pytest_fx.search.mutants`).

A mutant is first applied to the programs on which the search has judged the pass. If it leaves another program than the
pass did, that program is checked against the laws. If it keeps them although it does more than to leave programs alone,
or if it leaves nearly all alone, the search is repeated for the mutant as for any pass.
"""

from __future__ import annotations

import copy
import pickle
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

import hypothesis
import torch
from hypothesis import Phase
from torch import nn

from fx import GraphModule
from fx.arguments import refusal
from fx.errors import FxError
from fx.modules.attributes import find_attribute
from fx.passes import Contract, RemoveDeadCode, contract_of, pass_name
from fx.pipelines.rewriting import take_edits
from pytest_fx.errors import LawViolation, NothingJudged
from pytest_fx.harness.evaluation import threads
from pytest_fx.harness.pass_run import PassRun, may_change
from pytest_fx.harness.process import process_kept
from pytest_fx.harness.snapshot import same_tensor, settings_of, tensors_of
from pytest_fx.laws import Law, broken_at_levels, choose_laws, why_not_asked
from pytest_fx.loading import load_contract, load_pass
from pytest_fx.processes.child import Channel, Child, ChildEnded, Limits, unavailable
from pytest_fx.processes.deadline import Watchdog
from pytest_fx.search.blame import Blame
from pytest_fx.search.check_report import CheckReport
from pytest_fx.search.counterexample import spelled_pass
from pytest_fx.search.coverage import PassCode
from pytest_fx.search.mutant_tests import unnoticed_by
from pytest_fx.search.mutants import Mutant, codes_of, mutants_of
from pytest_fx.search.pass_check import FEWEST_CHANGES, MODES, check_pass
from pytest_fx.search.search import ONE_IN

MUTANTS = 40
"""The default number of mutants that are tried."""
MOST_PROGRAMS = 200
"""The most programs of the search for the pass that each mutant is applied to, changed ones first."""
MOST_DIFFERENT = 15
"""Limit of the checked programs of each of two kinds: the mutant did something else on them, or did less."""
SECONDS = 2.0
"""Seconds that a mutant may take on one program, since it may loop."""
LONGEST = 120.0
"""Seconds that the search for one mutant may take."""
_RAISES = "raises"
_CHANGES = "changes too few programs"
_IMPOSSIBLE = "there is no such pass"
_UNREACHED = "no program reached it"

Fate = Literal["killed", "survived", "acts less", "not told apart"]
FATES: dict[Fate, str] = {
    "killed": "the search fails for it",
    "survived": "it leaves other programs than the pass, and the search holds it to be right",
    "acts less": "it only leaves alone what the pass changes, or leaves dead code behind, which no law forbids",
    "not told apart": "it leaves the same programs as the pass, wherever both were tried",
}
"""The possible fates of a mutant, in words."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fate of one mutant."""

    mutant: Mutant
    """The mutant."""
    fate: Fate
    """A key of :data:`FATES`."""
    by: str = ""
    """The killer: the broken law, too few changed programs, or the end of the process. With the fate
    ``"not told apart"`` it may be the note that no program reached its line."""

    passes_tests: bool | None = None
    """Whether the user's tests pass with it; None if they were not run."""

    def __str__(self) -> str:
        return f"{self.fate}: {self.mutant}" + (f" ({self.by})" if self.by else "")


@dataclass(frozen=True, slots=True)
class MutationReport:
    """The fates of the mutants of a pass."""

    name: str
    """The name of the pass."""
    check: CheckReport
    """The report of the search on the pass itself."""
    total: int
    """The number of all mutants."""
    outcomes: tuple[Outcome, ...]
    """The mutants that were tried."""

    def of(self, fate: Fate) -> list[Outcome]:
        """Return the outcomes with one fate."""
        return [outcome for outcome in self.outcomes if outcome.fate == fate]

    @property
    def killed_part(self) -> float:
        """The killed share of the mutants that act differently from the pass, or where it does not; 1 if none does."""
        killed, survived = len(self.of("killed")), len(self.of("survived"))
        return killed / (killed + survived) if killed + survived else 1.0

    def __str__(self) -> str:
        counts = Counter(outcome.fate for outcome in self.outcomes)
        by_fate = ", ".join(f"{counts[fate]} {fate}" for fate in FATES)
        some = "" if self.total == len(self.outcomes) else f" of {self.total}"
        lines = [f"{self.name}: {len(self.outcomes)}{some} mutants: {by_fate}"]
        if not self.total:
            lines = [f"{self.name}: there are no mutants, as its source is not at hand or it has no code of its own"]
        lines += [str(each) for fate in FATES if fate != "killed" for each in self.of(fate)]
        return "\n  ".join([*lines, *self._lines_on_tests()])

    @property
    def unnoticed(self) -> list[Outcome]:
        """The mutants that neither the search nor the user's tests notice, if the tests were run."""
        return [outcome for outcome in self.outcomes if outcome.passes_tests and outcome.fate != "killed"]

    def _lines_on_tests(self) -> Iterator[str]:
        """Yield lines on the mutants with which the user's tests pass; none if they were not run."""
        passing = [outcome for outcome in self.outcomes if outcome.passes_tests]
        if all(outcome.passes_tests is None for outcome in self.outcomes):
            return
        yield f"the tests notice {len(self.outcomes) - len(passing)} of them" + (", not these:" if passing else "")
        for outcome in passing:
            by = "" if outcome.fate == "killed" else ", which the search does not notice either"
            yield f"  {outcome.mutant}{by}"


def mutate_pass(
    pass_: Any,
    *,
    mutants: int = MUTANTS,
    contract: Contract | str | None = None,
    modes: Sequence[str] = MODES,
    max_examples: int | None = None,
    without: Iterable[str] = (),
    seed: int = 0,
    tests: Sequence[str] = (),
    on_mutant: Callable[[int, int], object] = lambda number, count: None,
) -> MutationReport:
    """Search for random programs on which mutants of a pass break a law, and return how many the search kills.

    This measures the search for the pass, not the pass, which the search checks first. A mutant is tried in a child
    process if the system has them, and without a test file of its failure.

    Args:
        pass_: a pass in any form that :func:`~pytest_fx.search.pass_check.check_pass` accepts.
        mutants: the most mutants that are tried, drawn from all of them.
        contract: see ``check_pass``.
        modes: see there.
        max_examples: see there.
        without: see there.
        seed: makes the programs and the mutants the same in each run.
        tests: tests of the user, as arguments of pytest in the current folder, which run on each mutant, too. The pass
            must have a name then.
        on_mutant: called before each mutant with its number and the number of all.

    Raises:
        LawViolation: the pass itself breaks a law.
        NothingJudged: it changes too few programs.
        FxError: as for ``check_pass``, or ``mutants`` is not a number from 1 on, or ``tests`` fail without a mutant.

    >>> report = mutate_pass("canonicalize", mutants=2, max_examples=2)
    >>> len(report.outcomes)
    2
    """
    __tracebackhide__ = True
    if type(mutants) is not int or mutants < 1:
        raise refusal("mutants= is a number of mutants from 1 on", mutants, error=FxError)
    loaded = load_pass(pass_)
    promise = contract_of(loaded) if contract is None else load_contract(contract)
    search = _Search(loaded, promise, tuple(modes), max_examples, tuple(without), seed)
    every = mutants_of(loaded)
    places = sorted(Random(seed).sample(range(len(every)), min(mutants, len(every))))
    chosen = [every[place] for place in places]
    name = spelled_pass(loaded)[0] if tests else ""
    passing = unnoticed_by(tests, name, chosen, Path.cwd(), on_mutant) if tests and chosen else None
    check = search.judge_pass()
    outcomes: list[Outcome] = []
    for number, mutant in enumerate(chosen, 1):
        on_mutant(number, len(chosen))
        outcome = search.outcome(mutant)
        outcomes.append(outcome if passing is None else replace(outcome, passes_tests=mutant in passing))
    return MutationReport(pass_name(loaded), check, len(every), tuple(outcomes))


class _Search:
    """The search for a pass, repeated for each mutant."""

    def __init__(
        self,
        pass_: Any,
        contract: Contract,
        modes: tuple[str, ...],
        max_examples: int | None,
        without: tuple[str, ...],
        seed: int,
    ) -> None:
        self._pass = pass_
        self._contract = contract
        self._seed = seed
        parent = hypothesis.settings()
        self._options: dict[str, Any] = {
            "contract": contract,
            "modes": modes,
            "without": without,
            "settings": hypothesis.settings(
                parent,
                phases=(Phase.generate,),
                database=None,
                max_examples=parent.max_examples if max_examples is None else max_examples,
            ),
        }
        self._laws = choose_laws(without, (), may_change(pass_))
        self._blame = Blame(pass_)
        self._judged: list[PassRun] = []
        self._code = PassCode(codes_of(pass_), pass_)

    def judge_pass(self) -> CheckReport:
        """Search for the pass itself, and keep the programs on which it was judged."""
        judged: list[PassRun] = []
        with tempfile.TemporaryDirectory() as folder:
            report = check_pass(
                self._pass, seed=self._seed, demand=(_noting(judged.append),), folder=Path(folder), **self._options
            )
        changed_first = sorted(judged, key=lambda example: not example.changed)[:MOST_PROGRAMS]
        with self._guarded() as watchdog:  # applied again: these runs stay as the pass left them, and are not called
            self._judged = [self._applied(example, watchdog, self._code.recording) for example in changed_first]
        return report

    @contextmanager
    def _guarded(self) -> Generator[Watchdog]:
        with threads(1), process_kept(), Watchdog() as watchdog, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield watchdog

    def _applied(
        self,
        example: PassRun,
        watchdog: Watchdog | None = None,
        recording: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> PassRun:
        """Apply the pass in its present state again to the program of an example."""
        subject, pass_, promise = example.subject, example.pass_, self._contract
        return PassRun(subject, pass_, contract=promise, watchdog=watchdog, seconds=SECONDS, recording=recording)

    def outcome(self, mutant: Mutant) -> Outcome:
        """Return the outcome of a mutant, which may end the process that tries it, or never return."""
        if unavailable() is not None:
            return self._with_mutant(mutant)
        try:
            with Child(lambda channel: self._answer(channel, mutant)) as child:
                fate, by = pickle.loads(child.receive(Limits(LONGEST)))
        except ChildEnded as ended:
            fate, by = "killed", ended.ending.kind
        return Outcome(mutant, fate, by)

    def _answer(self, channel: Channel, mutant: Mutant) -> None:
        torch.set_num_threads(1)  # further threads are not in a forked process, and waiting for them would hang
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = self._with_mutant(mutant)
        channel.send(pickle.dumps((outcome.fate, outcome.by)))

    def _with_mutant(self, mutant: Mutant) -> Outcome:
        try:
            return self._judged_with(mutant)
        except Exception as error:  # a wrong program may break the comparison or the search itself
            return Outcome(mutant, "killed", type(error).__name__)

    def _judged_with(self, mutant: Mutant) -> Outcome:
        with mutant.installed() as is_possible:
            if not is_possible:
                return Outcome(mutant, "not told apart", _IMPOSSIBLE)
            killer = self._killer(differences := _Differences())
        if killer is None and not differences.are_right(self._judged):
            killer = self._killer_in_search(mutant, differences)
        if killer is not None:
            return Outcome(mutant, "killed", killer)
        is_unreached = differences.fate == "not told apart" and self._is_unreached(mutant)
        return Outcome(mutant, differences.fate, _UNREACHED if is_unreached else "")

    def _is_unreached(self, mutant: Mutant) -> bool:
        place = mutant.file, mutant.line
        code = self._code
        points, reached = ({(point.file, point.line) for point in each} for each in (code.points, code.reached))
        return code.is_measured and place in points - reached

    def _killer(self, differences: _Differences) -> str | None:
        """Return the first law that the installed mutant breaks on a program of the pass; record the differences."""
        with self._guarded() as watchdog:
            for number, example in enumerate(self._judged):
                run = self._applied(example, watchdog)
                if _left_the_same(run, example):
                    continue
                if run.error is not None:
                    return _RAISES
                if differences.add(run, example) > MOST_DIFFERENT:
                    continue
                laws = [law for law in self._laws if number % ONE_IN == 0 or law.kind != "sampled"]
                wrong_run, broken = broken_at_levels(partial(_applicable, laws), run)
                by_name = {law.name: law for law in laws}
                blamed = (each.law for each in broken if self._blame.caused_by_pass(by_name[each.law], wrong_run))
                if (law := next(blamed, None)) is not None:
                    return law
        return None

    def _killer_in_search(self, mutant: Mutant, differences: _Differences) -> str | None:
        """Return the law by which the search kills the mutant, if it does, and record the differences from the pass."""

        def compare(example: PassRun) -> None:
            """Apply the pass to a program on which the mutant is judged."""
            if differences.fate != "survived":
                run = self._applied(example)
                with mutant.put_back():
                    usual = self._applied(example)
                if not _left_the_same(run, usual):
                    differences.add(run, usual)

        try:
            with mutant.installed(), tempfile.TemporaryDirectory() as folder:
                check_pass(
                    self._pass,
                    seed=self._seed + 1,
                    seconds=SECONDS,
                    demand=(_noting(compare),),
                    folder=Path(folder),
                    **self._options,
                )
        except LawViolation as violation:
            return violation.law
        except NothingJudged:
            return _CHANGES
        return None


def _applicable(laws: Iterable[Law], run: PassRun) -> list[Law]:
    return [law for law in laws if why_not_asked(law, run) is None]


def _noting(note: Callable[[PassRun], object]) -> Law:
    """Return a law that is never broken, and passes each judged program to ``note``."""
    return Law("noted for mutants", lambda pass_run: _ignore(note(pass_run)), when_unchanged=True)


def _ignore(result: object) -> None:
    """Return None."""


def _left_the_same(run: PassRun, other: PassRun) -> bool:
    """Return whether two runs left the same program, or failed in the same way."""
    if run.after is None or other.after is None:
        return [type(each) for each in _failures(run)] == [type(each) for each in _failures(other)]
    if run.damage != other.damage or list(_contents(run.after)) != list(_contents(other.after)):
        return False
    tensors, others = tensors_of(run.after), tensors_of(other.after)
    return tensors.keys() == others.keys() and all(
        same_tensor(tensor, others[name]) and tensor.requires_grad == others[name].requires_grad
        for name, tensor in tensors.items()
    )


def _failures(run: PassRun) -> tuple[Any, ...]:
    return run.error, run.refusal, run.too_long, run.result


def _contents(program: GraphModule) -> Iterator[tuple[Any, ...]]:
    """Yield the contents of each module of a program: a program's code and the records of its nodes."""
    for name, module in program.named_modules(remove_duplicate=False):
        yield name, module.training
        if isinstance(module, GraphModule):
            yield from _written(module)
        elif not list(module.children()):
            yield settings_of(module)[""]


def _written(program: GraphModule, *, lines: bool = True) -> Iterator[tuple[Any, ...]]:
    """Yield the code of a program and the records of each node, with the user's line if ``lines``."""
    yield (program.graph.python_code("self").src,)
    for node in program.graph.nodes:
        yield node.name, str(node.source) if lines else "", sorted(map(str, node.meta))


def _same_but_for_dead_code(program: GraphModule, other: GraphModule) -> bool:
    """Return whether two programs are equal apart from dead code."""
    try:
        live, rest = copy.deepcopy(program), copy.deepcopy(other)
        for each in (live, rest):
            take_edits(RemoveDeadCode(), each)  # this records no origins of the remaining nodes
    except Exception:  # a wrong program may raise anything
        return False
    # Nodes left behind keep their lines, which their replacements have, too.
    has_lines = len(program.graph.nodes) == len(other.graph.nodes)
    if list(_written(live, lines=has_lines)) != list(_written(rest, lines=has_lines)):
        return False
    paths = {str(node.target) for node in live.graph.nodes if node.op in ("get_attr", "call_module")}
    return all(_holds_the_same(*(find_attribute(each, path, None) for each in (live, rest))) for path in paths)


def _holds_the_same(value: Any, other: Any) -> bool:
    """Return whether two attributes of programs are equal tensors, or modules with equal settings and tensors."""
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return same_tensor(value, other) and value.requires_grad == other.requires_grad
    if isinstance(value, nn.Module) and isinstance(other, nn.Module):
        tensors, others = tensors_of(value), tensors_of(other)
        same_names = settings_of(value) == settings_of(other) and tensors.keys() == others.keys()
        return same_names and all(_holds_the_same(tensor, others[name]) for name, tensor in tensors.items())
    return value == other


def _did_less(run: PassRun, usual: PassRun) -> bool:
    """Return whether a mutant left alone what the pass changed, made fewer edits, or left dead code behind."""
    if run.after is None or usual.after is None:
        return False
    if not run.changed or (run.edits is not None and usual.edits is not None and run.edits < usual.edits):
        return True
    before = run.untouched().after
    return any(other is not None and _same_but_for_dead_code(run.after, other) for other in (usual.after, before))


@dataclass(slots=True)
class _Differences:
    """The programs that a mutant and the pass left in different states."""

    more: int = 0
    """The number on which the mutant did something else."""
    less: int = 0
    """The number on which it did less: left alone what the pass changes, made fewer edits, or left dead code behind."""
    lost: int = 0
    """The number of the latter that it left alone."""

    def add(self, run: PassRun, usual: PassRun) -> int:
        """Count a program, and return the count of its kind."""
        if not _did_less(run, usual):
            self.more += 1
            return self.more
        self.less += 1
        self.lost += not run.changed
        return self.less

    def are_right(self, judged: Sequence[PassRun]) -> bool:
        """Return whether a search would find nothing: the mutant does nothing else, and still changes enough."""
        changed = sum(example.changed for example in judged) - self.lost
        return not self.more and changed >= FEWEST_CHANGES * len(judged)

    @property
    def fate(self) -> Fate:
        """The fate of a mutant that nothing killed."""
        return "survived" if self.more else "acts less" if self.less else "not told apart"
