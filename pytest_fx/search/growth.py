"""Growth of programs toward a pass: each value passed through one more of the operations that the pass mentions.

A pass that needs four operators in a row does nothing on most programs. Its conditions are asked one by one, though, so
that a program with the first two of them goes further in its code than one with the first (see
:mod:`pytest_fx.search.nearness`), and can grow by the third.
"""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch

from pytest_fx.generation.bias import choices_for
from pytest_fx.generation.productions import SeededChoices
from pytest_fx.generation.program_builder import ProgramBuilder, Value, made
from pytest_fx.generation.record import Program, seeded
from pytest_fx.search.argument_variations import argument_variations
from pytest_fx.search.coverage import Point
from pytest_fx.search.nearness import running
from pytest_fx.search.observed import Observed, assigned, statements
from pytest_fx.search.reduction import written
from pytest_fx.search.removals import slices
from pytest_fx.search.syntax import Edits, attribute_of, edited, expression, methods, name_of, stored

RAREST = 12
"""How many of the rarest points programs grow from at a time."""
SHORTEST = 6
"""How many of the shortest programs that reach a point are grown."""
WEIGHTS = {"operation": 4, "value": 1, "copy": 1, "argument": 2, "part": 2}
"""The steps of growth, by their weights: an operation, another value, a copy of a line, another argument, a cut."""
REWARD, DECAY = 8.0, 0.9
"""Factors of the weight of an operation, after it led to something new and after it did not."""
MOST_NAMES = 20
"""Values of one step."""
ATTEMPTS = 400
"""Programs in a row that may fail to run, or be known."""
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
    is_frontier: Callable[[Point], bool],
    operations: Sequence[Any],
    random: Random,
) -> Iterator[Program]:
    """Yield ever new programs: the shortest ones at the frontier, with one more operation in them.

    Args:
        reached: what the pass reaches, for the texts of programs; whoever tries what is yielded adds to it.
        is_frontier: whether a point is one way of a condition that no program made go the other way.
        operations: functions, names of methods and classes of modules.
        random: decides.
    """
    tried, failed, observed = set(reached), 0, functools.lru_cache(64)(Observed.of)
    known, parents = 0, [[""]]
    useful, met = dict.fromkeys(operations, 1.0), set[Any]().union(*reached.values())
    while reached and failed < ATTEMPTS:
        if len(reached) != known:
            known, parents = len(reached), _parents(reached, is_frontier)
        seen = observed(random.choice(random.choice(parents)), "eval")
        operation = random.choices(list(useful), list(useful.values()))[0] if useful else None
        edits = None if seen is None else _growth(seen, operation, random)
        text = "" if seen is None or edits is None else written(_without_unused(edited(seen.tree, edits)))
        failed += 1
        if text and text not in tried and (program := running(text)) is not None:
            failed = 0
            yield program
            new = reached.get(program.source, frozenset()) - met
            met |= new
            if operation is not None:
                useful[operation] = min(1.0, useful[operation] * (REWARD if new else DECAY))
        tried.add(text)


def _parents(reached: Mapping[str, frozenset[Any]], is_frontier: Callable[[Point], bool]) -> list[list[str]]:
    """Return some of the shortest programs at the frontier, and of those that reach the rarest points.

    They are of several ranks, as a pass asks for one.
    """
    counts = Counter(point for points in reached.values() for point in points)
    rarest = sorted(counts, key=lambda point: (counts[point], str(point)))
    texts = sorted(reached, key=len)
    kinds = ([point for point in rarest if is_frontier(point[0])], rarest)
    return [
        [
            text
            for point in points[:RAREST]
            for text in itertools.islice((text for text in texts if point in reached[text]), SHORTEST)
        ]
        for points in kinds
        if points
    ]


def _without_unused(tree: ast.Module) -> ast.Module:
    """Return the program without the lines of ``__init__`` that make what nothing mentions."""
    mentioned = Counter(part.attr for part in ast.walk(tree) if isinstance(part, ast.Attribute))
    lines = [line for init in methods(tree, "__init__") for line in init.body[1:] if attribute_of(line)]
    unused = [line for line in lines if mentioned[attribute_of(line)] <= isinstance(line, ast.Assign)]
    return edited(tree, {line: [] for line in unused})


