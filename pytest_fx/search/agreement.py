"""Edits that give a program what a pass compares it with (see :mod:`pytest_fx.search.comparisons`)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import nn

from pytest_fx.generation.bias import choices_for
from pytest_fx.generation.productions import spell, spell_index
from pytest_fx.generation.spelled_targets import path_of
from pytest_fx.search.argument_variations import signatures_of
from pytest_fx.search.comparisons import NODES, Mismatch, Place
from pytest_fx.search.growth_steps import copied, operated
from pytest_fx.search.observed import Observed, called_by, is_named
from pytest_fx.search.simplifications import lines_making_tensors, of_sizes, tensors_in
from pytest_fx.search.syntax import Edits, expression, index_of, name_of, stored, uses_of

_CALLS = {"call_module": type, "call_method": str}
_GIVEN = {"placeholder": Observed.with_input, "get_attr": Observed.with_tensor}
"""Edits by which a value becomes another one that no operation computes, by the kind of its node."""
_EXAMPLES: dict[Any, Any] = {
    int: 2,
    float: 0.5,
    bool: True,
    str: "sum",
    tuple: (1, 2),
    list: [1, 2],
    slice: slice(0, 2),
}
"""A value of each type of constants."""


def agreed(seen: Observed, mismatch: Mismatch, operations: Sequence[Any], random: Random) -> Edits | None:
    """Return edits after which a value is equal to what the pass compares it with, if there are some."""
    lines = [line for place in mismatch.places for line in _lines_at(seen, place)]
    several = [readers for place in mismatch.places if (readers := _readers(seen, place))]
    readers = random.choice(several) if several else []
    if mismatch.aspect == "op" and mismatch.wanted in _GIVEN:
        tensors = [use for _, use in readers if isinstance(seen.values[use.id], torch.Tensor)]
        return _GIVEN[mismatch.wanted](seen, random.choice(tensors)) if tensors else None
    if mismatch.aspect in ("op", "target") or _is_layer(mismatch.wanted):
        wanted = _operations(mismatch, operations)
        if not wanted or not readers:
            return None
        readers, operation = readers if random.randrange(2) else [random.choice(readers)], random.choice(wanted)
        text = _of_same_shape(seen, readers[0][1], operation) if random.randrange(2) else None
        if text is not None:
            return {place: [expression(text)] for _, place in readers}
        return operated(seen, readers, choices_for(operation), random)
    if mismatch.aspect == "users":
        others = _readers_too_many(seen, mismatch, readers)
        return copied(seen, *random.choice(others), lines[0]) if others and lines else None
    changes = list(_replaced(seen, mismatch, lines)) or list(_sized(seen, mismatch, lines))
    return random.choice(changes) if changes else None


def _readers_too_many(
    seen: Observed, mismatch: Mismatch, readers: Sequence[tuple[ast.stmt, ast.Name]]
) -> Sequence[tuple[ast.stmt, ast.Name]]:
    """Return the readers of a value beside the wanted ones, or all of them where only their number is wanted."""
    value, wanted = mismatch.value, mismatch.wanted
    if type(value) is int and type(wanted) is int:
        return readers if 0 < wanted < value else ()
    if isinstance(value, list | tuple) and isinstance(wanted, list | tuple) and 0 < len(wanted) < len(value):
        kept = {line for place in wanted if isinstance(place, Place) for line in _lines_at(seen, place)}
        return [(line, use) for line, use in readers if line not in kept] if kept else readers
    return ()


def _operations(mismatch: Mismatch, operations: Sequence[Any]) -> list[Any]:
    """Return the operations whose call has the wanted target, or is a call of the wanted kind."""
    wanted = mismatch.wanted
    if mismatch.aspect == "op":
        kind = _CALLS.get(wanted)
        others = [each for each in operations if not isinstance(each, str | type)]
        return [each for each in operations if isinstance(each, kind)] if kind else others
    parts = wanted if isinstance(wanted, tuple) else (wanted,)
    return [each for each in parts if isinstance(each, str) or _is_operation(each)]


def _of_same_shape(seen: Observed, place: ast.Name, operation: Any) -> str | None:
    """Return the call that makes a tensor of the shape of a value, for an operation that takes a shape alone."""
    value, path = seen.values.get(place.id), path_of(operation)
    if not isinstance(value, torch.Tensor) or path is None or path[1]:
        return None
    shape = tuple(value.shape)
    try:
        made = operation(shape, dtype=value.dtype)
    except Exception:  # of an operation that takes something else
        return None
    return f"{path[0]}({shape}, dtype={value.dtype})" if getattr(made, "shape", None) == shape else None


def _is_operation(wanted: Any) -> bool:
    return _is_layer(wanted) if isinstance(wanted, type) else callable(wanted)


def _is_layer(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, nn.Module)


def _name_at(seen: Observed, place: Place) -> str:
    """Return the name that holds a value."""
    if not place.line:
        return place.name
    names = [name for line in _lines_at(seen, place) for name in sorted(stored(line))]
    return names[-1] if names else ""


def _lines_at(seen: Observed, place: Place) -> list[ast.stmt]:
    body = seen.call.forward.body
    return [line for line in body if line.lineno == place.line] if place.line else []


def _readers(seen: Observed, place: Place) -> list[tuple[ast.stmt, ast.Name]]:
    """Return the lines that read a value, and where."""
    name = _name_at(seen, place)
    body = seen.call.forward.body if name in seen.values else ()
    return [(line, use) for line in body for use in uses_of(line, {name})]


def _replaced(seen: Observed, mismatch: Mismatch, lines: Sequence[ast.stmt]) -> Iterator[Edits]:
    """Yield edits of the lines, and of the constructors of their modules."""
    value, wanted = mismatch.value, mismatch.wanted
    if isinstance(wanted, Place):
        if isinstance(value, Place) and (name := _name_at(seen, wanted)):
            yield from ({place: [name_of(name)]} for _, place in _readers(seen, value))
        return
    if mismatch.is_type and wanted in _EXAMPLES:
        wanted = _EXAMPLES[wanted]
    if _is_shape(value) and _is_shape(wanted):
        yield from _shaped(seen, tuple(value), tuple(wanted))
    text = _spelled(wanted)
    for line in lines:
        if mismatch.is_type and wanted in NODES:
            text = _a_tensor_before(seen, line)
            if text is not None:  # an index is one of integers
                yield from (
                    edits
                    for part in (line, *_constructions(seen, line))
                    for edits in _constants_replaced(seen, part, value, f"{text}.long()")
                )
        for part in (line, *_constructions(seen, line)):
            if isinstance(value, tuple) and isinstance(wanted, tuple):
                yield from _arguments_replaced(seen, part, value, wanted)
            if isinstance(value, dict) and isinstance(wanted, dict):
                yield from _keywords_replaced(part, value, wanted)
            if text is None:
                continue
            if isinstance(value, Place):
                yield from ({use: [expression(text)]} for use in uses_of(part, {_name_at(seen, value)}))
            else:
                yield from _constants_replaced(seen, part, value, text)
                yield from _indices_replaced(part, value, wanted)
                yield from _ends_replaced(part, mismatch.aspect, text)
                yield from _passed(seen, part, mismatch.words, text)


def _is_shape(value: Any) -> bool:
    """Return whether a value may be the shape of a tensor."""
    return isinstance(value, tuple) and all(type(size) is int and size >= 0 for size in value)


def _shaped(seen: Observed, shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Edits]:
    """Yield each tensor of a shape with another one."""
    for line in lines_making_tensors(seen.tree, seen.call):
        for part, recipe in tensors_in(line):
            if recipe.shape == shape:
                yield {part: [expression(replace(recipe, shape=wanted).text)]}


def _sized(seen: Observed, mismatch: Mismatch, lines: Sequence[ast.stmt]) -> Iterator[Edits]:
    """Yield edits for integers and shapes that are computed from sizes or constants of the program.

    A size becomes the wanted one, and a constant changes by what lacks to it.
    """
    value, wanted = mismatch.value, mismatch.wanted
    pairs = list(zip(value, wanted, strict=False)) if _is_shape(value) and _is_shape(wanted) else [(value, wanted)]
    pairs = [(old, new) for old, new in pairs if type(old) is int and type(new) is int and old != new]
    for old, new in pairs:
        if old > 0 and new > 0:
            for part, recipe in (
                found for line in lines_making_tensors(seen.tree, seen.call) for found in tensors_in(line)
            ):
                for axis, size in enumerate(recipe.shape):
                    if size == old:
                        shape = (*recipe.shape[:axis], new, *recipe.shape[axis + 1 :])
                        yield {part: [expression(replace(recipe, shape=shape).text)]}
            yield from of_sizes(seen.tree, seen.call, lambda size, sizes: [new] if size == old else [])  # noqa: B023
        constants = (part for line in lines for part in ast.walk(line) if isinstance(part, ast.Constant))
        for part in constants:
            if type(part.value) is int:
                yield from ({part: [expression(repr(part.value + change))]} for change in (new - old, old - new))


def _a_tensor_before(seen: Observed, line: ast.stmt) -> str | None:
    """Return the name of the latest tensor before a line."""
    known = [part.name for part in seen.call.parameters]
    known += [name for each in seen.lines_before(line) for name in sorted(stored(each))]
    tensors = seen.tensors()
    return next((name for name in reversed(known) if name in tensors), None)


def _spelled(value: Any) -> str | None:
    """Return a constant as text; None for what has none."""
    text = spell(value)
    try:
        same = eval(text, {"torch": torch, "nn": nn, "inf": float("inf"), "nan": float("nan")})
    except Exception:  # whatever the text of a value raises that is no constant
        return None
    return text if type(same) is type(value) else None


def _is_same_constant(one: Any, other: Any) -> bool:
    """Return whether two values are constants of one text."""
    return type(one) is type(other) and (text := _spelled(one)) is not None and text == _spelled(other)


def _constructions(seen: Observed, line: ast.stmt) -> Iterator[ast.expr]:
    """Yield how the modules were made that a line calls."""
    for part in ast.walk(line):
        if isinstance(part, ast.Call) and (made := seen.construction(part.func)) is not None:
            yield made


def _constants_replaced(seen: Observed, part: ast.AST, value: Any, text: str) -> Iterator[Edits]:
    """Yield each constant of a value, or name of one, as another constant."""
    for each in ast.walk(part):
        if isinstance(each, ast.expr) and not isinstance(getattr(each, "ctx", None), ast.Store):
            try:
                held = seen.values[each.id] if isinstance(each, ast.Name) else ast.literal_eval(each)
            except (KeyError, ValueError, TypeError):
                continue
            if _is_same_constant(held, value):
                yield {each: [expression(text)]}


def _indices_replaced(part: ast.AST, value: Any, wanted: Any) -> Iterator[Edits]:
    """Yield subscripts with another index, or part of one, where both are constants."""
    try:
        index, other = index_of(spell_index(value)), index_of(spell_index(wanted))
    except SyntaxError:  # one of them holds a node of the program
        return
    for each in ast.walk(part):
        if not isinstance(each, ast.Subscript):
            continue
        if ast.unparse(each.slice) == ast.unparse(index):
            yield {each.slice: [other]}
        elif isinstance(each.slice, ast.Tuple):
            same = (one for one in each.slice.elts if ast.unparse(one) == ast.unparse(index))
            yield from ({one: [other]} for one in same)


def _ends_replaced(part: ast.AST, aspect: str, text: str) -> Iterator[Edits]:
    """Yield slices with another start, stop or step."""
    for each in ast.walk(part):
        if isinstance(each, ast.Slice) and aspect in _ends(each):
            ends = (expression(text) if aspect == name else end for name, end in _ends(each).items())
            yield {each: [ast.Slice(*ends)]}


def _ends(part: ast.Slice) -> dict[str, ast.expr | None]:
    """Return the parts of a slice, by the names that a slice has for them."""
    return {"start": part.lower, "stop": part.upper, "step": part.step}


def _arguments_replaced(
    seen: Observed, part: ast.AST, value: tuple[Any, ...], wanted: tuple[Any, ...]
) -> Iterator[Edits]:
    """Yield calls whose last positional arguments, of a method its object too, are others or are left out."""
    others = [_text_at(seen, each) for each in wanted]
    for call in ast.walk(part) if None not in others else ():
        given = _positional(call)
        kept = len(given) - len(value)
        if value and kept >= 0 and all(map(_is_text_of(seen), given[kept:], value)):
            yield from _with_positional(call, [*given[:kept], *(expression(text or "") for text in others)])


def _positional(call: ast.AST) -> list[ast.expr]:
    """Return the positional arguments of a call or an operator; the object of a method is the first one."""
    match call:
        case ast.Call(func=ast.Attribute(value=source) as method) if not is_named(method):
            return [source, *call.args]
        case ast.Call():
            return call.args
        case ast.BinOp():
            return [call.left, call.right]
        case _:
            return []


def _with_positional(call: ast.AST, given: list[ast.expr]) -> Iterator[Edits]:
    """Yield a call of other arguments by position, which those by keyword may be left out for."""
    match call:
        case ast.BinOp(op=sign) if len(given) == 2:
            yield {call: [ast.BinOp(given[0], sign, given[1])]}
        case ast.Call(func=ast.Attribute() as method) if given and not is_named(method):
            function = ast.Attribute(given[0], method.attr, ast.Load())
            yield from ({call: [ast.Call(function, given[1:], named)]} for named in _fewer(call.keywords))
        case ast.Call(func=function):
            yield from ({call: [ast.Call(function, given, named)]} for named in _fewer(call.keywords))
        case _:
            pass


def _fewer(keywords: list[ast.keyword]) -> list[list[ast.keyword]]:
    return [keywords, []] if keywords else [keywords]


def _is_text_of(seen: Observed) -> Callable[[ast.expr, Any], bool]:
    """Return a function that compares a part of a program with a value, by its text or by the value of a name."""

    def is_text_of(part: ast.expr, value: Any) -> bool:
        held = seen.values.get(part.id) if isinstance(part, ast.Name) else None
        return ast.unparse(part) == _text_at(seen, value) or _is_same_constant(held, value)

    return is_text_of


def _text_at(seen: Observed, value: Any) -> str | None:
    """Return a value as text, with names in the place of values of the program; None for what has none."""
    if isinstance(value, Place):
        return _name_at(seen, value) or None
    if isinstance(value, list | tuple) and any(isinstance(each, Place) for each in value):
        parts = [_text_at(seen, each) for each in value]
        end = ")" if len(parts) > 1 else ",)"
        texts = ", ".join(part or "" for part in parts)
        return None if None in parts else f"[{texts}]" if isinstance(value, list) else f"({texts}{end}"
    return _spelled(value)


def _keywords_replaced(part: ast.AST, value: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Edits]:
    """Yield calls whose arguments by keyword are others."""
    texts = {name: _spelled(each) for name, each in wanted.items()}
    for call in ast.walk(part) if None not in texts.values() else ():
        if isinstance(call, ast.Call) and value.keys() <= {each.arg for each in call.keywords}:
            kept = [each for each in call.keywords if each.arg not in {*value, *wanted}]
            named = [ast.keyword(name, expression(text or "")) for name, text in texts.items()]
            yield {call: [ast.Call(call.func, call.args, [*kept, *named])]}


def _passed(seen: Observed, part: ast.AST, words: Sequence[str], text: str) -> Iterator[Edits]:
    """Yield calls that get an argument, if a parameter has one of the names."""
    for call in ast.walk(part):
        called = called_by(seen, call) if isinstance(call, ast.Call) else None
        if called is None or not isinstance(call, ast.Call):
            continue
        parameters = {name for signature in signatures_of(called) for name in signature.parameters}
        for name in words:
            if name in parameters:
                kept = [each for each in call.keywords if each.arg != name]
                yield {call: [ast.Call(call.func, call.args, [*kept, ast.keyword(name, expression(text))])]}
