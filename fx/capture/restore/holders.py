"""Kinds of values that hold others, or a state, from one call to the next: what they were, to compare and put back."""

from __future__ import annotations

import argparse
import gc
import operator
import random
import sys
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, MutableSequence, MutableSet
from dataclasses import dataclass
from functools import partial
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch

from fx.frames import is_pythons_file

CONTAINERS = frozenset({list, dict, set, OrderedDict, defaultdict, deque, Counter})
_ABSENT: Any = object()
_HOLDERS_OF_PYTHON = (MutableMapping, MutableSequence, MutableSet, SimpleNamespace, argparse.Namespace, threading.local)
"""Classes of the standard library that are no more than what they hold; others are locks, loggers, threads."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one value was."""

    is_changed: Callable[[], bool]
    """Returns whether it is something else now."""
    restore: Callable[[], None]
    """Makes it again what it was."""
    iterator: Any = None
    """The value, where it is an iterator, which cannot be put back."""
    is_generator: bool = False
    """Whether it is a generator of random numbers."""


def kept_entries(entries: dict[Any, Any]) -> Kept:
    """Keep the entries of a dictionary, among them that of an object's attributes."""
    kind: Any = OrderedDict if isinstance(entries, OrderedDict) else dict
    keys, values = list(kind.keys(entries)), list(kind.values(entries))

    def is_changed() -> bool:
        return not (_are_same(entries, keys) and all(map(operator.is_, kind.values(entries), values)))

    def restore() -> None:
        if not _are_same(entries, keys):  # attributes of an object may be in use in other threads
            kind.clear(entries)
        for key, value in zip(keys, values, strict=True):
            kind.__setitem__(entries, key, value)

    return Kept(is_changed, restore)


def _are_same(elements: Collection[Any], saved: list[Any]) -> bool:
    return len(elements) == len(saved) and all(map(operator.is_, elements, saved))


def _kept_elements(elements: Any, kind: Any) -> Kept:
    """Keep the elements of a list, deque or set, whatever its own class makes of their methods."""
    saved = list(kind.__iter__(elements))

    def is_changed() -> bool:
        now = list(kind.__iter__(elements))
        return sorted(map(id, now)) != sorted(map(id, saved)) if kind is set else not _are_same(now, saved)

    def restore() -> None:
        kind.clear(elements)
        (kind.update if kind is set else kind.extend)(elements, saved)

    return Kept(is_changed, restore)


def kept_names(owner: dict[str, Any] | type, names: Iterable[str] | None = None) -> Kept:
    """Keep what names stand for in globals or in a class: these names, or all of a class that Python does not use."""
    held: Mapping[str, Any] = vars(owner) if isinstance(owner, type) else owner
    put: Any = type.__setattr__ if isinstance(owner, type) else dict.__setitem__
    take: Any = type.__delattr__ if isinstance(owner, type) else dict.__delitem__

    def state() -> dict[str, Any]:
        own = [name for name in list(held) if not name.startswith("__")] if names is None else names
        return {name: held.get(name, _ABSENT) for name in own}

    def differing() -> list[str]:
        now = state()
        return [name for name in {**saved, **now} if now.get(name, _ABSENT) is not saved.get(name, _ABSENT)]

    def restore() -> None:
        for name in differing():
            value = saved.get(name, _ABSENT)
            take(owner, name) if value is _ABSENT else put(owner, name, value)

    saved = state()
    return Kept(lambda: bool(differing()), restore)


def _kept_slots(value: Any, slots: list[Any]) -> Kept:
    """Keep what the slots of an object hold."""

    def state() -> list[Any]:
        return [_in_slot(slot, value) for slot in slots]

    def restore() -> None:
        for slot, held, now in zip(slots, saved, state(), strict=True):
            if now is not held:
                slot.__delete__(value) if held is _ABSENT else slot.__set__(value, held)

    saved = state()
    return Kept(lambda: not _are_same(state(), saved), restore)


