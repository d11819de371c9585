"""Growth of programs toward a pass: each step passes a value through one more operation that the pass mentions.

A pass that needs four operators in a row does nothing on most programs. But its conditions are evaluated one by one. So
a program with the first two of them goes further in its code than one with the first, and can grow by the third (see
:mod:`pytest_fx.search.nearness`).
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any

import torch

from pytest_fx.generation.bias import choices_for
from pytest_fx.generation.record import Program
from pytest_fx.search.agreement import agreed
from pytest_fx.search.argument_variations import argument_variations
from pytest_fx.search.comparisons import Mismatch
from pytest_fx.search.coverage import Point
from pytest_fx.search.growth_steps import copied, operated
from pytest_fx.search.module_variations import module_variations
from pytest_fx.search.nearness import cuts, running, without_unused
from pytest_fx.search.observed import Observed, flattened
from pytest_fx.search.reduction import written
from pytest_fx.search.removals import slices
from pytest_fx.search.syntax import Edits, edited, expression, name_of

RAREST = 12
"""The number of rarest points from which programs grow at a time."""
SHORTEST = 6
"""The number of shortest programs at a point that grow."""
WEIGHTS = {"operation": 4, "value": 1, "copy": 2, "argument": 2, "part": 2, "state": 1}
"""The steps of growth, with their weights: an operation, another value, a copy of lines, another argument, a cut, and
a change to a module, such as a hook."""
REDRAWN = 4
"""The most comparisons that are tried for one that can be met."""
COMPARED = 0.8
"""The share of steps that give a program a value that the pass compares it with, if there is a comparison."""
REWARD, DECAY = 8.0, 0.9
"""Factors of the weight of an operation, after it led to something new and after it did not."""
MOST_CUTS = 8
"""The most parts of a program that are tried for one that goes as far, before it grows."""
MET = 0.05
"""Factor of the weight of a comparison in a condition that already had both outcomes."""
UNMET = 0.5
"""Factor of the weight of a comparison for which there are no edits."""
LEAST = 1e-3
"""The least weight of a step."""
ATTEMPTS = 400
"""The most programs in a row that may be known or fail to run."""
_START = """\
import math
import operator
import torch
import torch.nn.functional as F
from torch import nn


class Program(nn.Module):
    def forward(self, x):
        return x


def build():
    torch.default_generator.manual_seed(0)
    module = Program().eval()
    for tensor in module.state_dict().values():
        if tensor.is_floating_point() and tensor.dim() == 1:
            tensor.uniform_(0.1, 1.5)
    return module


def inputs():
    return (torch.arange({count}.0).add(1).sin().reshape({shape}),), {{}}
