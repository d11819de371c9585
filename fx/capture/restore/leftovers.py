"""Values that a capture has handed to the program and that something still holds: they are found, and taken out.

What is recorded has been put back before. Here are the places that nobody knew of: registries of libraries, caches that
are written in C. The capture has put a value there, and the one before it is not known. The place is left empty, as it
is where the program has not been called yet.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from types import CellType, FrameType, FunctionType, GeneratorType, MethodType, ModuleType, TracebackType
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from fx.capture.restore.holders import is_of_library, slots_of
from fx.capture.restore.reach import PLAIN
from fx.proxy import Proxy

CACHE = functools._lru_cache_wrapper
"""The class of a function that ``functools.lru_cache`` or ``functools.cache`` has made."""
_SYMBOLIC = (Proxy, FakeTensor, FunctionalTensor, torch.SymInt, torch.SymFloat, torch.SymBool)
_CHANGED = (dict, list, set, deque)
_SEARCHED = (*_CHANGED, tuple, frozenset, functools.partial, MethodType, CellType)
_NOT_SEARCHED = (torch.Tensor, torch.nn.Module, ModuleType, FunctionType, type, CACHE)
_MOST_INSIDE = 500
"""How many values are searched in one that may hold a traced value."""
_PASSED_ON = (tuple, frozenset, functools.partial, MethodType, Proxy)
"""Classes of what cannot be changed, and goes with a value that it holds."""
_RUNNING = (FrameType, TracebackType)
_MOST_WAVES = 6


def take_out_traced(tracer: Any) -> list[GeneratorType[Any, Any, Any]]:
    """Take out the values of a tracer, but for what it holds itself. Return the generators that still hold some."""
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
                    _take_from(holder, known)
        wave = following
    seen.clear()  # it holds itself, and what is known
    return generators


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


def clean_holder(holder: Any) -> None:
    """Take what is left out of what is not put back: a cache of ``functools``, or an object of Python's."""
    if isinstance(holder, CACHE) and holder.cache_info().maxsize is not None:
        if any(map(is_left, gc.get_referents(holder))):
            holder.cache_clear()  # any of its entries may go at any time
        return
    is_cache = isinstance(holder, CACHE)
    for held in gc.get_referents(holder) if is_cache else (vars(holder), *vars(holder).values()):
        if isinstance(held, _CHANGED):
            values: list[Any] = [*held, *(held.values() if isinstance(held, dict) else ())]
            known = {id(value): value for value in values if is_left(value)}
            if not is_cache:  # whose elements are taken out one by one
                known = {key: value for key, value in known.items() if not isinstance(value, _CHANGED)}
            if known:
                _take_from(held, known)


def _take_from(holder: Any, known: dict[int, Any]) -> None:
    """Take known values out of one holder."""
    if isinstance(holder, dict):
        _take_entries(holder, known)
    elif isinstance(holder, (list, set, deque)):
        kind: Any = list if isinstance(holder, list) else set if isinstance(holder, set) else deque
        elements: Any = holder
        rest = [one for one in kind.__iter__(elements) if id(one) not in known]
        kind.clear(elements)
        (kind.update if kind is set else kind.extend)(elements, rest)
    elif isinstance(holder, CellType):
        del holder.cell_contents
    elif isinstance(holder, CACHE):
        holder.cache_clear()  # any of its entries may go at any time
    elif isinstance(holder, FunctionType):
        holder.__defaults__ = tuple(None if id(one) in known else one for one in holder.__defaults__ or ()) or None
    else:
        for slot in slots_of(type(holder)):
            with suppress(AttributeError):
                if id(slot.__get__(holder)) in known:
                    slot.__delete__(holder)
        if isinstance(attributes := getattr(holder, "__dict__", None), dict):
            _take_entries(attributes, known)


def _take_entries(entries: dict[Any, Any], known: dict[int, Any]) -> None:
    # by identity alone: a traced value that is a key may be equal to another one
    taken = [key for key, value in entries.items() if id(key) in known or id(value) in known]
    if any(id(key) in known for key in taken):
        rest = [(key, value) for key, value in entries.items() if id(key) not in known and id(value) not in known]
        dict.clear(entries)
        for key, value in rest:
            dict.__setitem__(entries, key, value)
        return
    owner = _class_with(entries) if taken and "__module__" in entries else None
    for key in taken:
        if owner is None:
            dict.__delitem__(entries, key)
        else:  # which remembers what it has found
            type.__delattr__(owner, key)


def _class_with(entries: dict[Any, Any]) -> type | None:
    """Return the class whose attributes a dictionary holds."""
    holders = (one for one in gc.get_referrers(entries) if isinstance(one, type))
    return next((one for one in holders if any(held is entries for held in gc.get_referents(one))), None)
