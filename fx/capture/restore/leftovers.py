"""Remnants of a capture that were not recorded: traced values are removed, replacements become originals again.

Traced values get into registries of libraries, and into caches that are written in C. The value before the capture is
not known there, so that the place is left empty, as before the first call of the program. Replacements get into modules
that the program imports while it is captured.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from operator import is_
from types import CellType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType, TracebackType
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from fx.capture.restore.places import (
    ABSENT,
    CACHE,
    CHANGEABLE,
    CONTAINERS,
    ENTRIES,
    PLAIN,
    Place,
    is_of_library,
    places_of,
)
from fx.proxy import Proxy

_SYMBOLIC = (Proxy, FakeTensor, FunctionalTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_SEARCHED = (*CHANGEABLE, tuple, frozenset, functools.partial, MethodType, CellType)
_NOT_SEARCHED = (torch.Tensor, torch.nn.Module, ModuleType, FunctionType, type, CACHE)
_MOST_INSIDE = 500
"""The maximal number of values that are searched inside one value for a traced value."""
_PASSED_ON = (tuple, frozenset, functools.partial, MethodType, Proxy)
"""Classes of containers that are removed whole if they hold a value to be removed."""
_RUNNING = (FrameType, TracebackType)
_MOST_WAVES = 6
_REBUILT: dict[Any, Callable[[Any], Any]] = {
    tuple: tuple,
    frozenset: frozenset,
    staticmethod: lambda parts: staticmethod(*parts),
    classmethod: lambda parts: classmethod(*parts),
}
"""Classes of immutable values, each with a function that makes one from other parts."""
_MOST_VALUES = 20_000
"""The maximal number of values of one imported module that are examined."""


# Traced values.


def take_out_traced(tracer: Any) -> list[GeneratorType[Any, Any, Any]]:
    """Remove the values of a tracer, except those that it holds itself. Return the generators that still hold some.

    All objects are searched for those that refer to some. A search of the young objects would be faster, but would hold
    tuples that other threads are making, which Python then fails to complete.
    """
    values = [value for value in gc.get_referrers(tracer) if issubclass(type(value), Proxy)]
    return take_out(values, [vars(tracer), *vars(tracer).values()]) if values else []


def take_out(values: Collection[Any], others: Iterable[Any] = ()) -> list[GeneratorType[Any, Any, Any]]:
    """Remove values from all objects that refer to them but ``others``. Return the generators that still hold some."""
    removed: dict[int, Any] = {id(value): value for value in values}
    visited: dict[int, Any] = {id(value): value for value in others}
    generators: list[GeneratorType[Any, Any, Any]] = []
    wave: list[Any] = list(values)
    for own in (values, removed, visited, generators):
        visited[id(own)] = own
    for _ in range(_MOST_WAVES):
        if not wave:
            break
        visited[id(wave)] = wave
        following: list[Any] = []
        for holder in gc.get_referrers(*wave):
            if id(holder) in visited or id(holder) in removed or isinstance(holder, _RUNNING):
                continue
            if issubclass(type(holder), _PASSED_ON):
                removed[id(holder)] = holder
                following.append(holder)
            elif isinstance(holder, GeneratorType):
                generators.append(holder)
            else:
                visited[id(holder)] = holder
                with suppress(Exception):  # a class may define its attributes itself
                    for place in _places_referring(holder):
                        place.substitute(lambda part: ABSENT if id(part) in removed else part)
        wave = following
    visited.clear()  # it holds itself, and the known values
    return generators


def _places_referring(holder: Any) -> list[Place]:
    """Return the places of an object that refers to a value; for the dictionary of a class, the names of the class."""
    if type(holder) is dict and "__module__" in holder:  # a class caches attributes that were read from it
        owners = (referrer for referrer in gc.get_referrers(holder) if isinstance(referrer, type))
        of_class = [
            places_of(referrer)
            for referrer in owners
            if any(referent is holder for referent in gc.get_referents(referrer))
        ]
        return of_class[0] if of_class else [Place(ENTRIES, holder)]
    return places_of(holder)


def is_left(value: Any) -> bool:
    """Return whether a value is traced or fake, so that eager code cannot use it, or holds such a value."""
    visited: dict[int, Any] = {}
    pending = [value]
    for current in pending:
        kind = type(current)
        if kind in PLAIN or id(current) in visited or len(visited) > _MOST_INSIDE:
            continue
        if issubclass(kind, _SYMBOLIC):
            return True
        visited[id(current)] = current
        if issubclass(kind, _SEARCHED) or not (is_of_library(kind) or isinstance(current, _NOT_SEARCHED)):
            pending += gc.get_referents(current)
    return False


def clean(holder: Any) -> None:
    """Remove such values from a holder that is not restored: a cache of ``functools``, or an object of Python."""
    places = places_of(holder)
    one_by_one = () if isinstance(holder, CACHE) else CHANGEABLE
    for place in list(places):
        places += [inner for _, value in place.read() if isinstance(value, one_by_one) for inner in places_of(value)]
    for place in places:
        place.substitute(lambda part: ABSENT if not isinstance(part, one_by_one) and is_left(part) else part)


# Replacements.


def latest_module() -> str | None:
    """Return the name of the module that was imported last."""
    return next(reversed(sys.modules), None)


def put_back_in_modules_after(latest: str | None, originals: Mapping[int, Any]) -> None:
    """Put originals, by the ids of their replacements, into modules imported after ``latest``."""
    names = itertools.takewhile(lambda name: name != latest, reversed(list(sys.modules)))
    for module in [sys.modules.get(name) for name in names]:
        if type(module) is ModuleType:
            _Originals(module.__name__, originals).of(vars(module))


class _Originals:
    """The values of one module with originals in place of replacements."""

    def __init__(self, module: str, originals: Mapping[int, Any]) -> None:
        self._module = module
        self._originals = originals
        self._seen: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """Return a value with originals in it; a mutable value is changed itself."""
        original = self._originals.get(id(value), ABSENT)
        if original is not ABSENT:
            return original
        if id(value) in self._seen or len(self._seen) > _MOST_VALUES:
            return value
        self._seen[id(value)] = value
        kind = type(value)
        if kind in _REBUILT:
            parts = list(value) if kind in (tuple, frozenset) else [value.__func__]
            others = list(map(self.of, parts))
            return value if all(map(is_, parts, others)) else _REBUILT[kind](others)
        if self._is_of_module(value):
            for place in places_of(value):
                place.substitute(self.of)
            for cell in getattr(value, "__closure__", None) or () if kind is FunctionType else ():
                self.of(cell)
        return value

    def _is_of_module(self, value: Any) -> bool:
        kind = type(value)
        if kind in CONTAINERS or kind in (functools.partial, CellType):
            return True
        # without a call of an object that claims to be of another class
        home = value if issubclass(kind, (type, FunctionType)) else kind
        return getattr(home, "__module__", None) == self._module
