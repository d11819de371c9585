"""What a capture has left where nothing was recorded: traced values are taken out, stand-ins become originals again.

Traced values get into registries of libraries, and into caches that are written in C. The capture has put a value
there, and the one before it is not known: the place is left empty, as it is where the program has not been called yet.
Stand-ins get into modules that the program imports while it is captured.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
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
"""How many values are searched in one that may hold a traced value."""
_PASSED_ON = (tuple, frozenset, functools.partial, MethodType, Proxy)
"""Classes of what goes with a value that it holds."""
_RUNNING = (FrameType, TracebackType)
_MOST_WAVES = 6
_REBUILT: dict[Any, Callable[[Any], Any]] = {
    tuple: tuple,
    frozenset: frozenset,
    staticmethod: lambda parts: staticmethod(*parts),
    classmethod: lambda parts: classmethod(*parts),
}
"""Classes of what cannot be changed, with what makes one of other parts."""
_MOST_VALUES = 20_000
"""How many values of one imported module are looked at."""


# Traced values.


def take_out_traced(tracer: Any) -> list[GeneratorType[Any, Any, Any]]:
    """Take out the values of a tracer, but for what it holds itself. Return the generators that still hold some.

    All objects are searched for those that refer to some. A list of the young ones would be quicker, and hold tuples
    that other threads are making, which Python then fails to complete.
    """
    values = [one for one in gc.get_referrers(tracer) if issubclass(type(one), Proxy)]
    return take_out(values, [vars(tracer), *vars(tracer).values()]) if values else []


def take_out(values: Collection[Any], others: Iterable[Any] = ()) -> list[GeneratorType[Any, Any, Any]]:
    """Take values out of whatever refers to them, but for ``others``. Return the generators that still hold some."""
    known: dict[int, Any] = {id(value): value for value in values}
    seen: dict[int, Any] = {id(one): one for one in others}
    generators: list[GeneratorType[Any, Any, Any]] = []
    wave: list[Any] = list(values)
    for own in (values, known, seen, generators):
        seen[id(own)] = own
    for _ in range(_MOST_WAVES):
        if not wave:
            break
        seen[id(wave)] = wave
        following: list[Any] = []
        for holder in gc.get_referrers(*wave):
            if id(holder) in seen or id(holder) in known or isinstance(holder, _RUNNING):
                continue
            if issubclass(type(holder), _PASSED_ON):
                known[id(holder)] = holder
                following.append(holder)
            elif isinstance(holder, GeneratorType):
                generators.append(holder)
            else:
                seen[id(holder)] = holder
                with suppress(Exception):  # a class may decide itself what its attributes are
                    for place in _places_referring(holder):
                        place.substitute(lambda part: ABSENT if id(part) in known else part)
        wave = following
    seen.clear()  # it holds itself, and what is known
    return generators


def _places_referring(holder: Any) -> list[Place]:
    """Return the places of what refers to a value; of a dictionary that is behind a class, the names of the class."""
    if type(holder) is dict and "__module__" in holder:  # a class remembers what it has found there
        owners = (one for one in gc.get_referrers(holder) if isinstance(one, type))
        of_class = [places_of(one) for one in owners if any(held is holder for held in gc.get_referents(one))]
        return of_class[0] if of_class else [Place(ENTRIES, holder)]
    return places_of(holder)


def is_left(value: Any) -> bool:
    """Return whether a value means nothing to eager code, as traced and fake ones do, or holds such a value."""
    seen: dict[int, Any] = {}
    pending = [value]
    for one in pending:
        kind = type(one)
        if kind in PLAIN or id(one) in seen or len(seen) > _MOST_INSIDE:
            continue
        if issubclass(kind, _SYMBOLIC):
            return True
        seen[id(one)] = one
        if issubclass(kind, _SEARCHED) or not (is_of_library(kind) or isinstance(one, _NOT_SEARCHED)):
            pending += gc.get_referents(one)
    return False


def clean(holder: Any) -> None:
    """Take what is left out of what is not put back: a cache of ``functools``, or an object of Python's."""
    places = places_of(holder)
    one_by_one = () if isinstance(holder, CACHE) else CHANGEABLE
    for place in list(places):
        places += [inner for _, held in place.read() if isinstance(held, one_by_one) for inner in places_of(held)]
    for place in places:
        place.substitute(lambda part: ABSENT if not isinstance(part, one_by_one) and is_left(part) else part)


# Stand-ins.


def latest_module() -> str | None:
    """Return the name of the module that was imported last."""
    return next(reversed(sys.modules), None)


def put_back_in_modules_after(latest: str | None, originals: Mapping[int, Any]) -> None:
    """Put the originals of stand-ins, by the identity of these, into modules that were imported after one."""
    names = itertools.takewhile(lambda name: name != latest, reversed(list(sys.modules)))
    for module in [sys.modules.get(name) for name in names]:
        if type(module) is ModuleType:
            _Originals(module.__name__, originals).of(vars(module))


class _Originals:
    """What the values of one module are with originals in the place of stand-ins."""

    def __init__(self, module: str, originals: Mapping[int, Any]) -> None:
        self._module = module
        self._originals = originals
        self._seen: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """Return a value with originals in it; what can be changed is changed itself."""
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
            return value if all(map(operator.is_, parts, others)) else _REBUILT[kind](others)
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
        home = value if issubclass(kind, (type, FunctionType)) else kind  # and no question to what says it is another
        return getattr(home, "__module__", None) == self._module