def _in_slot(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:  # nothing yet
        return _ABSENT


def slots_of(kind: type) -> list[Any]:
    """The slots of a class, without those of Python's own."""
    classes = [one for one in kind.__mro__ if "__slots__" in vars(one)]
    return [slot for one in classes for slot in vars(one).values() if type(slot) is MemberDescriptorType]


def contents_of(cell: CellType) -> Any:
    """Return what a variable of an outer function holds; a value of its own where that is nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def kept_cell(cell: CellType) -> Kept:
    """Keep what a variable of an outer function holds."""

    def restore() -> None:
        if saved is not _ABSENT:
            cell.cell_contents = saved
        elif contents_of(cell) is not _ABSENT:
            del cell.cell_contents

    saved = contents_of(cell)
    return Kept(lambda: contents_of(cell) is not saved, restore)


def _kept_defaults(function: FunctionType) -> Kept:
    saved = function.__defaults__, function.__kwdefaults__

    def restore() -> None:
        function.__defaults__, function.__kwdefaults__ = saved

    return Kept(lambda: not _are_same((function.__defaults__, function.__kwdefaults__), list(saved)), restore)


def kept_of_function(function: FunctionType) -> list[Kept]:
    """Keep the attributes of a function, and the defaults of its parameters."""
    given = function.__kwdefaults__
    kept = [_kept_defaults(function), kept_entries(function.__dict__)]
    return [*kept, kept_entries(given)] if given else kept


def _kept_array(array: Any) -> Kept:
    """Keep the numbers of an array of numpy's."""
    saved = array.copy()

    def is_changed() -> bool:
        if array.shape != saved.shape:
            return True
        if array.dtype.hasobject:
            return any(one is not other for one, other in zip(array.flat, saved.flat, strict=True))
        return array.tobytes() != saved.tobytes()

    def restore() -> None:
        array[...] = saved

    return Kept(is_changed, restore)


def _kept_generator(generator: Any) -> Kept:
    """Keep the state of a generator of random numbers, of Python's or numpy's."""

    def state() -> Any:
        if isinstance(generator, random.Random):
            return generator.getstate()
        return generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state()

    def restore() -> None:
        if isinstance(generator, random.Random):
            generator.setstate(saved)
        elif hasattr(generator, "bit_generator"):
            generator.bit_generator.state = saved
        else:
            generator.set_state(saved)

    saved = state()
    return Kept(lambda: repr(state()) != repr(saved), restore, is_generator=True)


def generator_of(value: Any) -> Any:
    """Return the generator of random numbers, of Python's or numpy's, that a value is, or draws from when it is called.

    >>> import random
    >>> generator_of(partial(random.random)) is random.seed.__self__, generator_of(len)
    (True, None)
    """
    while type(value) is partial:
        value = value.func
    if type(value) in (MethodType, BuiltinMethodType):
        value = value.__self__
    numpy_random: Any = sys.modules.get("numpy.random")
    kinds = () if numpy_random is None else (numpy_random.Generator, numpy_random.RandomState)
    return value if isinstance(value, (random.Random, *kinds)) else None


DRAWING = "cannot draw random numbers in Python, or seed a generator, while a program is captured"
WHY_NO_DRAWING: dict[str, Any] = {
    "why": "what is drawn now would be a constant of the program, and the state of the generator is everybody's",
    "remedy": "draw with torch.rand and the like, which are recorded, or mark the function with fx.wrap",
}


def _kept_iterator(iterator: Any) -> Kept:
    """Keep how far an iterator has come, as far as it shows."""

    def place() -> Any:
        if isinstance(iterator, GeneratorType):
            frame = iterator.gi_frame
            return frame and (frame.f_lasti, {name: id(value) for name, value in frame.f_locals.items()})
        text = repr(iterator) if type(iterator).__module__ == "itertools" else ""
        return operator.length_hint(iterator, -1), text

    saved = place()
    return Kept(lambda: place() != saved, lambda: None, iterator)


Held = tuple[list[Kept], Iterable[Any]]
"""What a value was, and what is in it."""
_NOTHING: Held = ([], ())


def held_by(value: Any) -> Held:
    """Return what a value was, to compare and to put back, and what is in it, which may change by itself."""
    bases: tuple[Any, ...] = (dict, list, set, deque)
    for kind in bases:
        if isinstance(value, kind):
            own: Held = ([], ()) if type(value).__module__ in ("builtins", "collections") else _of_object(value)
            inside: list[Any] = list(kind.values(value) if kind is dict else kind.__iter__(value))
            kept = kept_entries(value) if kind is dict else _kept_elements(value, kind)
            return [kept, *own[0]], [*inside, *own[1]]
    if isinstance(value, (tuple, frozenset)):
        return [], value
    if (generator := generator_of(value)) is not None:
        return _NOTHING if isinstance(generator, random.SystemRandom) else ([_kept_generator(generator)], ())
    if isinstance(value, MethodType):
        return [], (value.__self__, value.__func__)
    if isinstance(value, partial):
        return [kept_entries(value.keywords)], (value.func, *value.args, *value.keywords.values())
    if isinstance(value, weakref.ref):
        return [], (value(),)
    if isinstance(value, MappingProxyType):
        return [], gc.get_referents(value)
    if type(value).__module__.startswith("numpy"):
        return _of_numpy(value)
    if isinstance(value, (ModuleType, FunctionType, type)):
        return _NOTHING
    if hasattr(type(value), "__next__"):
        return [_kept_iterator(value)], ()
    return _of_object(value)


def _of_numpy(value: Any) -> Held:
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray):
        return [_kept_array(value)], value.flat if value.dtype.hasobject else ()
    return _NOTHING


def _of_object(value: Any) -> Held:
    """Of an object, its attributes; of a tensor, those that it has beside what every tensor has."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        own: Any = value.__dict__
        return [kept_entries(own)], list(own.values())
    is_module = isinstance(value, torch.nn.Module) and not isinstance(value, torch.jit.ScriptModule)
    if not is_module and is_of_library(kind):
        return _NOTHING
    kept: list[Kept] = []
    inside: list[Any] = []
    if slots := slots_of(kind):
        kept.append(_kept_slots(value, slots))
        inside += [_in_slot(slot, value) for slot in slots]
    if isinstance(attributes := getattr(value, "__dict__", None), dict):
        kept.append(kept_entries(attributes))
        inside += attributes.values()
    return kept, inside


def is_of_library(kind: type) -> bool:
    """Return whether objects of a class are more than what they hold, as those of torch and most of Python's are."""
    if kind.__module__.startswith(("torch", "fx.")):
        return True
    if kind.__module__ == "builtins" or issubclass(kind, _HOLDERS_OF_PYTHON):
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return module is not None and (file is None or is_pythons_file(file))