def _growth(seen: Observed, operation: Any, random: Random) -> Edits | None:
    """Put an operation between a value and a line that reads it, or read another value there, or change an argument.

    Or leave all but one value out.
    """
    body = (*seen.lines, seen.call.forward.body[-1])
    parts = [(line, part) for line in body for part in ast.walk(line) if isinstance(part, ast.Name)]
    places = [(line, part) for line, part in parts if isinstance(part.ctx, ast.Load) and part.id in seen.values]
    if not places:
        return None
    line, place = random.choice([*places, *places[-1:] * 2])
    match random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
        case "value":
            return {place: [name_of(random.choice(list(seen.values)))]}
        case "copy":
            return _copied(seen, line, place, random)
        case "argument":
            changes = [change.edits for change in argument_variations(seen)]
            return random.choice(changes) if changes else None
        case "part":  # where one of one value goes as far, it grows faster
            parts = list(slices(seen.call.forward))
            return random.choice(parts) if parts else None
        case _:
            return None if operation is None else _operated(seen, line, place, operation, random)


def _copied(seen: Observed, line: ast.stmt, place: ast.Name, random: Random) -> Edits | None:
    """Read what another line computes in a copy of it, with modules of its own."""
    lines = [
        each
        for each in seen.lines_before(line)
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    ]
    if not lines:
        return None
    copied, names = random.choice(lines), seen.fresh(2)
    value, state = copied.value, ""
    if isinstance(value, ast.Call) and (made := seen.construction(value.func)) is not None:
        state = f"self.{names[1]} = {ast.unparse(made)}"
        value = ast.Call(expression(f"self.{names[1]}"), value.args, value.keywords)
    edits = _with_lines(line, place, [assigned(names[0], value)], names[0])
    return {**edits, **(seen.with_state(state) if state else {})}


def _operated(seen: Observed, line: ast.stmt, place: ast.Name, operation: Any, random: Random) -> Edits | None:
    """Pass a value through an operation, as the grammar writes it; of several values also take one."""
    values = seen.values[place.id]
    if isinstance(values, tuple | list) and values and random.randrange(2):
        return {place: [expression(f"{place.id}[{random.randrange(len(values))}]")]}
    rows = choices_for(operation)
    if not rows:
        return None
    known = {part.name for part in seen.call.parameters}.union(*map(stored, seen.lines_before(line)), {place.id})
    held = [Value(name, value) for name, value in copy.deepcopy(dict(seen.values)).items() if name in known]
    value = next(each for each in held if each.name == place.id)
    builder = ProgramBuilder(SeededChoices(random), "Program", inner=True, values=[*held, value])
    builder.names, builder.numbers = iter(seen.fresh(MOST_NAMES)), itertools.count(_free_number(seen))
    choice = random.choice(rows)
    is_second = len(choice.row.operands) > 1 and random.randrange(2)
    first = [random.choice(held), value] if is_second else [value]
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = builder.attempt(lambda: builder.perform(choice.row, choice.spelling, first))
    if not done:
        return None
    names = [result.name for result in made(builder.lines[-1].targets)] or [place.id]  # a write has no result
    more = [statement for each in builder.lines for statement in statements(str(each))]
    start = seen.tree.body[0]
    return {
        start: [*statements("\n".join(f"import {name}" for name in sorted(builder.imports))), start],
        **_with_lines(line, place, more, random.choice(names)),
        **(seen.with_state("\n".join(builder.state)) if builder.state else {}),
    }


def _free_number(seen: Observed) -> int:
    """Return a number that no attribute of the program ends with."""
    attributes = map(attribute_of, seen.init.body)
    return 1 + max((int(found[0]) for name in attributes if (found := re.search(r"\d+$", name))), default=-1)


def _with_lines(line: ast.stmt, place: ast.Name, lines: Sequence[ast.stmt], name: str) -> Edits:
    """Return edits that put lines before one that reads a value, in whose place it reads another one."""
    return {line: [*lines, edited(line, {place: [name_of(name)]})]}
