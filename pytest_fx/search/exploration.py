"""Exploration around the places where a pass acts: each property of a program varied alone, then several at a time.

A program that the pass changed is a seed. It is cut to the shortest part that the pass still changes, with one call a
line. The trials differ from it in one property: an argument, a size, a dtype, values, a layout, another use of a value,
another holder of a tensor. Schemas, signatures and the text show which properties there are. A trial counts if the pass
acts on it.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import Any

from pytest_fx.generation.record import Program
from pytest_fx.search.argument_variations import argument_variations
from pytest_fx.search.growth_steps import name_of_operation, operation_variations
from pytest_fx.search.module_variations import module_variations, name_variations
from pytest_fx.search.nearness import running
from pytest_fx.search.observed import Observed, Variation
from pytest_fx.search.reduction import written
from pytest_fx.search.simplifications import lines_making_tensors, of_sizes
from pytest_fx.search.syntax import WrittenCall, applies, edited
from pytest_fx.search.tensor_variations import tensor_variations
from pytest_fx.search.use_variations import use_variations

KINDS: Sequence[Callable[[Observed], Iterator[Variation]]] = (
    argument_variations,
    use_variations,
    tensor_variations,
    module_variations,
)
MODE = "the other mode"
"""The property of a program that trains although its seed does not, or the other way round."""
VALUES = 2
"""The least number of values of an argument in each round through all properties."""
OF_ONE_CALL = 0.5
"""The share of combinations whose first two properties are two arguments of one call."""
ALIKE = 0.2
"""The share of combinations that have one property in several places."""
MOST_COMBINED = 4
"""The most properties that are varied at a time."""
COMBINED = 2
"""After the first round, the number of programs with several varied properties for each program with one."""
MOST_JOINT = 48
"""The most pairs of arguments of two calls that are tried."""
TRAINING = "train"
"""The mode in which dropout draws random numbers."""
DRAWING = "dropout between"
"""The property of a program with dropout between two lines."""
MOST_DRAWING = 8
"""The most pairs of places that are tried with random draws."""
OTHER_VALUES = 4
"""The number of values of tensors that are tried with a replaced operation."""
MOST_BARREN = 2
"""The number of rounds through all properties without a new program after which the exploration ends."""
MOST_NEW = 3
"""The number of trials with an operation that no seed calls and on which the pass acts whose arguments are varied."""
FITTING = (6, 4, 8)
"""Sizes for arguments that do not fit the sizes of a program."""
MOST_FITTING = 6
"""The most programs with such a size."""
MOST_DOUBLED = 4
"""The most sizes of layers that are doubled."""
MOST_UNFIT = 2
"""The number of arguments of a property that fail with all sizes before sizes are no longer tried for others."""


@dataclass(slots=True)
class Explored:
    """The trials of an exploration so far."""

    acted: Counter[str] = field(default_factory=Counter[str])
    """The number of trials with each property on which the pass acted."""
    tried: Counter[str] = field(default_factory=Counter[str])
    """The number of all trials with each property."""

    trials: int = 0
    """The number of trials on which the pass acted."""
    seeds: int = 0
    """The number of seeds."""

    def note(self, trial: Trial, acted: bool) -> None:
        """Count a trial; ``acted``: true if the pass acted on it."""
        self.tried.update(trial.properties)
        if acted:
            self.trials += 1
            self.acted.update(trial.properties)

    @property
    def not_varied(self) -> tuple[str, ...]:
        """Return the tried properties without any trial on which the pass acted."""
        return tuple(sorted(name for name in self.tried if not self.acted[name]))


@dataclass(frozen=True, slots=True)
class Trial:
    """A program near a seed, from which it differs in some properties."""

    program: Program
    """The program."""
    mode: str
    """Its mode."""
    properties: tuple[str, ...]
    """The properties that differ from the seed."""
    is_usual: bool = True
    """True if the values and the state are as in the seed: gradients may depend on both even if outputs do not."""
    operation: str = ""
    """The operation, if one that the pass mentions replaces another."""
    is_from_end: bool = False
    """True if the only change makes an argument negative: a dimension counted from the last one."""


@dataclass(frozen=True, slots=True)
class _EarlierTrials:
    """Trials and failures that need not be repeated."""

    texts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Texts of programs, with their modes."""
    unfit: Counter[str] = field(default_factory=Counter[str])
    """The number of arguments of each property that fail with all sizes."""


