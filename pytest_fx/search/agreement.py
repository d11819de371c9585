"""Edits that give a program the values that a pass compares it with (see :mod:`pytest_fx.search.comparisons`)."""

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
from pytest_fx.search.observed import Observed, called_by, is_named, statements
from pytest_fx.search.simplifications import lines_making_tensors, of_sizes, tensors_in
from pytest_fx.search.syntax import Edits, attribute_of, expression, index_of, name_of, stored, uses_of

_CALLS = {"call_module": type, "call_method": str}
_GIVEN = ("placeholder", "get_attr")
"""The kinds of nodes of values that no operation computes."""
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


def agreed(observed: Observed, mismatch: Mismatch, operations: Sequence[Any], random: Random) -> Edits | None:
    """Return edits that make a value equal to the one that the pass compares it with, if there are some."""
    lines = [line for place in mismatch.places for line in _lines_at(observed, place)]
    several = [readers for place in mismatch.places if (readers := _readers(observed, place))]
    readers = random.choice(several) if several else []
    if mismatch.aspect == "op" and mismatch.wanted in _GIVEN:
        tensors = [use for _, use in readers if isinstance(observed.values[use.id], torch.Tensor)]
        return _given(observed, mismatch.wanted, random.choice(tensors), random) if tensors else None
    if mismatch.aspect in ("op", "target") or _is_layer(mismatch.wanted):
        wanted = _operations(mismatch, operations)
        if not wanted or not readers:
            return None
        readers, operation = readers if random.randrange(2) else [random.choice(readers)], random.choice(wanted)
        text = _of_same_shape(observed, readers[0][1], operation) if random.randrange(2) else None
        if text is not None:
            return {place: [expression(text)] for _, place in readers}
        return operated(observed, readers, choices_for(operation), random)
    if mismatch.aspect == "users":
        others = _readers_too_many(observed, mismatch, readers)
        return copied(observed, *random.choice(others), lines[0]) if others and lines else None
    changes = list(_replaced(observed, mismatch, lines)) or list(_sized(observed, mismatch, lines))
    return random.choice(changes) if changes else None


def _given(observed: Observed, kind: str, place: ast.Name, random: Random) -> Edits:
    """Return edits that replace a tensor by an input, or by a parameter or a buffer."""
    if kind == "placeholder":
        return observed.with_input(place)
    return observed.with_tensor(place, buffer=bool(random.randrange(2)))


def _readers_too_many(
    observed: Observed, mismatch: Mismatch, readers: Sequence[tuple[ast.stmt, ast.Name]]
) -> Sequence[tuple[ast.stmt, ast.Name]]:
    """Return the readers of a value beside the wanted ones, or all of them if only their number is wanted."""
    value, wanted = mismatch.value, mismatch.wanted
    if type(value) is int and type(wanted) is int:
        return readers if 0 < wanted < value else ()
    if isinstance(value, list | tuple) and isinstance(wanted, list | tuple) and 0 < len(wanted) < len(value):
        wanted_lines = {line for place in wanted if isinstance(place, Place) for line in _lines_at(observed, place)}
        return [(line, use) for line, use in readers if line not in wanted_lines] if wanted_lines else readers
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


def _of_same_shape(observed: Observed, place: ast.Name, operation: Any) -> str | None:
    """Return a call that makes a tensor of a value's shape, for an operation that takes a shape alone."""
    value, path = observed.values.get(place.id), path_of(operation)
    if not isinstance(value, torch.Tensor) or path is None or path[1]:
        return None
    shape = tuple(value.shape)
    try:
        result = operation(shape, dtype=value.dtype)
    except Exception:  # the operation takes other arguments
        return None
    return f"{path[0]}({shape}, dtype={value.dtype})" if getattr(result, "shape", None) == shape else None


def _is_operation(wanted: Any) -> bool:
    return _is_layer(wanted) if isinstance(wanted, type) else callable(wanted)


def _is_layer(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, nn.Module)


