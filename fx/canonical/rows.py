"""Rows of the table of equal spellings, ready for use: one for each function or method, with an index."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fx.canonical.aten_rows import ATEN_ROWS
from fx.canonical.call_binding import IsTensor, Shape
from fx.canonical.equal_spellings import ROWS, Call, EqualSpellings
from fx.node import Argument


@dataclass(frozen=True, slots=True, eq=False)
class SpellingRow:
    """A row for one of its functions or methods."""

    source: Callable[..., Any] | str
    """The function, or the name of the method."""
    shape: Shape
    """The parameters of the spelling."""
    required: Mapping[str, Any]
    """Required values of arguments."""
    canonical: Callable[..., Call]
    """The function from the arguments by name to the canonical call."""
    target: Callable[..., Any]
    """The function of the canonical call."""
    names: tuple[str, ...]
    """The names of its last arguments that go by keyword, although the row has no keyword for them."""
    places: dict[str, int | str]
    """The place of each argument of the spelling in the canonical call: a position or a name."""

    def apply(self, args: tuple[Argument, ...], kwargs: dict[str, Argument], is_tensor: IsTensor) -> Call | None:
        """Return the canonical call for a call in this spelling, or None if it does not fit."""
        binding = self.shape.bind(args, kwargs, is_tensor)
        if binding is None:
            return None
        bound = binding.arguments
        for name, value in self.required.items():
            if type(bound[name]) not in (type(value), int) or bound[name] != value:
                return None
        call = self.canonical(**bound)
        count = len(call.args) - len(self.names)
        by_name = {**dict(zip(self.names, call.args[count:], strict=True)), **call.kwargs}
        return Call(self.target, call.args[:count], by_name)

    def invert(self, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> dict[str, Argument]:
        """Return the arguments in this spelling, as far as a canonical call has them."""
        by_place = {**dict(enumerate(args)), **kwargs}
        return {name: by_place[place] for name, place in self.places.items() if place in by_place}

    @property
    def fixed(self) -> dict[str, Argument]:
        """The arguments of the spelling that the canonical call lacks: their values are fixed."""
        return {**self.shape.defaults, **self.required}


class _Parameter(str):
    """The placeholder for the argument of that name when a row is read; forms of arguments return it unchanged."""

    __slots__ = ()


def _ready(row: EqualSpellings, source: Any) -> SpellingRow:
    """Return ``row`` for one of its functions or methods."""
    parameters = inspect.signature(row.canonical).parameters
    positional = tuple(name for name, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY)
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
    shape = Shape(positional, tuple(parameters), defaults, row.kinds, {}, tuples=False)
    call = row.canonical(**{name: _Parameter(name) for name in parameters})
    is_operator = getattr(call.target, "__module__", None) == "_operator"
    count = len(call.args) if is_operator else 1 if _is_method(call.target) else 0
    names = tuple(map(str, call.args[count:]))
    by_name = {**dict(zip(names, call.args[count:], strict=True)), **call.kwargs}
    placed = [*enumerate(call.args[:count]), *by_name.items()]
    places = {str(value): place for place, value in reversed(placed) if isinstance(value, _Parameter)}
    method = source.__name__ if _is_method(source) else source
    return SpellingRow(method, shape, row.only, row.canonical, call.target, names, places)


def _is_method(function: Any) -> bool:
    return getattr(torch.Tensor, function.__name__, None) is function


@functools.cache
def _rows() -> tuple[SpellingRow, ...]:
    return tuple(_ready(row, source) for row in (*ATEN_ROWS, *ROWS) for source in row.sources)


def _grouped(key_of: Callable[[SpellingRow], Any]) -> dict[Any, list[SpellingRow]]:
    """Return the rows by key; rows whose key is None are in no group."""
    groups: dict[Any, list[SpellingRow]] = {}
    for row in _rows():
        if (key := key_of(row)) is not None:
            groups.setdefault(key, []).append(row)
    return groups


@functools.cache
def rows_by_target() -> dict[int, list[SpellingRow]]:
    """Return the rows of functions, by the identity of the function; methods of ``Tensor`` are functions too."""
    return _grouped(lambda row: id(getattr(torch.Tensor, row.source) if isinstance(row.source, str) else row.source))


@functools.cache
def rows_by_canonical_function() -> dict[int, list[SpellingRow]]:
    """Return the rows by the identity of the function of their canonical call."""
    return _grouped(lambda row: id(row.target))


@functools.cache
def rows_by_method() -> dict[str, list[SpellingRow]]:
    """Return the rows of methods, by name."""
    return _grouped(lambda row: row.source if isinstance(row.source, str) else None)