def trials(
    seeds: Iterable[tuple[str, str]],
    modes: Sequence[str],
    looked_at: Collection[str],
    random: Random,
    acted: Mapping[str, int],
    names_made: Mapping[str, Collection[str]] = MappingProxyType({}),
    operations: Sequence[Any] = (),
) -> Iterator[Trial]:
    """Yield programs near the seeds: each property alone, then again and in combinations, without end.

    Args:
        seeds: texts of programs, and the modes in which the pass acts on them.
        modes: the modes in which the pass must be right.
        looked_at: names that the code of the pass mentions; arguments of other names come first.
        random: the source of the order.
        acted: the number of trials with each property on which the pass acted; the caller updates it.
        names_made: names of modules and tensors that the pass adds to each seed.
        operations: the operations that the pass mentions, which may replace a call.
    """
    texts = [(Observed.of(text, mode), mode, text) for text, mode in seeds]
    observed_seeds = [(observed, mode) for observed, mode, _ in texts if observed is not None]
    further = {
        observed: [*name_variations(observed, names_made.get(text, ())), *operation_variations(observed, operations)]
        for observed, _, text in texts
        if observed is not None
    }
    earlier = _EarlierTrials()
    by_property: dict[str, list[tuple[int, Observed, str, Variation]]] = {}
    for observed, mode in observed_seeds:
        for name, several in _grouped(
            [*itertools.chain.from_iterable(_by_name(observed).values()), *further[observed]]
        ).items():
            random.shuffle(several)
            # seeds take turns, and those with few variations come as early as the others
            by_property.setdefault(name, []).extend((place, observed, mode, each) for place, each in enumerate(several))
        for other in modes:
            if other != mode:
                by_property.setdefault(MODE, []).append((0, observed, other, Variation(MODE, {})))
    queues = {
        name: deque((observed, mode, each) for _, observed, mode, each in sorted(several, key=lambda entry: entry[0]))
        for name, several in by_property.items()
    }
    names = list(queues)
    random.shuffle(names)
    first = {name: queues[name][0][2] for name in names}
    mentioned = frozenset(map(name_of_operation, operations))
    names.sort(key=lambda name: _turn(first[name], mentioned, looked_at))
    often = {name: max(VALUES * bool(first[name].callee), round(len(queues[name]) ** (1 / 3))) for name in names}
    barren = 0
    joint, of_new = deque[_Waiting](), deque[_Waiting]()
    called = Counter[Any](
        {part: MOST_NEW for observed, _ in observed_seeds for part in called_names(ast.unparse(observed.tree))}
    )
    for cycle in itertools.count():
        barren += 1
        if cycle == 1:
            pairs = [
                (observed, mode, each) for observed, mode in observed_seeds for each in _joint(observed, acted, random)
            ]
            pairs += [
                (observed, TRAINING, each)
                for observed, _ in observed_seeds
                for each in _draws(observed, random)
                if TRAINING in modes
            ]
            joint.extend(random.sample(pairs, len(pairs)))
        for time, name in itertools.product(range(max(often.values(), default=0)), names):
            if time >= often[name]:
                continue
            several = [
                _combined(*random.choice(observed_seeds), earlier, random, acted)
                for _ in range(bool(cycle or time) * COMBINED)
            ]
            for trial in (
                _next_single(queues[name], earlier),
                _next_single(joint, earlier),
                _next_single(of_new, earlier),
                *several,
            ):
                if trial is not None:
                    barren, before = 0, acted.get(trial.properties[-1], 0)
                    yield trial
                    has_acted = acted.get(trial.properties[-1], 0) > before
                    if has_acted and trial.operation and called[trial.operation] < MOST_NEW:
                        called[trial.operation] += 1
                        of_new.extend(_of_new_operation(trial, modes, random))
                    if has_acted and trial.is_from_end and called[trial.properties] < MOST_NEW:
                        called[trial.properties] += 1
                        of_new.extend(_of_ranks(trial))
        if barren == MOST_BARREN:
            return


_Waiting = tuple[Observed, str, Variation]
"""A seed, its mode, and a variation of it that was not tried yet."""


def _turn(variation: Variation, mentioned: Collection[str], looked_at: Collection[str]) -> tuple[bool, bool]:
    """Return a sort key of a property: replaced operations first, then arguments that the pass does not mention."""
    return variation.operation not in mentioned, not variation.parameter or variation.parameter in looked_at


