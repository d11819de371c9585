"""Places that hold values: how each kind is read, compared with its saved contents, and written.

A record of a capture reads places and writes back those that have changed. Remnants of a capture are handled by the
same table: unrecorded traced values are removed, and replacements in modules imported during the capture are undone.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import operator
import random
import sys
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
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

import numpy
import torch
from numpy.random import Generator, RandomState

from fx.frames import is_pythons_file

ABSENT: Any = object()
"""Marks an empty place."""
CACHE = functools._lru_cache_wrapper
"""The class of the results of ``functools.lru_cache`` and ``functools.cache``."""
CONTAINERS = frozenset({list, dict, set, OrderedDict, defaultdict, deque, Counter})
CHANGEABLE = (dict, list, set, deque)
"""The classes of containers, and their base classes."""
PLAIN = frozenset({int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, slice})
"""Classes of values that hold nothing that can be assigned."""
_EQUAL_BY_TEXT = frozenset({int, float, complex, str, bytes})
_HOLDERS_OF_PYTHON = (MutableMapping, MutableSequence, MutableSet, SimpleNamespace, argparse.Namespace, threading.local)
"""Classes of the standard library that only hold values; others are locks, loggers, threads."""
DRAWING = "cannot draw random numbers in Python, or seed a generator, while a program is captured"
WHY_NO_DRAWING: dict[str, Any] = {
    "why": "the numbers drawn now would be constants of the program, and all code shares the state of the generator",
    "remedy": "draw with torch.rand and the like, which are recorded, or mark the function with fx.wrap",
}

Pairs = list[tuple[Any, Any]]
"""The contents of a place: values, with their keys if they have any; or a state of its own in place of a key."""


def same(now: Sequence[Any], saved: Sequence[Any]) -> bool:
    """Return whether the values of two sequences are the same objects, or equal numbers and texts.

    >>> same([1, "a"], [1, "a"]), same([1], [True]), same([0.0], [-0.0]), same([[]], [[]])
    (True, False, False, False)
    """
    if len(now) != len(saved):
        return False
    return all(map(is_, now, saved)) or all(map(_are_equal, now, saved))


def _are_equal(first: Any, second: Any) -> bool:
    kind = type(first)
    return first is second or (kind is type(second) and kind in _EQUAL_BY_TEXT and repr(first) == repr(second))


def _is_same(now: Pairs, saved: Pairs) -> bool:
    return same([*itertools.chain(*now)], [*itertools.chain(*saved)])


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of place."""

    read: Callable[[Any], Pairs]
    """Returns the contents of a holder at this place."""
    write: Callable[[Any, Pairs], None]
    """Replaces the contents of a holder at this place."""
    is_same: Callable[[Pairs, Pairs], bool] = _is_same
    """Returns whether the current contents equal the saved ones."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place where one object holds values or its own state."""

    kind: Kind
    """The kind, which reads and writes it."""
    holder: Any
    """The object."""

    def read(self) -> Pairs:
        """Return its contents."""
        return self.kind.read(self.holder)

    def is_changed(self, saved: Pairs) -> bool:
        """Return whether its contents have changed."""
        return not self.kind.is_same(self.read(), saved)

    def restore(self, saved: Pairs) -> None:
        """Restore its saved contents if they have changed."""
        if self.is_changed(saved):
            self.kind.write(self.holder, saved)

    def substitute(self, other: Callable[[Any], Any]) -> None:
        """Replace each key and value by ``other(part)``, and remove it if that is ``ABSENT``."""
        before = self.read()
        pairs = [(other(key), other(value)) for key, value in before]
        if not all(map(is_, itertools.chain(*pairs), itertools.chain(*before))):
            self.kind.write(self.holder, [pair for pair in pairs if pair[0] is not ABSENT and pair[1] is not ABSENT])


# The kinds.


def _class_of_entries(entries: Any) -> Any:
    return OrderedDict if isinstance(entries, OrderedDict) else dict


def _write_entries(entries: Any, pairs: Pairs) -> None:
    kind = _class_of_entries(entries)
    wanted = {id(key) for key, _ in pairs}
    removed = [key for key in list(kind.keys(entries)) if id(key) not in wanted]
    if all(type(key) is str for key in removed):  # other threads may be using the rest of an object's attributes
        for key in removed:
            kind.__delitem__(entries, key)
    if not same(list(kind.keys(entries)), [key for key, _ in pairs]):
        kind.clear(entries)  # and do not delete by key: a traced value may be equal to another key
    for key, value in pairs:
        kind.__setitem__(entries, key, value)


ENTRIES = Kind(lambda entries: list(_class_of_entries(entries).items(entries)), _write_entries)
"""The entries of a dictionary, also of an object's attributes."""


