"""The exploration of the places where a pass acts: each property of a program otherwise, then several at a time.

A program that the pass changed is a seed. It is cut to the shortest part that the pass still changes, with one call a
line. Programs that differ from it in one property are tried: an argument, a size, a dtype, values, a layout, another
use of a value, another holder of a tensor. Schemas, signatures and the text say which properties there are. A trial
counts if the pass acts on it.
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
"""The property of a program that trains, where it did not, or the other way."""
VALUES = 2
"""Values of an argument in each round through all properties, at least."""
OF_ONE_CALL = 0.5
"""The part of the combinations whose first two properties are two arguments of one call."""
ALIKE = 0.2
"""The part of the combinations that have one property in several places."""
MOST_COMBINED = 4
"""Properties that are otherwise at a time."""
COMBINED = 2
"""Programs with several properties otherwise, for each with one, after the first."""
MOST_JOINT = 48
"""Pairs of an argument of two calls that are tried."""
TRAINING = "train"
"""The mode in which dropout draws random numbers."""
DRAWING = "dropout between"
"""The property of a program that does so."""
MOST_DRAWING = 8
"""Pairs of places that are tried with such draws."""
OTHER_VALUES = 4
"""Values of tensors that are tried with an operation in the place of another one."""
MOST_BARREN = 2
"""Rounds through all properties without a new program, after which there are no others."""
MOST_NEW = 3
"""Trials on which the pass acts with an operation that no seed calls, whose arguments are varied, too."""
FITTING = (6, 4, 8)
"""Sizes for arguments that do not fit the sizes of a program."""
MOST_FITTING = 6
"""Programs with such a size."""
MOST_DOUBLED = 4
"""Sizes of layers that are doubled."""
MOST_UNFIT = 2
"""Arguments of a property that fail with all sizes, after which sizes are not tried for others."""


@dataclass(slots=True)
class Explored:
    """The trials of an exploration so far."""

    acted: Counter[str] = field(default_factory=Counter[str])
    """The number of trials with each property on which the pass acted."""
    tried: Counter[str] = field(default_factory=Counter[str])
    """The number of trials with it."""

    trials: int = 0
    """The number of trials on which the pass acted."""
    seeds: int = 0
    """The number of seeds."""

    def note(self, trial: Trial, acted: bool) -> None:
        """Count a trial, and whether the pass acted on it."""
        self.tried.update(trial.properties)
        if acted:
            self.trials += 1
            self.acted.update(trial.properties)

    @property
    def not_varied(self) -> tuple[str, ...]:
        """Return the properties that were tried, and on none of whose trials the pass acted."""
        return tuple(sorted(name for name in self.tried if not self.acted[name]))


@dataclass(frozen=True, slots=True)
class Trial:
    """A program near a seed."""

    program: Program
    """The program."""
    mode: str
    """Its mode."""
    properties: tuple[str, ...]
    """The properties that differ from the seed."""
    is_usual: bool = True
    """Whether the values and the state are as before: gradients may depend on both, where outputs do not."""
    operation: str = ""
    """The operation that the pass mentions, where one stands in the place of another one."""
    is_from_end: bool = False
    """Whether one argument is another one, and negative: a dimension counted from the last one."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Trials that need not be made again."""

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
    """Yield programs near the seeds: each property by itself, then once more and several of them, without end.

    Args:
        seeds: texts of programs, and the modes in which the pass acts on them.
        modes: those in which it is to be right.
        looked_at: names that the code of the pass mentions; arguments of other names come first.
        random: decides on the order.
        acted: how often each property was varied so far while the pass went on to act; whoever tries what is yielded
            adds to it.
        operations: what the pass mentions, which may stand in the place of a call.
        names_made: names of modules and tensors that the pass adds to each seed.
    """
    texts = [(Observed.of(text, mode), mode, text) for text, mode in seeds]
    observed = [(seen, mode) for seen, mode, _ in texts if seen is not None]
    further = {
        seen: [*name_variations(seen, names_made.get(text, ())), *operation_variations(seen, operations)]
        for seen, _, text in texts
        if seen is not None
    }
    known = _Known()
    found: dict[str, list[tuple[int, Observed, str, Variation]]] = {}
    for seen, mode in observed:
        for name, several in _grouped(
            [*itertools.chain.from_iterable(_by_name(seen).values()), *further[seen]]
        ).items():
            random.shuffle(several)
            # each seed has its turn, those with few variations no later than the others
            found.setdefault(name, []).extend((place, seen, mode, each) for place, each in enumerate(several))
        for other in modes:
            if other != mode:
                found.setdefault(MODE, []).append((0, seen, other, Variation(MODE, {})))
    queues = {
        name: deque((seen, mode, each) for _, seen, mode, each in sorted(several, key=lambda entry: entry[0]))
        for name, several in found.items()
    }
    names = list(queues)
    random.shuffle(names)
    first = {name: queues[name][0][2] for name in names}
    mentioned = frozenset(map(name_of_operation, operations))
    names.sort(key=lambda name: _turn(first[name], mentioned, looked_at))
    often = {name: max(VALUES * bool(first[name].callee), round(len(queues[name]) ** (1 / 3))) for name in names}
    barren = 0
    joint, of_new = deque[_Waiting](), deque[_Waiting]()
    called = Counter[Any]({part: MOST_NEW for seen, _ in observed for part in called_names(ast.unparse(seen.tree))})
    for cycle in itertools.count():
        barren += 1
        if cycle == 1:
            pairs = [(seen, mode, each) for seen, mode in observed for each in _joint(seen, acted, random)]
            pairs += [
                (seen, TRAINING, each) for seen, _ in observed for each in _draws(seen, random) if TRAINING in modes
            ]
            joint.extend(random.sample(pairs, len(pairs)))
        for time, name in itertools.product(range(max(often.values(), default=0)), names):
            if time >= often[name]:
                continue
            several = [
                _combined(*random.choice(observed), known, random, acted) for _ in range(bool(cycle or time) * COMBINED)
            ]
            for trial in (
                _next_single(queues[name], known),
                _next_single(joint, known),
                _next_single(of_new, known),
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
    """Return a key of a property: other operations of the pass come first, then arguments that it does not mention."""
    return variation.operation not in mentioned, not variation.parameter or variation.parameter in looked_at


def _of_new_operation(trial: Trial, modes: Sequence[str], random: Random) -> list[_Waiting]:
    """Return variations of a trial with another operation: the other mode, its arguments, and some other values."""
    seen = Observed.of(trial.program.source, trial.mode)
    if seen is None:
        return []
    waiting = [(seen, mode, Variation(MODE, {})) for mode in modes if mode != trial.mode]
    for several in _by_name(seen).values():
        if several[0].callee == trial.operation:
            waiting.append((seen, trial.mode, random.choice(several)))
    of_values = [random.choice(several) for several in _by_name(seen).values() if several[0].of_values]
    others = random.sample(of_values, min(OTHER_VALUES, len(of_values)))
    return [*waiting, *((seen, trial.mode, each) for each in others)]


def _of_ranks(trial: Trial) -> list[_Waiting]:
    """Return variations of a trial in which tensors have a further dimension."""
    seen = Observed.of(trial.program.source, trial.mode)
    several = _by_name(seen).values() if seen is not None else ()
    return [(seen, trial.mode, each) for each in itertools.chain(*several) if each.of_rank and seen is not None]


def _next_single(queue: deque[_Waiting], known: _Known) -> Trial | None:
    """Return the next program with a property otherwise that runs; None if there is none left."""
    while queue:
        seen, mode, variation = queue.popleft()
        trial = _trial(edited(seen.tree, variation.edits), mode, (variation,), known)
        if trial is not None:
            return trial
    return None


def called_names(text: str) -> tuple[str, ...]:
    """Return what a program calls, in order: modules by their classes, functions and methods by their names."""
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
    """Count the different numbers of a program: where a kernel has one element, little can be otherwise."""
    numbers = (part.value for part in ast.walk(ast.parse(text)) if isinstance(part, ast.Constant))
    return len({number for number in numbers if type(number) is int})


def _place(part: ast.expr) -> tuple[int, int]:
    return part.lineno, part.col_offset


def _combined(seen: Observed, mode: str, known: _Known, random: Random, acted: Mapping[str, int]) -> Trial | None:
    """Return a program with several properties otherwise, of those that can be: often arguments of one call."""
    if not acted:
        return None
    count = random.randint(2, MOST_COMBINED)
    of_call = random.randint(2, count) if random.random() < OF_ONE_CALL else 0
    made, tree, callee = list[Variation](), seen.tree, ""
    variations = arguments = _by_name(seen)
    if random.random() < ALIKE:  # the order of two draws of random numbers shows, that of one does not
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
            if other is not None and not applies(other.edits, tree):  # an argument of a call that an edit wrote again
                current = Observed.of_tree(tree, mode)
                arguments = {} if current is None else _grouped(argument_variations(current))
                other = _one_of(arguments, acted, random, callee)
                tree = tree if current is None else current.tree
        if other is not None and applies(other.edits, tree):
            made, tree = [*made, other], edited(tree, other.edits)
    return _trial(tree, mode, made, known) if len(made) > 1 else None


def _joint(seen: Observed, acted: Mapping[str, int], random: Random) -> Iterator[Variation]:
    """Yield the same argument of two calls otherwise, where the pass does not act if it is so in one of them.

    It may ask that both fit each other, as those of two permutations of which one undoes the other.
    """
    for name, several in _by_name(seen).items():
        by_call: dict[ast.AST | None, list[Variation]] = {}
        for each in several if several[0].parameter and not acted.get(name) else ():
            by_call.setdefault(each.call, []).append(each)
        calls = itertools.combinations(by_call.values(), 2)
        pairs = [pair for two in calls for pair in itertools.product(*two)]
        for one, other in random.sample(pairs, min(MOST_JOINT, len(pairs))):
            yield replace(one, name=f"{name} of two calls", edits={**one.edits, **other.edits})


def _draws(seen: Observed, random: Random) -> Iterator[Variation]:
    """Yield random draws at two places, where they are in training: their order shows, where one draw shows nothing."""
    draws = list(itertools.combinations(_by_name(seen).get(DRAWING, ()), 2))
    for one, other in random.sample(draws, min(MOST_DRAWING, len(draws))):
        if one.edits.keys().isdisjoint(other.edits):
            yield replace(one, name="dropout at two places", edits={**one.edits, **other.edits})


def _one_of(
    by_name: Mapping[str, Sequence[Variation]],
    acted: Mapping[str, int],
    random: Random,
    callee: str | None = None,
) -> Variation | None:
    """Choose a property that was varied before, the sooner the less often it was, and one of its variations.

    With ``callee`` it is an argument of that, or of anything if the name is empty.
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
def _by_name(seen: Observed) -> Mapping[str, Sequence[Variation]]:
    return _grouped(variation for kind in KINDS for variation in kind(seen))


def _trial(changed: ast.Module, mode: str, made: Sequence[Variation], known: _Known) -> Trial | None:
    """Return the program with some variations made; None if it is no program, or a known one.

    An argument that fails is tried with other sizes, unless these did not help with others of the same property.
    """
    last = made[-1]
    may_fit = bool(last.callee) and known.unfit[last.name] < MOST_UNFIT
    for candidate in (changed, *(_fitting(changed) if may_fit else ())):
        text = written(candidate)
        if (text, mode) in known.texts:
            return None
        if candidate is changed:
            known.texts.add((text, mode))
        if (program := running(text, mode)) is not None:
            known.texts.add((text, mode))
            usual = not any(each.of_values for each in made)
            is_from_end = len(made) == 1 and last.passed[:1] == "-"
            return Trial(program, mode, tuple(each.name for each in made), usual, last.operation, is_from_end)
    known.unfit[last.name] += may_fit
    return None


def _fitting(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield the program with one of its sizes otherwise, such as may fit another argument.

    One may be twice as large in one layer alone: a recurrent layer of both directions returns so many values.
    """
    call = WrittenCall.of(tree)
    layers = [part for line in lines_making_tensors(tree, None) for part in ast.walk(line)]
    constants = [(part, part.value) for part in layers if isinstance(part, ast.Constant)]
    sizes = [(part, value) for part, value in constants if type(value) is int and value > 1]
    for part, size in sizes[:MOST_DOUBLED]:
        yield edited(tree, {part: [ast.Constant(2 * size)]})
    fitting = (
        edits
        for size in FITTING
        for edits in of_sizes(tree, call, lambda old, sizes: [size] if size != old and old > 1 else [])  # noqa: B023
    )
    for edits in itertools.islice(fitting, MOST_FITTING):
        yield edited(tree, edits)
