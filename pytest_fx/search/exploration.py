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
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any

from pytest_fx.generation.record import Program
from pytest_fx.search.argument_variations import argument_variations
from pytest_fx.search.growth_steps import operation_variations
from pytest_fx.search.module_variations import module_variations, name_variations
from pytest_fx.search.nearness import running
from pytest_fx.search.observed import Observed, Variation
from pytest_fx.search.reduction import written
from pytest_fx.search.simplifications import of_sizes
from pytest_fx.search.syntax import WrittenCall, edited
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
COMBINED = 2
"""Programs with several properties otherwise, for each with one, after the first."""
MOST_COMBINED = 4
"""Properties that are otherwise at a time."""
ATTEMPTS = 3
"""Attempts to find a further program."""
MOST_BARREN = 2
"""Rounds through all properties without a new program, after which there are no others."""
FITTING = (4, 6, 8)
"""Sizes that are tried where an argument does not fit those of a program."""


@dataclass(slots=True)
class Explored:
    """What an exploration tried so far."""

    acted: Counter[str] = field(default_factory=Counter[str])
    """How many trials with each property the pass acted on."""
    tried: Counter[str] = field(default_factory=Counter[str])
    """How many trials there were with it."""

    trials: int = 0
    """How many trials the pass acted on."""
    seeds: int = 0
    """How many seeds there were."""

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
    """What is otherwise in it."""
    is_usual: bool = True
    """Whether the values and the state are as before: gradients may depend on both, where outputs do not."""


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
    known: set[tuple[str, str]] = set()
    found: dict[str, list[tuple[int, Observed, str, Variation]]] = {}
    for seen, mode in observed:
        for name, several in _by_name([*_variations(seen), *further[seen]]).items():
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
    names.sort(key=lambda name: not first[name].parameter or first[name].parameter in looked_at)
    often = {name: max(VALUES * bool(first[name].callee), round(len(queues[name]) ** (1 / 3))) for name in names}
    barren = 0
    for cycle in itertools.count():
        barren += 1
        for time, name in itertools.product(range(max(often.values(), default=0)), names):
            if time >= often[name]:
                continue
            several = [
                _combined(*random.choice(observed), known, random, acted) for _ in range(bool(cycle or time) * 2)
            ]
            for trial in (_next_single(queues[name], known), *several):
                if trial is not None:
                    barren = 0
                    yield trial
        if barren == MOST_BARREN:
            return


def _next_single(queue: deque[tuple[Observed, str, Variation]], known: set[tuple[str, str]]) -> Trial | None:
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


def _combined(
    seen: Observed, mode: str, known: set[tuple[str, str]], random: Random, acted: Mapping[str, int]
) -> Trial | None:
    """Return a program with several properties otherwise, of those that can be: often arguments of one call."""
    count = random.randint(2, MOST_COMBINED)
    of_call = random.randint(2, count) if random.random() < OF_ONE_CALL else 0
    made, tree = list[Variation](), seen.tree
    if not acted:
        return None
    kept = [each for each in _variations(seen) if acted.get(each.name)]
    for _ in range(count - of_call):
        other = _one_of(kept, acted, random)
        if other is not None and other.edits.keys() <= set(ast.walk(tree)):  # what an edit has written again is not
            made, tree = [*made, other], edited(tree, other.edits)
    callee = ""
    for _ in range(of_call):
        current = Observed.of_tree(tree, mode)
        others = [] if current is None else [each for each in argument_variations(current) if each.callee]
        other = _one_of([each for each in others if each.callee == (callee or each.callee)], acted, random)
        if current is None or other is None:
            break
        made, tree, callee = [*made, other], edited(current.tree, other.edits), other.callee
    return _trial(tree, mode, made, known) if len(made) > 1 else None


def _seldom(names: Sequence[str], acted: Mapping[str, int], random: Random) -> str:
    """Choose a property, the sooner the less often it was varied."""
    return random.choices(names, [1 / acted[name] for name in names])[0]


def _one_of(variations: Iterable[Variation], acted: Mapping[str, int], random: Random) -> Variation | None:
    """Choose a property that was varied before, and one of its variations."""
    by_name = _by_name(variation for variation in variations if acted.get(variation.name))
    return random.choice(by_name[_seldom(list(by_name), acted, random)]) if by_name else None


def _by_name(variations: Iterable[Variation]) -> dict[str, list[Variation]]:
    by_name: dict[str, list[Variation]] = {}
    for variation in variations:
        by_name.setdefault(variation.name, []).append(variation)
    return by_name


@functools.lru_cache(maxsize=32)  # each seed is varied many times
def _variations(seen: Observed) -> list[Variation]:
    return [variation for kind in KINDS for variation in kind(seen)]


def _trial(changed: ast.Module, mode: str, made: Sequence[Variation], known: set[tuple[str, str]]) -> Trial | None:
    """Return the program with some variations made; None if it is no program, or a known one."""
    for candidate in (changed, *(_fitting(changed) if made[-1].callee else ())):
        text = written(candidate)
        if (text, mode) in known:
            return None
        if candidate is changed:
            known.add((text, mode))
        if (program := running(text, mode)) is not None:
            known.add((text, mode))
            usual = not any(each.of_values for each in made)
            return Trial(program, mode, tuple(each.name for each in made), usual)
    return None


def _fitting(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield the program with one of its sizes otherwise, such as may fit another argument."""
    call = WrittenCall.of(tree)
    for edits in of_sizes(tree, call, lambda old, sizes: [size for size in FITTING if size != old and old > 1]):
        yield edited(tree, edits)
