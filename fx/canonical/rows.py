"""Rows of the table of equal spellings, ready for use: parsed once, and found by function or method."""

from __future__ import annotations

import ast
import builtins
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fx.canonical.aten_rows import ATEN_ROWS
from fx.canonical.call_binding import IsTensor, Shape
from fx.canonical.equal_spellings import ROWS
from fx.node import Argument


@dataclass(frozen=True, slots=True, eq=False)
class SpellingRow:
    """One row, ready for use."""

    text: str
    """The row as it is written."""
    source: Callable[..., Any] | str
    """The function that it is about, or the name of the method."""
    shape: Shape
    """The parameters of the spelling."""
    required: dict[str, Any]
    """Values that arguments must have."""
    target: Callable[..., Any]
    """The function of the canonical call."""
    positional: tuple[Callable[[dict[str, Argument]], Argument], ...]
    """The positional arguments of the canonical call, from those of the spelling by name."""
    keywords: dict[str, Callable[[dict[str, Argument]], Argument]]
    """Its keyword arguments."""
    places: dict[str, int | str]
    """For each argument of the spelling where the canonical call has it: by position, or under a name."""

    def apply(
        self, args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor
    ) -> tuple[Callable[..., Any], tuple[Argument, ...], dict[str, Argument]] | None:
        """The canonical call for one that is spelled as the row says, or None where it does not fit."""
        binding = self.shape.bind(args, kwargs, is_tensor)
        if binding is None:
            return None
        bound = binding.arguments
        for name, value in self.required.items():
            if type(bound[name]) not in (type(value), int) or bound[name] != value:
                return None
        keywords = {name: make(bound) for name, make in self.keywords.items()}
        return self.target, tuple([make(bound) for make in self.positional]), keywords

    def invert(self, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> dict[str, Argument]:
        """Return what arguments of a call that is spelled as the row says are taken from this canonical call."""
        given = {**dict(enumerate(args)), **kwargs}
        return {name: given[place] for name, place in self.places.items() if place in given}

    @property
    def fixed(self) -> dict[str, Argument]:
        """Arguments of the spelling that the canonical call does not tell: they are always these."""
        return {**self.shape.defaults, **self.required}


def _count(number: int, value: Argument) -> Argument:
    return (value,) * number if type(value) is int else _sequence(value)


def _sequence(value: Argument) -> Argument:
    return tuple(value) if isinstance(value, (tuple, list)) else value


_ADAPTORS: dict[str, Callable[[Argument], Argument]] = {
    "single": functools.partial(_count, 1),
    "pair": functools.partial(_count, 2),
    "triple": functools.partial(_count, 3),
    "dims": functools.partial(_count, 1),
    "sequence": _sequence,
    "real": lambda value: float(value) if type(value) is int else value,
    "unless_negative": lambda value: None if value == -1 else value,
}
_KINDS_OF = {
    "dims": ("int", "ints", "none"),
    "tensor": ("known",),
    "dtype": ("literal", "dtype"),
    "device": ("literal", "device", "str", "int", "none"),
    "index": ("literal", "index"),
    **{f"size{count}": ("literal", f"size{count}") for count in (1, 2, 3)},
    **{f"sizes{count}": ("literal", f"size{count}", "none") for count in (1, 2, 3)},
}
"""Annotations of a row's parameters that name kinds of values."""
_NAMESPACES: dict[str, Any] = {
    "torch": torch,
    "F": torch.nn.functional,
    "Tensor": torch.Tensor,
    "operator": operator,
    "builtins": builtins,
    "aten": torch.ops.aten,
}


def _parse(text: str) -> SpellingRow:
    """A row from its text."""
    spelling, _, canonical = text.partition(" -> ")
    path, _, parameters = spelling.partition("(")
    namespace, _, name = path.partition(".")
    source = name if namespace == "Tensor" else operator.attrgetter(name)(_NAMESPACES[namespace])
    statement = ast.parse(f"def spelling({parameters}: return {canonical}").body[0]
    assert isinstance(statement, ast.FunctionDef)
    returned = statement.body[0]
    assert isinstance(returned, ast.Return)
    call: Any = returned.value
    space, _, called = ast.unparse(call.func).partition(".")
    function = operator.attrgetter(called)(_NAMESPACES[space])
    shape, required = _parse_parameters(statement.args)
    values = [(_name_in(one), _parse_value(one)) for one in call.args]
    keywords = {keyword.arg: _parse_value(keyword.value) for keyword in call.keywords}
    count = {"operator": len(values), "Tensor": 1}.get(space, 0)
    keywords = {**dict(values[count:]), **keywords}
    named = [*enumerate(call.args[:count]), *((_name_in(one), one) for one in call.args[count:])]
    named += [(keyword.arg, keyword.value) for keyword in call.keywords]
    places = {str(name): place for place, one in reversed(named) if (name := _name_in(one)) is not None}
    makers = tuple(make for _, make in values[:count])
    return SpellingRow(text, source, shape, required, function, makers, keywords, places)


def _parse_parameters(parameters: ast.arguments) -> tuple[Shape, dict[str, Any]]:
    every = [*parameters.args, *parameters.kwonlyargs]
    values = [*parameters.defaults, *(default for default in parameters.kw_defaults if default is not None)]
    with_default = [*parameters.args[len(parameters.args) - len(parameters.defaults) :], *parameters.kwonlyargs]
    defaults = {one.arg: ast.literal_eval(value) for one, value in zip(with_default, values, strict=True)}
    annotated = {one.arg: one.annotation for one in every if one.annotation is not None}
    kinds = {name: _KINDS_OF[kind.id] for name, kind in annotated.items() if isinstance(kind, ast.Name)}
    required = {name: ast.literal_eval(value) for name, value in annotated.items() if name not in kinds}
    positional, names = tuple(one.arg for one in parameters.args), tuple(one.arg for one in every)
    return Shape(positional, names, defaults, kinds, {}, tuples=False), required


def _name_in(expression: Any) -> Any:
    """The parameter that an argument is about, ``stride`` of ``pair(stride or kernel_size)``; None of a constant."""
    names = [one.id for one in ast.walk(expression) if isinstance(one, ast.Name)]
    return next((name for name in names if name not in (*_ADAPTORS, "torch")), None)


def _parse_value(expression: Any) -> Callable[[dict[str, Argument]], Argument]:
    if isinstance(expression, ast.Name):
        return operator.itemgetter(expression.id)
    if isinstance(expression, ast.Call):
        adapt, inner = _ADAPTORS[expression.func.id], _parse_value(expression.args[0])  # type: ignore[attr-defined]
        return lambda bound: adapt(inner(bound))
    if isinstance(expression, ast.BoolOp):
        first, second = map(_parse_value, expression.values)
        return lambda bound: second(bound) if first(bound) is None else first(bound)
    if isinstance(expression, ast.Attribute):
        constant = getattr(torch, expression.attr)
    else:
        constant = ast.literal_eval(expression)
    return lambda bound: constant


@functools.cache
def _rows() -> tuple[SpellingRow, ...]:
    return tuple(map(_parse, (*ATEN_ROWS, *ROWS)))


def _grouped(key_of: Callable[[SpellingRow], Any]) -> dict[Any, list[SpellingRow]]:
    """The rows by what ``key_of`` returns; those for which that is None are in no group."""
    found: dict[Any, list[SpellingRow]] = {}
    for row in _rows():
        if (key := key_of(row)) is not None:
            found.setdefault(key, []).append(row)
    return found


@functools.cache
def rows_by_target() -> dict[int, list[SpellingRow]]:
    """The rows about functions, by the identity of the function; methods of ``Tensor`` are functions too."""
    return _grouped(lambda row: id(getattr(torch.Tensor, row.source) if isinstance(row.source, str) else row.source))


@functools.cache
def rows_by_canonical_function() -> dict[int, list[SpellingRow]]:
    """The rows by the identity of the function of their canonical call."""
    return _grouped(lambda row: id(row.target))


@functools.cache
def rows_by_method() -> dict[str, list[SpellingRow]]:
    """The rows about methods, by name."""
    return _grouped(lambda row: row.source if isinstance(row.source, str) else None)