def _elements(kind: Any) -> Kind:
    """Return the kind of the elements of lists, deques or sets, even if their classes override methods."""

    def read(elements: Any) -> Pairs:
        values = list(kind.__iter__(elements))
        return [(None, value) for value in (sorted(values, key=id) if kind is set else values)]

    def write(elements: Any, pairs: Pairs) -> None:
        kind.clear(elements)
        (kind.update if kind is set else kind.extend)(elements, [value for _, value in pairs])

    return Kind(read, write)


def names_in(only: Iterable[str] | None = None) -> Kind:
    """Return the kind of values of names in globals or in a class: ``only`` these, or all that Python does not use."""

    def held(owner: Any) -> Mapping[str, Any]:
        return vars(owner) if isinstance(owner, type) else owner

    def read(owner: Any) -> Pairs:
        names = [name for name in list(held(owner)) if not name.startswith("__")] if only is None else only
        pairs = [(name, held(owner).get(name, ABSENT)) for name in names]
        return [pair for pair in pairs if pair[1] is not ABSENT]

    def write(owner: Any, pairs: Pairs) -> None:
        put: Any = type.__setattr__ if isinstance(owner, type) else dict.__setitem__
        take: Any = type.__delattr__ if isinstance(owner, type) else dict.__delitem__
        now, wanted = dict(read(owner)), dict(pairs)
        for name in now.keys() - wanted.keys():
            take(owner, name)
        for name, value in wanted.items():
            if now.get(name, ABSENT) is not value:
                put(owner, name, value)

    return Kind(read, write)


def _attributes(*descriptors: Any) -> Kind:
    """Return the kind of the values of descriptors: slots of objects, and attributes of Python's own objects."""

    def read(holder: Any) -> Pairs:
        pairs = [(descriptor, _given(descriptor, holder)) for descriptor in descriptors]
        return [pair for pair in pairs if pair[1] is not ABSENT]

    def write(holder: Any, pairs: Pairs) -> None:
        wanted = dict(pairs)
        for descriptor in descriptors:
            value = wanted.get(descriptor, ABSENT)
            if _given(descriptor, holder) is not value:
                descriptor.__delete__(holder) if value is ABSENT else descriptor.__set__(holder, value)

    return Kind(read, write)


def _given(descriptor: Any, holder: Any) -> Any:
    try:
        return descriptor.__get__(holder)
    except (AttributeError, ValueError):  # empty
        return ABSENT


def contents_of(cell: CellType) -> Any:
    """Return the contents of a variable of an outer function, which may be ``ABSENT``."""
    return _given(_CONTENTS, cell)


_CONTENTS: Any = vars(CellType)["cell_contents"]
VARIABLE = _attributes(_CONTENTS)
"""A variable of an outer function."""
DEFAULTS = _attributes(vars(FunctionType)["__defaults__"], vars(FunctionType)["__kwdefaults__"])
"""The defaults of the parameters of a function."""
_SET_PARTIAL: Any = vars(partial)["__setstate__"]  # a decorator may have set one on a partial
ARGUMENTS = Kind(
    lambda call: [("func", call.func), ("args", call.args), ("keywords", call.keywords)],
    lambda call, pairs: _SET_PARTIAL(call, (*(value for _, value in pairs), vars(call))),
)
"""The function that a ``functools.partial`` calls, and its arguments."""
CALLS = Kind(
    lambda cache: [(None, referent) for referent in gc.get_referents(cache)], lambda cache, pairs: cache.cache_clear()
)
"""The calls that a cache of ``functools`` remembers, each of which may be forgotten at any time."""


def _read_array(array: Any) -> Pairs:
    return [(array.copy(), None), *((None, value) for value in (array.flat if array.dtype.hasobject else ()))]


def _write_array(array: Any, pairs: Pairs) -> None:
    array[...] = pairs[0][0]


def _is_same_array(now: Pairs, saved: Pairs) -> bool:
    array, before = now[0][0], saved[0][0]
    if array.shape != before.shape or array.dtype.hasobject:
        return array.shape == before.shape and _is_same(now[1:], saved[1:])
    return array.tobytes() == before.tobytes()


ARRAY = Kind(_read_array, _write_array, _is_same_array)
"""The numbers, or objects, of an array of numpy."""


def _read_random(generator: Any) -> Pairs:
    if isinstance(generator, random.Random):
        return [(generator.getstate(), None)]
    return [(generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state(), None)]


def _write_random(generator: Any, pairs: Pairs) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(pairs[0][0])
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = pairs[0][0]
    else:
        generator.set_state(pairs[0][0])


RANDOM = Kind(_read_random, _write_random, lambda now, saved: repr(now) == repr(saved))
"""The state of a generator of random numbers, of Python or numpy."""