def _name_at(observed: Observed, place: Place) -> str:
    """Return the name that holds a value."""
    if not place.line:
        return place.name
    names = [name for line in _lines_at(observed, place) for name in sorted(stored(line))]
    return names[-1] if names else ""


def _lines_at(observed: Observed, place: Place) -> list[ast.stmt]:
    body = observed.call.forward.body
    return [line for line in body if line.lineno == place.line] if place.line else []


def _readers(observed: Observed, place: Place) -> list[tuple[ast.stmt, ast.Name]]:
    """Return the lines that read a value, and the places where they do."""
    name = _name_at(observed, place)
    body = observed.call.forward.body if name in observed.values else ()
    return [(line, use) for line in body for use in uses_of(line, {name})]


def _replaced(observed: Observed, mismatch: Mismatch, lines: Sequence[ast.stmt]) -> Iterator[Edits]:
    """Yield edits of the lines, and of the constructors of their modules."""
    value, wanted = mismatch.value, mismatch.wanted
    if isinstance(wanted, Place):
        if isinstance(value, Place) and (name := _name_at(observed, wanted)):
            yield from ({place: [name_of(name)]} for _, place in _readers(observed, value))
        return
    if mismatch.is_type and wanted in _EXAMPLES:
        wanted = _EXAMPLES[wanted]
    if _is_shape(value) and _is_shape(wanted):
        yield from _shaped(observed, tuple(value), tuple(wanted))
    if isinstance(value, torch.dtype) and isinstance(wanted, torch.dtype):
        yield from _cast(observed, value, wanted)
    text = _spelled(wanted)
    for line in lines:
        if mismatch.is_type and wanted in NODES:
            text = _a_tensor_before(observed, line)
            if text is not None:  # an index is a tensor of integers
                yield from (
                    edits
                    for part in (line, *_constructions(observed, line))
                    for edits in _constants_replaced(observed, part, value, f"{text}.long()")
                )
        for part in (line, *_constructions(observed, line)):
            if isinstance(value, tuple) and isinstance(wanted, tuple):
                yield from _arguments_replaced(observed, part, value, wanted)
            if isinstance(value, dict) and isinstance(wanted, dict):
                yield from _keywords_replaced(part, value, wanted)
            if text is None:
                continue
            if isinstance(value, Place):
                yield from ({use: [expression(text)]} for use in uses_of(part, {_name_at(observed, value)}))
            else:
                yield from _constants_replaced(observed, part, value, text)
                yield from _indices_replaced(part, value, wanted)
                yield from _ends_replaced(part, mismatch.aspect, text)
                yield from _passed(observed, part, mismatch.words, text)


def _is_shape(value: Any) -> bool:
    """Return whether a value may be the shape of a tensor."""
    return isinstance(value, tuple) and all(type(size) is int and size >= 0 for size in value)


def _shaped(observed: Observed, shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Edits]:
    """Yield edits that give each tensor of a shape another one."""
    for line in lines_making_tensors(observed.tree, observed.call):
        for part, recipe in tensors_in(line):
            if recipe.shape == shape:
                yield {part: [expression(replace(recipe, shape=wanted).text)]}


def _cast(observed: Observed, dtype: torch.dtype, wanted: torch.dtype) -> Iterator[Edits]:
    """Yield edits that give each tensor of a dtype another one; a parameter that cannot have it becomes a buffer."""
    for line in lines_making_tensors(observed.tree, observed.call):
        for part, recipe in tensors_in(line):
            if recipe.dtype is not dtype:
                continue
            text = replace(recipe, dtype=wanted).text
            match line:
                case ast.Assign(value=ast.Call(func=ast.Attribute(attr="Parameter"))) if not wanted.is_floating_point:
                    yield {line: statements(f'self.register_buffer("{attribute_of(line)}", {text})')}
                case _:
                    yield {part: [expression(text)]}


