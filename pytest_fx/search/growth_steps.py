"""Steps by which a program grows: a further operation, a copy of a line, and the lines that follow from these."""

from __future__ import annotations

import ast
import copy
import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
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
"""The most values of one step."""
MOST_OTHERS = 30
"""The number of operations of the grammar that replace one."""
DRAWS = 4
"""The most draws of an operation that a pass mentions as a replacement of one."""
MOST_DRAWN = 36
"""The most draws of all of them as replacements of one."""
REDRAWN = 4
"""The number of times that a line is drawn again with other arguments."""


def copied(
    observed: Observed, line: ast.stmt, place: ast.Name, source: ast.stmt, *, with_sources: bool = False
) -> Edits | None:
    """Return edits that read, at ``place``, a copy of the value of another line, with modules of its own.

    With ``with_sources`` the lines that compute its operands are copied, too.
    """
    lines = [source]
    for each in reversed(observed.lines_before(source)) if with_sources else ():
        if not stored(each).isdisjoint(set().union(*map(loaded, lines))):
            lines.insert(0, each)
    names = iter(observed.fresh(2 * len(lines)))
    renamed: dict[str, str] = {}
    copies: list[ast.stmt] = []
    state: list[str] = []
    for each in lines:
        if not isinstance(each, ast.Assign) or not isinstance(each.targets[0], ast.Name):
            return None
        value = edited(each.value, {use: [name_of(renamed[use.id])] for use in uses_of(each.value, renamed.keys())})
        if isinstance(value, ast.Call) and (constructor := observed.construction(value.func)) is not None:
            name = next(names)
            state.append(f"self.{name} = {ast.unparse(constructor)}")
            value = ast.Call(expression(f"self.{name}"), value.args, value.keywords)
        renamed[each.targets[0].id] = next(names)
        copies.append(assigned(renamed[each.targets[0].id], value))
    edits = _with_lines([(line, place)], copies, list(renamed.values())[-1])
    return {**edits, **(observed.with_state("\n".join(state)) if state else {})}


def operated(
    observed: Observed,
    readers: Sequence[tuple[ast.stmt, ast.Name]],
    choices: Sequence[SpelledRow],
    random: Random,
    target: str = "",
) -> Edits | None:
    """Return edits that pass a value through one of some operations of the grammar, at the lines that read the value.

    For a tuple, the operation takes another value. With a ``target``, the first line is replaced by the operation.
    """
    line, place = readers[0]
    if not choices:
        return None
    names_before = {part.name for part in observed.call.parameters}.union(
        *map(stored, observed.lines_before(line)), {place.id}
    )
    copies = copy.deepcopy({name: value for name, value in observed.values.items() if name in names_before})
    values = [Value(name, value) for name, value in copies.items()]
    value = next(each for each in values if each.name == place.id)
    tensors = [each for each in values if isinstance(each.object, torch.Tensor)]
    if isinstance(value.object, tuple | list) and tensors:
        value = random.choice(tensors)
    builder = ProgramBuilder(SeededChoices(random), "Program", inner=True, values=[*values, value])
    builder.names, builder.numbers = iter(observed.fresh(MOST_NAMES)), itertools.count(_free_number(observed))
    choice = random.choice(choices)
    is_second = len(choice.row.operands) > 1 and random.randrange(2)
    first = [random.choice(values), value] if is_second else [value]
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = builder.attempt(lambda: builder.perform(choice.row, choice.spelling, first))
    if not done:
        return None
    names = [result.name for result in made(builder.lines[-1].targets)] or [place.id]  # a write has no result
    name = random.choice(names)
    if target:
        edits: Edits = {line: [*_statements(builder.lines), assigned(target, name_of(name))]}
    elif len(readers) == 1 and line in observed.lines and random.randrange(2):
        edits = _rewritten(observed, line, place, name, builder)
    else:
        edits = _with_lines(readers, _statements(builder.lines), name)
    start = observed.tree.body[0]
    return {
        start: [*statements("\n".join(f"import {name}" for name in sorted(builder.imports))), start],
        **edits,
        **(observed.with_state("\n".join(builder.state)) if builder.state else {}),
    }


