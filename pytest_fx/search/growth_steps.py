"""Steps by which a program grows: a further operation, a copy of a line, and what follows from these."""

from __future__ import annotations

import ast
import copy
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from pytest_fx.generation.bias import SpelledRow, choices_for, known_choices, updating_layers
from pytest_fx.generation.productions import NAMESPACE, SeededChoices
from pytest_fx.generation.program_builder import Line, ProgramBuilder, Value, made
from pytest_fx.generation.record import seeded
from pytest_fx.search.observed import Observed, Variation, assigned, called_by, is_named, statements
from pytest_fx.search.syntax import Edits, attribute_of, edited, expression, loaded, name_of, stored, uses_of

MOST_NAMES = 20
"""Values of one step."""
MOST_OTHERS = 30
"""Operations of the grammar that stand in the place of one."""
DRAWS = 4
"""Times that an operation which a pass mentions is drawn in the place of one, at most."""
MOST_DRAWN = 36
"""Times that all of them are drawn in the place of one."""
REDRAWN = 4
"""Times that a line is drawn again with other arguments."""


def copied(
    seen: Observed, line: ast.stmt, place: ast.Name, source: ast.stmt, *, with_sources: bool = False
) -> Edits | None:
    """Read what another line computes in a copy of it, with modules of its own.

    Also in copies of the lines that compute what it reads, ``with_sources``.
    """
    lines = [source]
    for each in reversed(seen.lines_before(source)) if with_sources else ():
        if not stored(each).isdisjoint(set().union(*map(loaded, lines))):
            lines.insert(0, each)
    names = iter(seen.fresh(2 * len(lines)))
    renamed: dict[str, str] = {}
    copies: list[ast.stmt] = []
    state: list[str] = []
    for each in lines:
        if not isinstance(each, ast.Assign) or not isinstance(each.targets[0], ast.Name):
            return None
        value = edited(each.value, {use: [name_of(renamed[use.id])] for use in uses_of(each.value, renamed.keys())})
        if isinstance(value, ast.Call) and (made := seen.construction(value.func)) is not None:
            name = next(names)
            state.append(f"self.{name} = {ast.unparse(made)}")
            value = ast.Call(expression(f"self.{name}"), value.args, value.keywords)
        renamed[each.targets[0].id] = next(names)
        copies.append(assigned(renamed[each.targets[0].id], value))
    edits = _with_lines([(line, place)], copies, list(renamed.values())[-1])
    return {**edits, **(seen.with_state("\n".join(state)) if state else {})}


def operated(
    seen: Observed,
    readers: Sequence[tuple[ast.stmt, ast.Name]],
    choices: Sequence[SpelledRow],
    random: Random,
    target: str = "",
) -> Edits | None:
    """Pass a value through one of some operations of the grammar, where some lines read the value.

    Where that is a tuple, the operation takes another value. With a ``target`` that is what the first line becomes.
    """
    line, place = readers[0]
    if not choices:
        return None
    known = {part.name for part in seen.call.parameters}.union(*map(stored, seen.lines_before(line)), {place.id})
    held = [Value(name, value) for name, value in copy.deepcopy(dict(seen.values)).items() if name in known]
    value = next(each for each in held if each.name == place.id)
    tensors = [each for each in held if isinstance(each.object, torch.Tensor)]
    if isinstance(value.object, tuple | list) and tensors:
        value = random.choice(tensors)
    builder = ProgramBuilder(SeededChoices(random), "Program", inner=True, values=[*held, value])
    builder.names, builder.numbers = iter(seen.fresh(MOST_NAMES)), itertools.count(_free_number(seen))
    choice = random.choice(choices)
    is_second = len(choice.row.operands) > 1 and random.randrange(2)
    first = [random.choice(held), value] if is_second else [value]
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = builder.attempt(lambda: builder.perform(choice.row, choice.spelling, first))
    if not done:
        return None
    names = [result.name for result in made(builder.lines[-1].targets)] or [place.id]  # a write has no result
    name = random.choice(names)
    if target:
        edits: Edits = {line: [*_statements(builder.lines), assigned(target, name_of(name))]}
    elif len(readers) == 1 and line in seen.lines and random.randrange(2):
        edits = _rewritten(seen, line, place, name, builder)
    else:
        edits = _with_lines(readers, _statements(builder.lines), name)
    start = seen.tree.body[0]
    return {
        start: [*statements("\n".join(f"import {name}" for name in sorted(builder.imports))), start],
        **edits,
        **(seen.with_state("\n".join(builder.state)) if builder.state else {}),
    }