def _sized(observed: Observed, mismatch: Mismatch, lines: Sequence[ast.stmt]) -> Iterator[Edits]:
    """Yield edits for integers and shapes that are computed from sizes or constants of the program.

    A size becomes the wanted one, and a constant changes by the difference.
    """
    value, wanted = mismatch.value, mismatch.wanted
    pairs = list(zip(value, wanted, strict=False)) if _is_shape(value) and _is_shape(wanted) else [(value, wanted)]
    pairs = [(old, new) for old, new in pairs if type(old) is int and type(new) is int and old != new]
    for old, new in pairs:
        if old > 0 and new > 0:
            for part, recipe in (
                pair for line in lines_making_tensors(observed.tree, observed.call) for pair in tensors_in(line)
            ):
                for axis, size in enumerate(recipe.shape):
                    if size == old:
                        shape = (*recipe.shape[:axis], new, *recipe.shape[axis + 1 :])
                        yield {part: [expression(replace(recipe, shape=shape).text)]}
            yield from of_sizes(observed.tree, observed.call, lambda size, sizes: [new] if size == old else [])  # noqa: B023
        constants = (part for line in lines for part in ast.walk(line) if isinstance(part, ast.Constant))
        for part in constants:
            if type(part.value) is int:
                yield from ({part: [expression(repr(part.value + change))]} for change in (new - old, old - new))


def _a_tensor_before(observed: Observed, line: ast.stmt) -> str | None:
    """Return the name of the latest tensor before a line."""
    names = [part.name for part in observed.call.parameters]
    names += [name for each in observed.lines_before(line) for name in sorted(stored(each))]
    tensors = observed.tensors()
    return next((name for name in reversed(names) if name in tensors), None)


def _spelled(value: Any) -> str | None:
    """Return a constant as text; None for a value without text."""
    text = spell(value)
    try:
        same = eval(text, {"torch": torch, "nn": nn, "inf": float("inf"), "nan": float("nan")})
    except Exception:  # the text of a value that is no constant may raise anything
        return None
    return text if type(same) is type(value) else None


def _is_same_constant(value: Any, other: Any) -> bool:
    """Return whether two values are constants with the same text."""
    return type(value) is type(other) and (text := _spelled(value)) is not None and text == _spelled(other)


def _constructions(observed: Observed, line: ast.stmt) -> Iterator[ast.expr]:
    """Yield the constructor calls of the modules that a line calls."""
    for part in ast.walk(line):
        if isinstance(part, ast.Call) and (constructor := observed.construction(part.func)) is not None:
            yield constructor


def _constants_replaced(observed: Observed, part: ast.AST, value: Any, text: str) -> Iterator[Edits]:
    """Yield edits that replace each constant of a value, or name of one, by another constant."""
    for each in ast.walk(part):
        if isinstance(each, ast.expr) and not isinstance(getattr(each, "ctx", None), ast.Store):
            try:
                constant = observed.values[each.id] if isinstance(each, ast.Name) else ast.literal_eval(each)
            except (KeyError, ValueError, TypeError):
                continue
            if _is_same_constant(constant, value):
                yield {each: [expression(text)]}


def _indices_replaced(part: ast.AST, value: Any, wanted: Any) -> Iterator[Edits]:
    """Yield edits that replace subscripts, or a part of one, by another index if both are constants."""
    try:
        index, other = index_of(spell_index(value)), index_of(spell_index(wanted))
    except SyntaxError:  # one of them contains a node of the program
        return
    for each in ast.walk(part):
        if not isinstance(each, ast.Subscript):
            continue
        if ast.unparse(each.slice) == ast.unparse(index):
            yield {each.slice: [other]}
        elif isinstance(each.slice, ast.Tuple):
            equal = (element for element in each.slice.elts if ast.unparse(element) == ast.unparse(index))
            yield from ({element: [other]} for element in equal)


def _ends_replaced(part: ast.AST, aspect: str, text: str) -> Iterator[Edits]:
    """Yield edits that give slices another start, stop or step."""
    for each in ast.walk(part):
        if isinstance(each, ast.Slice) and aspect in _ends(each):
            ends = (expression(text) if aspect == name else end for name, end in _ends(each).items())
            yield {each: [ast.Slice(*ends)]}


