"""Programs near to those on which a pass goes further than on most: it changes them, or nearly does.

The reached lines and branches of its code show how far a pass goes (:mod:`pytest_fx.search.coverage`). A program that
reaches rare ones is varied: something is left out, an operation reads another value or gets a constant of the pass, a
dimension gets the size of another one. Recording the reached code alone is not enough. For example, one wrong pass of
the catalogue takes single results out of their tuples; it is found on none of 200 drawn programs (two seeds), but on
their variations.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import nn

from pytest_fx.generation.record import Program, load
from pytest_fx.generation.strategy import warnings_as_errors
from pytest_fx.harness.subject import in_mode
from pytest_fx.processes.memory_bound import little_memory
from pytest_fx.search.reduction import written
from pytest_fx.search.removals import slices
from pytest_fx.search.simplifications import of_sizes, tensors_in, within
from pytest_fx.search.syntax import Edits, WrittenCall, attribute_of, edited, expression, methods, stored

NEAREST = 8
"""The number of programs that are varied at a time."""
MOST_ELEMENTS = 1_000_000
"""The most elements of inputs and parameters: programs that are varied repeatedly would become ever larger."""
ATTEMPTS = 200
"""The most variations in a row that fail to run."""


def nearest(reached: Mapping[str, frozenset[Any]], most: int = NEAREST) -> list[str]:
    """Return ``most`` programs on which the rarest lines and branches are reached, those with the rarest first."""
    counts = Counter(point for points in reached.values() for point in points)

    def rarity(source: str) -> tuple[int, int, int]:
        rarest = min((counts[point] for point in reached[source]), default=len(reached))
        return rarest, -len(reached[source]), len(source)

    return sorted(reached, key=rarity)[:most]


def cuts(text: str) -> Iterator[Program]:
    """Yield programs that compute one value of a program and nothing else, short ones first."""
    tree = ast.parse(text)
    texts = dict.fromkeys(written(without_unused(edited(tree, edits))) for edits in _cut(tree))
    for each in sorted(texts, key=len):
        if each != text and (program := running(each)) is not None:
            yield program


def without_unused(tree: ast.Module) -> ast.Module:
    """Return the program without the lines of ``__init__`` that make unused attributes."""
    mentioned = Counter(part.attr for part in ast.walk(tree) if isinstance(part, ast.Attribute))
    lines = [line for init in methods(tree, "__init__") for line in init.body[1:] if attribute_of(line)]
    unused = [line for line in lines if mentioned[attribute_of(line)] <= isinstance(line, ast.Assign)]
    return edited(tree, {line: [] for line in unused})


def variations(reached: Mapping[str, frozenset[Any]], constants: Sequence[Any], random: Random) -> Iterator[Program]:
    """Yield ever new programs that run, made of the nearest ones by one to three small changes.

    Args:
        reached: the points that the pass reaches, by the texts of programs; the caller updates it.
        constants: values that arguments may become.
        random: the source of decisions.
    """
    tried, failures = set(reached), 0
    near, count = nearest(reached), len(reached)
    spelled = [(value, expression(repr(value))) for value in constants]
    kinds: tuple[Callable[[ast.Module], Iterator[Edits]], ...] = (
        _rewired,
        _longer,
        _alone,
        _resized,
        _reshaped,
        _cut,
        partial(_with_constants, constants=spelled),
        _parts,
    )
    parsed = functools.lru_cache(2 * NEAREST)(ast.parse)  # few programs are varied many times
    edits_of = functools.lru_cache(2 * NEAREST * len(kinds))(lambda kind, tree: list(kind(tree)))
    while reached and failures < ATTEMPTS:
        if len(reached) != count:
            near, count = nearest(reached), len(reached)
        tree = parsed(random.choice(near))
        for _ in range(random.choice((1, 1, 2, 3))):
            edits = edits_of(random.choice(kinds), tree)
            tree = edited(tree, random.choice(edits)) if edits else tree
        text = written(tree)
        failures += 1
        if text not in tried and (program := running(text)) is not None:
            failures = 0
            yield program
        tried.add(text)


def running(text: str, mode: str = "eval") -> Program | None:
    """Return the program of a text, or None if it does not run in a mode without a warning."""
    try:
        with little_memory():
            program = load(text, frozenset(), (), 0)
            if (
                sum(tensor.numel() for tensor in (*program.inputs.tensors, *program.module.parameters()))
                > MOST_ELEMENTS
            ):
                return None
            module = in_mode(program.build(), mode)
            _run(program, module)
            with warnings_as_errors():  # only for programs that run: torch prints warnings that come with exceptions
                _run(program, module)
            if _reads_beyond_empty(program, module):
                return None
    except Exception:  # a text that is no program may raise anything
        return None
    return program


def _run(program: Program, module: nn.Module) -> None:
    inputs = program.inputs.copies()
    with torch.no_grad():
        module(*inputs.args, **inputs.kwargs)


def _reads_beyond_empty(program: Program, module: nn.Module) -> bool:
    """Return whether an index of a program is out of range, which torch does not check in tensors without elements."""
    if all(tensor.numel() for tensor in program.inputs.tensors):
        return False
    inputs = program.inputs.copies()
    try:
        with torch.no_grad():
            inputs.map(lambda tensor: tensor.new_ones([max(1, size) for size in tensor.shape])).call(module)
    except IndexError:
        return True
    except Exception:  # a program may require the sizes that it has
        return False
    return False


def _rewired(tree: ast.Module) -> Iterator[Edits]:
    """Yield edits that replace each value that a statement reads by each other value defined before it."""
    call = WrittenCall.of(tree)
    names = [part.name for part in call.parameters] if call else []
    for statement in call.forward.body[:-1] if call else ():
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and part.id in names and isinstance(part.ctx, ast.Load):
                yield from ({part: [ast.Name(name, ast.Load())]} for name in names if name != part.id)
        names += sorted(stored(statement))


def _resized(tree: ast.Module) -> Iterator[Edits]:
    """Yield edits that make each size another size of the program: a pass may confuse two equal dimensions."""
    yield from of_sizes(tree, WrittenCall.of(tree), lambda old, sizes: sizes - {old})


def _reshaped(tree: ast.Module) -> Iterator[Edits]:
    """Yield edits that give an input a dimension of the size of another one, or a further dimension of that size."""
    call = WrittenCall.of(tree)
    inputs = dict(tensors_in(call.inputs)) if call else {}
    sizes = sorted({size for recipe in inputs.values() for size in recipe.shape})
    for part, recipe in inputs.items():
        for axis, size in itertools.product(range(len(recipe.shape)), sizes):
            for rest in (axis, axis + 1):  # before the dimension, or instead of it
                shape = (*recipe.shape[:axis], size, *recipe.shape[rest:])
                yield {part: [expression(replace(recipe, shape=shape).text)]}


def _cut(tree: ast.Module) -> Iterator[Edits]:
    """Yield each value alone, with what it needs: a short program can have more sizes than a long one."""
    call = WrittenCall.of(tree)
    return slices(call.forward) if call else iter(())


def _parts(tree: ast.Module) -> Iterator[Edits]:
    """Yield edits that leave something out, or replace an expression by one of its parts."""
    return within([tree])


def _longer(tree: ast.Module) -> Iterator[Edits]:
    """Yield lists of values with one of them twice."""
    for part in ast.walk(tree):
        if isinstance(part, ast.List) and any(isinstance(element, ast.Name) for element in part.elts):
            yield from ({element: [element, element]} for element in part.elts)


def _alone(tree: ast.Module) -> Iterator[Edits]:
    """Yield the result as a tuple of one, or each of several results as one."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Name):
            yield {part.value: [ast.Tuple([part.value], ast.Load())]}
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Tuple):
            yield from ({part.value: [ast.Tuple([each], ast.Load())]} for each in part.value.elts)


def _with_constants(tree: ast.Module, constants: Sequence[tuple[Any, ast.expr]]) -> Iterator[Edits]:
    """Yield edits to constants that the pass mentions: of the same type, or as a further argument of a call.

    A further argument is a name and the constant next to it, as in ``node.kwargs.get("mode") == "reflect"``.
    """
    pairs = itertools.pairwise(constants)
    further = [ast.keyword(name, spelled) for (name, _), (_, spelled) in pairs if str(name).isidentifier()]
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant):
            others = [each for other, each in constants if type(other) is type(part.value) and other != part.value]
            yield from ({part: [other]} for other in others)
        if isinstance(part, ast.Call):
            for added in further:
                rest = [keyword for keyword in part.keywords if keyword.arg != added.arg]
                yield {part: [ast.Call(part.func, part.args, [*rest, added])]}