def _read_progress(iterator: Any) -> Pairs:
    if isinstance(iterator, GeneratorType):
        frame = iterator.gi_frame
        return [(frame and (frame.f_lasti, {name: id(value) for name, value in frame.f_locals.items()}), None)]
    text = repr(iterator) if type(iterator).__module__ == "itertools" else ""
    return [((operator.length_hint(iterator, -1), text), None)]


PROGRESS = Kind(_read_progress, lambda iterator, pairs: None, operator.eq)
"""The progress of an iterator, as far as it is visible. It cannot be restored."""


# The places of a value.


def generator_of(value: Any) -> Any:
    """Return the generator of random numbers, of Python or numpy, that a value is, or draws from when it is called.

    >>> import random
    >>> generator_of(partial(random.random)) is random.seed.__self__, generator_of(len)
    (True, None)
    """
    while type(value) is partial:
        value = value.func
    if type(value) in (MethodType, BuiltinMethodType):
        value = value.__self__
    return value if issubclass(type(value), (random.Random, Generator, RandomState)) else None


def is_of_library(kind: type) -> bool:
    """Return whether objects of a class are more than their contents, as those of torch and most of Python are."""
    if kind.__module__.startswith(("torch", "fx.")):
        return True
    if kind.__module__ == "builtins" or issubclass(kind, _HOLDERS_OF_PYTHON):
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return module is not None and (file is None or is_pythons_file(file))


def places_of(value: Any) -> list[Place]:
    """Return the places that a value consists of."""
    own = type(value)  # an object may claim to be of another class
    kind = next((kind for kind in _KINDS if issubclass(own, kind)), None)
    if kind is None:
        return _of_object(value)
    of_class = _of_object(value) if kind in CHANGEABLE and own.__module__ not in _OF_PYTHON else []
    return [*_KINDS[kind](value), *of_class]


def fixed_parts_of(value: Any) -> Iterable[Any]:
    """Return the contents of a value that it cannot change."""
    kind = type(value)
    if issubclass(kind, weakref.ref):
        return (value(),)
    return gc.get_referents(value) if issubclass(kind, (tuple, frozenset, MethodType, MappingProxyType)) else ()


def _of_object(value: Any) -> list[Place]:
    kind = type(value)
    if places := _of_random(value):
        return places
    if kind.__module__.startswith("numpy"):
        return [Place(ARRAY, value)] if issubclass(kind, numpy.ndarray) else []
    if hasattr(kind, "__next__"):
        return [Place(PROGRESS, value)]
    classes = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]  # without Python's own classes
    slots = [
        descriptor
        for namespace in classes
        for descriptor in namespace.values()
        if type(descriptor) is MemberDescriptorType
    ]
    places = [Place(_attributes(*slots), value)] if slots else []
    attributes = attributes_of(value)
    return places if attributes is None else [*places, Place(ENTRIES, attributes)]


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object, without a call of its class's code; None if it has none."""
    look_up: Any = type(value).__getattribute__
    try:
        attributes = (object.__getattribute__ if isinstance(look_up, FunctionType) else look_up)(value, "__dict__")
    except AttributeError:
        return None
    return attributes if isinstance(attributes, dict) else None


def _of_random(value: Any) -> list[Place]:
    generator = generator_of(value)
    return [] if generator is None or isinstance(generator, random.SystemRandom) else [Place(RANDOM, generator)]


def _of_cache(cache: Any) -> list[Place]:
    if cache.cache_info().maxsize is not None:
        return [Place(CALLS, cache)]
    return [Place(ENTRIES, referent) for referent in gc.get_referents(cache) if type(referent) is dict]


_OF_ELEMENTS = {kind: _elements(kind) for kind in (list, set, deque)}
_OF_PYTHON = ("builtins", "collections")
_KINDS: dict[Any, Callable[[Any], list[Place]]] = {
    dict: lambda value: [Place(ENTRIES, value)],
    list: lambda value: [Place(_OF_ELEMENTS[list], value)],
    set: lambda value: [Place(_OF_ELEMENTS[set], value)],
    deque: lambda value: [Place(_OF_ELEMENTS[deque], value)],
    torch.Tensor: lambda value: [Place(ENTRIES, value.__dict__)],
    FunctionType: lambda value: [Place(DEFAULTS, value), Place(ENTRIES, value.__dict__)],
    type: lambda value: [Place(names_in(vars(value)), value)],
    CACHE: _of_cache,
    CellType: lambda value: [Place(VARIABLE, value)],
    partial: lambda value: _of_random(value) or [Place(ARGUMENTS, value)],
    (MethodType, BuiltinMethodType): _of_random,
    (tuple, frozenset, ModuleType, weakref.ref, MappingProxyType): lambda value: [],
}
"""The places of values of a class and its subclasses; other values are plain objects."""