def operation_variations(observed: Observed, operations: Sequence[Any]) -> Iterator[Variation]:
    """Yield each line with its operation replaced.

    The replacement is one of ``operations``, a layer that updates its buffers, or any operation of the grammar.
    """
    random, rows = Random(0), known_choices()
    any_other = [("any operation instead", [choice], "") for choice in random.sample(rows, MOST_OTHERS)]
    named = dict.fromkeys((*operations, *updating_layers()))
    mentioned = [(f"{name} instead", choices_for(each), name) for each in named if (name := name_of_operation(each))]
    draws = min(DRAWS, MOST_DRAWN // max(1, len(mentioned)))
    for line in _lines_with_value(observed):
        for name, choices, operation in (*any_other, *draws * mentioned):
            draw = partial(_instead, observed, line, choices, random)
            yield Variation(name, {}, operation=operation, draw=draw)


def name_of_operation(operation: Any) -> str:
    """Return the name of a function or class, or of a method, which is a text itself."""
    return getattr(operation, "__name__", str(operation))


def _lines_with_value(observed: Observed) -> list[ast.Assign]:
    """Return the lines that compute a value from tensors, one for each expression."""
    lines: dict[str, ast.Assign] = {}
    for line in observed.lines:
        match line:
            case ast.Assign(targets=[ast.Name()], value=value) if uses_of(value, observed.tensors().keys()):
                lines.setdefault(ast.unparse(value), line)
            case _:
                pass
    return list(lines.values())


def _instead(observed: Observed, line: ast.Assign, choices: Sequence[SpelledRow], random: Random) -> Edits | None:
    """Return edits that put one of some operations in place of that of a line, and of lines with the same expression.

    None if none of them takes the values that the line reads.
    """
    text, target = ast.unparse(line.value), ast.unparse(line.targets[0])
    edits = operated(observed, [(line, uses_of(line.value, observed.tensors().keys())[0])], choices, random, target)
    if edits is None:
        return None
    *_, call, _ = edits[line]
    for other in observed.lines:
        match other:
            case ast.Assign(targets=[ast.Name(name_of_other)], value=value) if other is not line:
                if ast.unparse(value) == text and isinstance(call, ast.Assign):
                    edits = {**edits, other: [assigned(name_of_other, call.value)]}
            case _:
                pass
    return edits


def _statements(lines: Sequence[Line]) -> list[ast.stmt]:
    return [statement for line in lines for statement in statements(str(line))]


def _rewritten(observed: Observed, line: ast.stmt, place: ast.Name, name: str, builder: ProgramBuilder) -> Edits:
    """Return edits that read another value in a line, and rewrite it and its dependents, if needed otherwise.

    Lines that cannot be rewritten are left out.
    """
    renamed: dict[str, Value] = {}
    value = next(each for each in reversed(builder.values) if each.name == name)
    edits: dict[Any, list[ast.AST]] = {}
    written_lines = 0
    for each in observed.lines[observed.lines.index(line) :]:
        uses = uses_of(each, renamed.keys())
        others = {place: value} if each is line else {use: renamed[use.id] for use in uses}
        if not others:
            continue
        target = each.targets[0] if isinstance(each, ast.Assign) else None
        if (
            not isinstance(each, ast.Assign)
            or not isinstance(target, ast.Name)
            or not _written_again(observed, each, others, builder)
        ):
            left_out: Edits = {rest: [] for rest in observed.lines[observed.lines.index(each) :]}
            return {
                **edits,
                **left_out,
                line: _statements(builder.lines) if each is line else edits[line],
                **observed.returning(value.name),
            }
        value = renamed[target.id] = builder.values[-1]
        edits[each] = [*_statements(builder.lines[written_lines:])]
        written_lines = len(builder.lines)
    return {**edits, **{use: [name_of(renamed[use.id].name)] for use in uses_of(observed.returned, renamed.keys())}}


def _written_again(
    observed: Observed, line: ast.Assign, others: Mapping[ast.Name, Value], builder: ProgramBuilder
) -> bool:
    """Append a line that reads other values, unchanged if it runs, otherwise as the grammar writes it; True if done."""
    expression_again = edited(line.value, {part: [name_of(value.name)] for part, value in others.items()})
    text = ast.unparse(expression_again)
    by_name = {value.name: value for value in builder.values}
    operands = [by_name[name] for name in sorted(loaded(expression_again)) if name in by_name]
    names = [value.name for value in operands]

    def run(objects: list[Any]) -> Any:
        return eval(text, {**NAMESPACE, "self": observed.module}, dict(zip(names, objects, strict=True)))

    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if builder.attempt(lambda: builder.append(text, operands, run) and _has_one_result(builder)):
            return True
        rows = choices_for(target) if (target := _target(observed, line.value)) is not None else ()
        first = [others.get(part, by_name.get(part.id)) for part in ast.walk(line.value) if isinstance(part, ast.Name)]
        first = [value for value in first if value is not None]
        for _ in range(REDRAWN):
            if rows and builder.attempt(lambda: _perform(builder, builder.choices.pick(rows), first)):
                return True
    return False


def _perform(builder: ProgramBuilder, choice: SpelledRow, first: Sequence[Value]) -> bool:
    return builder.perform(choice.row, choice.spelling, first) and _has_one_result(builder)


def _has_one_result(builder: ProgramBuilder) -> bool:
    return isinstance(builder.lines[-1].targets, Value)


def _target(observed: Observed, value: ast.expr) -> Any:
    """Return the operation of a line, as a pass refers to it."""
    match value:
        case ast.Call(func=ast.Attribute(attr=name)) if not is_named(value.func):
            return name
        case ast.Call():
            called = called_by(observed, value)
            return type(called) if isinstance(called, nn.Module) else called
        case _:
            return None


def _free_number(observed: Observed) -> int:
    """Return a number that no attribute of the program ends with."""
    attributes = map(attribute_of, observed.init.body)
    return 1 + max((int(match[0]) for name in attributes if (match := re.search(r"\d+$", name))), default=-1)


def _with_lines(readers: Sequence[tuple[ast.stmt, ast.Name]], lines: Sequence[ast.stmt], name: str) -> Edits:
    """Return edits that put lines before the first reader of a value, and let all readers read another value."""
    places: Edits = {place: [name_of(name)] for _, place in readers}
    first = readers[0][0]
    return {first: [*lines, edited(first, places)], **places}