def operation_variations(seen: Observed, operations: Sequence[Any]) -> Iterator[Variation]:
    """Yield each line with another operation in the place of its own.

    It is one of some, a layer that updates its buffers, or any that the grammar has.
    """
    random, known = Random(0), known_choices()
    any_other = [("any operation instead", [choice], "") for choice in random.sample(known, MOST_OTHERS)]
    named = dict.fromkeys((*operations, *updating_layers()))
    mentioned = [(f"{name} instead", choices_for(each), name) for each in named if (name := name_of_operation(each))]
    draws = min(DRAWS, MOST_DRAWN // max(1, len(mentioned)))
    for line in _lines_with_value(seen):
        for name, choices, operation in (*any_other, *draws * mentioned):
            yield from _instead(seen, line, name, choices, random, operation)


def name_of_operation(operation: Any) -> str:
    """Return the name of a function or class, or of a method, which is a text."""
    return getattr(operation, "__name__", str(operation))


def _lines_with_value(seen: Observed) -> list[ast.Assign]:
    """Return the lines that compute a value from tensors, one of several that compute the same."""
    lines: dict[str, ast.Assign] = {}
    for line in seen.lines:
        match line:
            case ast.Assign(targets=[ast.Name()], value=value) if uses_of(value, seen.tensors().keys()):
                lines.setdefault(ast.unparse(value), line)
            case _:
                pass
    return list(lines.values())


def _instead(
    seen: Observed, line: ast.Assign, name: str, choices: Sequence[SpelledRow], random: Random, operation: str
) -> Iterator[Variation]:
    """Yield one of some operations in the place of that of a line, and of those that compute the same.

    The ``operation`` that it is by name, if the pass mentions it, is noted.
    """
    text, target = ast.unparse(line.value), ast.unparse(line.targets[0])
    edits = operated(seen, [(line, uses_of(line.value, seen.tensors().keys())[0])], choices, random, target)
    if edits is None:
        return
    *_, call, _ = edits[line]
    for other in seen.lines:
        match other:
            case ast.Assign(targets=[ast.Name(name_of_other)], value=value) if other is not line:
                if ast.unparse(value) == text and isinstance(call, ast.Assign):
                    edits = {**edits, other: [assigned(name_of_other, call.value)]}
            case _:
                pass
    yield Variation(name, edits, operation=operation)


def _statements(lines: Sequence[Line]) -> list[ast.stmt]:
    return [statement for line in lines for statement in statements(str(line))]


def _rewritten(seen: Observed, line: ast.stmt, place: ast.Name, name: str, builder: ProgramBuilder) -> Edits:
    """Read another value in a line, and write it and what follows from it again, with other arguments where needed.

    What cannot be written so is left out.
    """
    renamed: dict[str, Value] = {}
    value = next(each for each in reversed(builder.values) if each.name == name)
    edits: dict[Any, list[ast.AST]] = {}
    known = 0
    for each in seen.lines[seen.lines.index(line) :]:
        uses = uses_of(each, renamed.keys())
        others = {place: value} if each is line else {use: renamed[use.id] for use in uses}
        if not others:
            continue
        target = each.targets[0] if isinstance(each, ast.Assign) else None
        if (
            not isinstance(each, ast.Assign)
            or not isinstance(target, ast.Name)
            or not _written_again(seen, each, others, builder)
        ):
            left_out: Edits = {rest: [] for rest in seen.lines[seen.lines.index(each) :]}
            return {
                **edits,
                **left_out,
                line: _statements(builder.lines) if each is line else edits[line],
                **seen.returning(value.name),
            }
        value = renamed[target.id] = builder.values[-1]
        edits[each] = [*_statements(builder.lines[known:])]
        known = len(builder.lines)
    return {**edits, **{use: [name_of(renamed[use.id].name)] for use in uses_of(seen.returned, renamed.keys())}}


def _written_again(seen: Observed, line: ast.Assign, others: Mapping[ast.Name, Value], builder: ProgramBuilder) -> bool:
    """Append a line that reads other values, as it is if it runs, or else as the grammar writes it; return whether."""
    expression_again = edited(line.value, {part: [name_of(value.name)] for part, value in others.items()})
    text = ast.unparse(expression_again)
    known = {value.name: value for value in builder.values}
    operands = [known[name] for name in sorted(loaded(expression_again)) if name in known]
    names = [value.name for value in operands]

    def run(objects: list[Any]) -> Any:
        return eval(text, {**NAMESPACE, "self": seen.module}, dict(zip(names, objects, strict=True)))

    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if builder.attempt(lambda: builder.append(text, operands, run) and _has_one_result(builder)):
            return True
        rows = choices_for(target) if (target := _target(seen, line.value)) is not None else ()
        first = [others.get(part, known.get(part.id)) for part in ast.walk(line.value) if isinstance(part, ast.Name)]
        first = [value for value in first if value is not None]
        for _ in range(REDRAWN):
            if rows and builder.attempt(lambda: _perform(builder, builder.choices.pick(rows), first)):
                return True
    return False


def _perform(builder: ProgramBuilder, choice: SpelledRow, first: Sequence[Value]) -> bool:
    return builder.perform(choice.row, choice.spelling, first) and _has_one_result(builder)


def _has_one_result(builder: ProgramBuilder) -> bool:
    return isinstance(builder.lines[-1].targets, Value)


def _target(seen: Observed, value: ast.expr) -> Any:
    """Return the operation of a line, as a pass names it."""
    match value:
        case ast.Call(func=ast.Attribute(attr=name)) if not is_named(value.func):
            return name
        case ast.Call():
            called = called_by(seen, value)
            return type(called) if isinstance(called, nn.Module) else called
        case _:
            return None


def _free_number(seen: Observed) -> int:
    """Return a number that no attribute of the program ends with."""
    attributes = map(attribute_of, seen.init.body)
    return 1 + max((int(found[0]) for name in attributes if (found := re.search(r"\d+$", name))), default=-1)


def _with_lines(readers: Sequence[tuple[ast.stmt, ast.Name]], lines: Sequence[ast.stmt], name: str) -> Edits:
    """Return edits that put lines before the first one that reads a value, in whose place another one is read."""
    places: Edits = {place: [name_of(name)] for _, place in readers}
    first = readers[0][0]
    return {first: [*lines, edited(first, places)], **places}