"""
_SHAPES = ((2, 4, 6), (4, 4), (2, 4, 6, 6))


def starts() -> Iterator[Program]:
    """Yield programs that return their input, of several ranks."""
    for shape in _SHAPES:
        program = running(_START.format(count=torch.Size(shape).numel(), shape=shape))
        assert program is not None, "a program that returns its input runs"
        yield program


def growths(
    reached: Mapping[str, frozenset[Any]],
    operations: Sequence[Any],
    random: Random,
    compared: Callable[[str], Sequence[Mismatch]],
    conditions: Mapping[tuple[str, int], Sequence[Point]] = MappingProxyType({}),
) -> Iterator[Program]:
    """Yield ever new programs: the shortest ones at the frontier, with one more operation in them.

    Args:
        reached: the points that the pass reaches, by the texts of programs; the caller updates it.
        operations: functions, names of methods and classes of modules.
        random: the source of decisions.
        compared: returns the pass's mismatches on a program, given its text with one call a line.
        conditions: the outcomes of the pass's conditions, by file and line.
    """
    growth = _Growth(reached, operations, random, functools.lru_cache(256)(compared), conditions)
    failures = 0
    while reached and failures < ATTEMPTS:
        point, parent = growth.parent()
        if parent not in growth.cut:
            growth.cut.add(parent)
            for program in itertools.islice(cuts(parent), MOST_CUTS):
                yield program
                if point in reached.get(program.source, ()):
                    break
        text, chosen = growth.step(parent)
        failures += 1
        if text and text not in growth.tried and (program := running(text)) is not None:
            failures = 0
            yield program
        growth.learn(chosen, text)
        growth.tried.add(text)


class _Growth:
    """The state of growth: the programs that were tried, and the weights of steps."""

    def __init__(
        self,
        reached: Mapping[str, frozenset[Any]],
        operations: Sequence[Any],
        random: Random,
        compared: Callable[[str], Sequence[Mismatch]],
        conditions: Mapping[tuple[str, int], Sequence[Point]],
    ) -> None:
        self._reached, self._operations = reached, operations
        self._conditions = conditions
        self._random, self._compared = random, compared
        self._observed = functools.lru_cache(64)(_flat)
        self._known, self._parents, self._counts = 0, [[(None, "")]], Counter[Any]()
        self._met = set[Any]().union(*reached.values())
        self._useful: dict[Any, float] = dict.fromkeys(operations, 1.0)
        self._asked = Counter[Any]()
        self.tried = set(reached)
        """Texts of programs."""
        self.cut = set[str]()
        """Programs whose parts were tried."""

    def parent(self) -> tuple[Any, str]:
        """Return a point and a program that reaches it."""
        reached = self._reached
        if len(reached) != self._known:
            new = itertools.islice(reached, self._known, None)
            self._counts.update(point for text in new for point in reached[text])
            self._known, self._parents = len(reached), _parents(reached, self._counts, self._is_frontier)
        return self._random.choice(self._random.choice(self._parents))

    def step(self, parent: str) -> tuple[str, Any]:
        """Return the text of a program after one step, or an empty one, and the step's operation or comparison."""
        observed, random = self._observed(parent), self._random
        if observed is None:
            return "", None
        edits, chosen = None, None
        if random.random() < COMPARED:
            edits, chosen = self._agreement(observed)
        if edits is None:
            chosen = None
            if self._operations:
                (chosen,) = random.choices(self._operations, [self._useful[each] for each in self._operations])
            edits = _growth(observed, chosen, random)
        return "" if edits is None else written(without_unused(edited(observed.tree, edits))), chosen

    def _agreement(self, observed: Observed) -> tuple[Edits | None, Any]:
        """Return edits that give a program a value that the pass compares it with, and the comparison."""
        comparisons: dict[Any, list[Mismatch]] = {}
        for mismatch in self._compared(written(observed.tree)):
            comparisons.setdefault(mismatch.comparison, []).append(mismatch)
            self._useful.setdefault(mismatch.comparison, 1.0)
        self._asked.update(comparisons.keys())
        for _ in range(REDRAWN if comparisons else 0):
            # a comparison that few programs reach comes late in the code of the pass
            weights = [
                self._useful[each] / self._asked[each] * (1.0 if any(map(self._is_open, several)) else MET)
                for each, several in comparisons.items()
            ]
            (chosen,) = self._random.choices(list(comparisons), weights)
            if edits := agreed(observed, self._random.choice(comparisons[chosen]), self._operations, self._random):
                return edits, chosen
            self._useful[chosen] = max(LEAST, self._useful[chosen] * UNMET)
        return None, None

    def _is_frontier(self, path: tuple[Point, int]) -> bool:
        """Return whether a point is an outcome of a condition that had no other outcome when called from there."""
        point, caller = path
        other = point._replace(outcome=not point.outcome)
        ways = self._conditions.get((point.file, point.line), ()) if point.outcome is not None else ()
        return other in ways and (other, caller) not in self._met

    def _is_open(self, mismatch: Mismatch) -> bool:
        """Return whether the condition of a comparison had one outcome only when called from there."""
        file, line, caller = mismatch.condition
        ways = self._conditions.get((file, line), ())
        return not ways or any((way, caller) not in self._met for way in ways)

    def learn(self, chosen: Any, text: str) -> None:
        """Raise the weight of the chosen step if it led to a program that reaches something new; lower it otherwise."""
        new = self._reached.get(text, frozenset()) - self._met
        self._met |= new
        if chosen is not None:
            factor = REWARD if new else DECAY
            self._useful[chosen] = min(1.0, max(LEAST, self._useful[chosen] * factor))


def _flat(text: str) -> Observed | None:
    """Return a program with each call, and each tensor of the module, on a line of its own."""
    return Observed.of(written(flattened(ast.parse(text), state=True)), "eval")


def _parents(
    reached: Mapping[str, frozenset[Any]], counts: Mapping[Any, int], is_frontier: Callable[[Any], bool]
) -> list[list[tuple[Any, str]]]:
    """Return points at the frontier and the rarest points, each with some of the shortest programs that reach it.

    The programs have several ranks, since a pass may require one.
    """
    rarest = sorted(counts, key=lambda point: (counts[point], str(point)))
    texts = sorted(reached, key=len)
    kinds = ([point for point in rarest if is_frontier(point)], rarest)
    return [
        [
            (point, text)
            for point in points[:RAREST]
            for text in itertools.islice((text for text in texts if point in reached[text]), SHORTEST)
        ]
        for points in kinds
        if points
    ] or [[(None, text) for text in texts[:SHORTEST]]]  # nothing is known if other code traces


def _growth(observed: Observed, operation: Any, random: Random) -> Edits | None:
    """Return edits that put an operation before a reader of a value, read another value there, or change an argument.

    Or they leave all but one value out.
    """
    body = (*observed.lines, observed.call.forward.body[-1])
    parts = [(line, part) for line in body for part in ast.walk(line) if isinstance(part, ast.Name)]
    places = [(line, part) for line, part in parts if isinstance(part.ctx, ast.Load) and part.id in observed.values]
    if not places:
        return None
    line, place = random.choice([*places, *places[-1:] * 2])
    match random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
        case "value":
            return {place: [name_of(random.choice(list(observed.values)))]}
        case "copy":
            before = observed.lines_before(line)
            deep = bool(random.randrange(2))
            return copied(observed, line, place, random.choice(before), with_sources=deep) if before else None
        case "argument":
            changes = [change.edits for change in argument_variations(observed)]
            return random.choice(changes) if changes else None
        case "state":
            by_name: dict[str, list[Edits]] = {}
            for change in module_variations(observed):
                by_name.setdefault(change.name, []).append(change.edits)
            return random.choice(random.choice(list(by_name.values()))) if by_name else None
        case "part":  # a program with a single value that goes as far grows faster
            parts = list(slices(observed.call.forward))
            return random.choice(parts) if parts else None
        case _:
            values = observed.values[place.id]
            if isinstance(values, tuple | list) and values and random.randrange(2):
                return {place: [expression(f"{place.id}[{random.randrange(len(values))}]")]}
            return None if operation is None else operated(observed, [(line, place)], choices_for(operation), random)