def _of_new_operation(trial: Trial, modes: Sequence[str], random: Random) -> list[_Waiting]:
    """Return variations of a trial with another operation: the other mode, its arguments, and some other values."""
    observed = Observed.of(trial.program.source, trial.mode)
    if observed is None:
        return []
    waiting = [(observed, mode, Variation(MODE, {})) for mode in modes if mode != trial.mode]
    for several in _by_name(observed).values():
        if several[0].callee == trial.operation:
            waiting.append((observed, trial.mode, random.choice(several)))
    of_values = [random.choice(several) for several in _by_name(observed).values() if several[0].of_values]
    others = random.sample(of_values, min(OTHER_VALUES, len(of_values)))
    return [*waiting, *((observed, trial.mode, each) for each in others)]


def _of_ranks(trial: Trial) -> list[_Waiting]:
    """Return variations of a trial in which tensors have a further dimension."""
    observed = Observed.of(trial.program.source, trial.mode)
    several = _by_name(observed).values() if observed is not None else ()
    return [(observed, trial.mode, each) for each in itertools.chain(*several) if each.of_rank and observed is not None]


def _next_single(queue: deque[_Waiting], earlier: _EarlierTrials) -> Trial | None:
    """Return the next program with one varied property that runs; None if there is none left."""
    while queue:
        observed, mode, variation = queue.popleft()
        edits = variation.drawn()
        trial = None if edits is None else _trial(edited(observed.tree, edits), mode, (variation,), earlier)
        if trial is not None:
            return trial
    return None


def called_names(text: str) -> tuple[str, ...]:
    """Return the names that a program calls, in order: classes of modules, and names of functions and methods."""
    kinds = (ast.Call, ast.Subscript, ast.BinOp)
    parts = sorted((part for part in ast.walk(ast.parse(text)) if isinstance(part, kinds)), key=_place)
    return tuple(name for part in parts if not (name := _callee(part))[-1:].isdigit())


def _callee(part: ast.Call | ast.Subscript | ast.BinOp) -> str:
    match part:
        case ast.Call(func=function):
            return ast.unparse(function).rpartition(".")[2]
        case ast.BinOp(op=operator):
            return type(operator).__name__
        case ast.Subscript():
            return "getitem"


def variety(text: str) -> int:
    """Count the different integers of a program: if a kernel has one element, say, few variations have an effect."""
    numbers = (part.value for part in ast.walk(ast.parse(text)) if isinstance(part, ast.Constant))
    return len({number for number in numbers if type(number) is int})


def _place(part: ast.expr) -> tuple[int, int]:
    return part.lineno, part.col_offset


def _combined(
    observed: Observed, mode: str, earlier: _EarlierTrials, random: Random, acted: Mapping[str, int]
) -> Trial | None:
    """Return a program with several varied properties, often arguments of one call, of those that the pass acts on."""
    if not acted:
        return None
    count = random.randint(2, MOST_COMBINED)
    of_call = random.randint(2, count) if random.random() < OF_ONE_CALL else 0
    chosen, tree, callee = list[Variation](), observed.tree, ""
    variations = arguments = _by_name(observed)
    if random.random() < ALIKE:  # the order of two random draws shows, that of a single one does not
        several = {name: own for name, own in variations.items() if len(own) > 1}
        alike = _one_of(several, acted, random)
        variations = {alike.name: variations[alike.name]} if alike is not None else variations
        of_call = 0
    for number in range(count):
        if number < count - of_call:
            other = _one_of(variations, acted, random)
        else:
            other = _one_of(arguments, acted, random, callee)
            callee = other.callee if other else callee
            if other is not None and not applies(other.edits, tree):  # an argument of a call that an edit has rewritten
                current = Observed.of_tree(tree, mode)
                arguments = {} if current is None else _grouped(argument_variations(current))
                other = _one_of(arguments, acted, random, callee)
                tree = tree if current is None else current.tree
        if other is not None and applies(other.edits, tree):
            chosen, tree = [*chosen, other], edited(tree, other.edits)
    return _trial(tree, mode, chosen, earlier) if len(chosen) > 1 else None