def _ends(part: ast.Slice) -> dict[str, ast.expr | None]:
    """Return the parts of a slice, by the names of a slice's attributes."""
    return {"start": part.lower, "stop": part.upper, "step": part.step}


def _arguments_replaced(
    observed: Observed, part: ast.AST, value: tuple[Any, ...], wanted: tuple[Any, ...]
) -> Iterator[Edits]:
    """Yield edits that replace or omit the last positional arguments of calls, with a method's object among them."""
    others = [_text_at(observed, each) for each in wanted]
    for call in ast.walk(part) if None not in others else ():
        arguments = _positional(call)
        start = len(arguments) - len(value)
        if value and start >= 0 and all(map(_is_text_of(observed), arguments[start:], value)):
            yield from _with_positional(call, [*arguments[:start], *(expression(text or "") for text in others)])


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


def _with_positional(call: ast.AST, arguments: list[ast.expr]) -> Iterator[Edits]:
    """Yield a call with other positional arguments, with and without its keywords."""
    match call:
        case ast.BinOp(op=sign) if len(arguments) == 2:
            yield {call: [ast.BinOp(arguments[0], sign, arguments[1])]}
        case ast.Call(func=ast.Attribute() as method) if arguments and not is_named(method):
            function = ast.Attribute(arguments[0], method.attr, ast.Load())
            yield from ({call: [ast.Call(function, arguments[1:], named)]} for named in _fewer(call.keywords))
        case ast.Call(func=function):
            yield from ({call: [ast.Call(function, arguments, named)]} for named in _fewer(call.keywords))
        case _:
            pass


def _fewer(keywords: list[ast.keyword]) -> list[list[ast.keyword]]:
    return [keywords, []] if keywords else [keywords]


def _is_text_of(observed: Observed) -> Callable[[ast.expr, Any], bool]:
    """Return a function that compares a part of a program with a value, by text or by a name's value."""

    def is_text_of(part: ast.expr, value: Any) -> bool:
        constant = observed.values.get(part.id) if isinstance(part, ast.Name) else None
        return ast.unparse(part) == _text_at(observed, value) or _is_same_constant(constant, value)

    return is_text_of


def _text_at(observed: Observed, value: Any) -> str | None:
    """Return a value as text, with names for values of the program; None for a value without text."""
    if isinstance(value, Place):
        return _name_at(observed, value) or None
    if isinstance(value, list | tuple) and any(isinstance(each, Place) for each in value):
        parts = [_text_at(observed, each) for each in value]
        end = ")" if len(parts) > 1 else ",)"
        texts = ", ".join(part or "" for part in parts)
        return None if None in parts else f"[{texts}]" if isinstance(value, list) else f"({texts}{end}"
    return _spelled(value)


def _keywords_replaced(part: ast.AST, value: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[Edits]:
    """Yield edits that replace keyword arguments of calls."""
    texts = {name: _spelled(each) for name, each in wanted.items()}
    for call in ast.walk(part) if None not in texts.values() else ():
        if isinstance(call, ast.Call) and value.keys() <= {each.arg for each in call.keywords}:
            rest = [each for each in call.keywords if each.arg not in {*value, *wanted}]
            named = [ast.keyword(name, expression(text or "")) for name, text in texts.items()]
            yield {call: [ast.Call(call.func, call.args, [*rest, *named])]}


def _passed(observed: Observed, part: ast.AST, words: Sequence[str], text: str) -> Iterator[Edits]:
    """Yield edits that pass an argument to calls that have a parameter of one of the names."""
    for call in ast.walk(part):
        called = called_by(observed, call) if isinstance(call, ast.Call) else None
        if called is None or not isinstance(call, ast.Call):
            continue
        parameters = {name for signature in signatures_of(called) for name in signature.parameters}
        for name in words:
            if name in parameters:
                rest = [each for each in call.keywords if each.arg != name]
                yield {call: [ast.Call(call.func, call.args, [*rest, ast.keyword(name, expression(text))])]}