def _joint(observed: Observed, acted: Mapping[str, int], random: Random) -> Iterator[Variation]:
    """Yield the same argument of two calls varied together, if the pass does not act if it is varied in one of them.

    The pass may require that both fit each other, as in two permutations that undo each other.
    """
    for name, several in _by_name(observed).items():
        by_call: dict[ast.AST | None, list[Variation]] = {}
        for each in several if several[0].parameter and not acted.get(name) else ():
            by_call.setdefault(each.call, []).append(each)
        calls = itertools.combinations(by_call.values(), 2)
        pairs = [pair for two in calls for pair in itertools.product(*two)]
        for first, second in random.sample(pairs, min(MOST_JOINT, len(pairs))):
            yield replace(first, name=f"{name} of two calls", edits={**first.edits, **second.edits})


def _draws(observed: Observed, random: Random) -> Iterator[Variation]:
    """Yield random draws at two places, for programs in training: their order shows, a single draw shows nothing."""
    draws = list(itertools.combinations(_by_name(observed).get(DRAWING, ()), 2))
    for first, second in random.sample(draws, min(MOST_DRAWING, len(draws))):
        if first.edits.keys().isdisjoint(second.edits):
            yield replace(first, name="dropout at two places", edits={**first.edits, **second.edits})


def _one_of(
    by_name: Mapping[str, Sequence[Variation]],
    acted: Mapping[str, int],
    random: Random,
    callee: str | None = None,
) -> Variation | None:
    """Choose a property that was varied before, preferably a rare one, and one of its variations.

    With ``callee`` it is an argument of that callee, or of any if the name is empty.
    """
    callees = {name: several[0].callee for name, several in by_name.items() if acted.get(name)}
    names = [name for name, own in callees.items() if callee is None or (own and callee in ("", own))]
    name = random.choices(names, [1 / acted[name] for name in names])[0] if names else ""
    return random.choice(by_name[name]) if name else None


def _grouped(variations: Iterable[Variation]) -> dict[str, list[Variation]]:
    """Return variations by their properties."""
    by_name: dict[str, list[Variation]] = {}
    for variation in variations:
        by_name.setdefault(variation.name, []).append(variation)
    return by_name


@functools.lru_cache(maxsize=32)  # each seed is varied many times
def _by_name(observed: Observed) -> Mapping[str, Sequence[Variation]]:
    return _grouped(variation for kind in KINDS for variation in kind(observed))


def _trial(changed: ast.Module, mode: str, applied: Sequence[Variation], earlier: _EarlierTrials) -> Trial | None:
    """Return the program with some variations applied; None if it does not run, or was tried before.

    An argument that fails is tried with other sizes, unless sizes did not help others of the same property.
    """
    last = applied[-1]
    may_fit = bool(last.callee) and earlier.unfit[last.name] < MOST_UNFIT
    for candidate in (changed, *(_fitting(changed, last.callee) if may_fit else ())):
        text = written(candidate)
        if (text, mode) in earlier.texts:
            return None
        if candidate is changed:
            earlier.texts.add((text, mode))
        if (program := running(text, mode)) is not None:
            earlier.texts.add((text, mode))
            usual = not any(each.of_values for each in applied)
            is_from_end = len(applied) == 1 and last.passed[:1] == "-"
            return Trial(program, mode, tuple(each.name for each in applied), usual, last.operation, is_from_end)
    earlier.unfit[last.name] += may_fit
    return None


def _fitting(tree: ast.Module, callee: str) -> Iterator[ast.Module]:
    """Yield the program with one of its sizes changed, which may fit another argument of a call of ``callee``.

    A size may be doubled in one call alone: a bidirectional recurrent layer returns twice as many values, and padding
    needs a kernel of two elements at least.
    """
    call = WrittenCall.of(tree)
    own = [part for part in ast.walk(tree) if isinstance(part, ast.Call) and _callee(part) == callee]
    near = [part for each in own for part in ast.walk(each)]
    layers = [part for line in lines_making_tensors(tree, None) for part in ast.walk(line)]
    constants = [part for part in dict.fromkeys([*near, *layers]) if isinstance(part, ast.Constant)]
    sizes = [
        (part, part.value) for part in constants if type(part.value) is int and part.value >= (1 if part in near else 2)
    ]
    for part, size in sizes[:MOST_DOUBLED]:
        yield edited(tree, {part: [ast.Constant(2 * size)]})
    fitting = (
        edits
        for size in FITTING
        for edits in of_sizes(tree, call, lambda old, sizes: [size] if size != old and old > 1 else [])  # noqa: B023
    )
    for edits in itertools.islice(fitting, MOST_FITTING):
        yield edited(tree, edits)
