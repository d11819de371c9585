"""What a capture touches, as it was before: modules, and what their code reaches outside of them."""

from __future__ import annotations

import contextvars
import gc
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, TypeVar

import torch

from fx.capture.patching import Trace
from fx.capture.restore import reach
from fx.capture.restore.leftovers import clean, is_left
from fx.capture.restore.module_attributes import Change, ModuleAttributes, Owner
from fx.capture.restore.places import (
    CACHE,
    CONTAINERS,
    PLAIN,
    PROGRESS,
    RANDOM,
    VARIABLE,
    Pairs,
    Place,
    attributes_of,
    contents_of,
    fixed_parts_of,
    generator_of,
    is_of_library,
    names_in,
    places_of,
)
from fx.errors import FxError, TraceError
from fx.frames import user_location
from fx.modules.containers import QuickModule
from fx.node import Node
from fx.proxy import Proxy

T = TypeVar("T")
_Kept = tuple[Change, Place, Pairs]
"""Who reaches a place, with its name there, the place, and what it held."""
_REPLACED = frozenset({MethodType, BuiltinMethodType, partial})
"""The classes of what draws random numbers, for which others stand in globals: see fx.capture.recorded_calls."""
_OF_METHODS = frozenset({FunctionType, staticmethod, classmethod, property})
"""Classes of what is looked at where code names it."""
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_MOST_FUNCTIONS = 400
"""How many functions are looked at for one program."""
_MOST_VALUES = 20_000
"""How many values that may change are looked at for one program, the nearest first."""


class Record:
    """What a capture touches, as it was: whatever the code assigns meanwhile is not part of the model."""

    def __init__(
        self,
        modules: Iterable[torch.nn.Module],
        functions: Iterable[FunctionType] = (),
        values: Iterable[Any] = (),
    ) -> None:
        """Keep what ``modules`` hold, and what their methods, ``functions`` and ``values`` reach outside of them."""
        self._modules = list(modules)
        self._trace: Trace | None = None
        self._is_as_before = False
        """Whether nothing is known to have changed."""
        self.replaced_parameters: list[Change] = []
        """Parameters and buffers in whose place others are now, which are no traced values."""
        self.attributes = ModuleAttributes(self._modules)
        """What the modules hold themselves."""
        self.context = contextvars.copy_context()
        """In which the code runs, so that what it sets of context variables ends with it."""
        self._kept: list[_Kept] = []
        self.stuck: list[GeneratorType[Any, Any, Any]] = []
        """Generators that still hold traced values when all else is put back."""
        self._unkept: list[Any] = []
        """What is not put back, and is cleaned of traced values: caches, and objects of Python's."""
        self._seen: dict[int, Any] = {id(module): module for module in self._modules}
        """What was looked at, by identity, which it has as long as it is held here."""
        self._pending: list[tuple[Owner, str, Any]] = []
        self._functions: list[FunctionType] = []
        self._classes: set[type] = set()
        self._kinds: dict[type, None] = {}
        """The classes of objects that are held."""
        of_torch = self.attributes.kinds_of_torch
        for module in self._modules:
            own = module.__dict__
            # Torch's own modules hold nothing that calls change, but for what a hook leaves in them.
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or type(module) not in of_torch:
                pending = [(module, name, value) for name, value in own.items() if name not in _OF_EVERY_MODULE]
                self._pending += [one for one in pending if type(one[2]) not in PLAIN]
        self.held: set[int] = set()
        """The identities of the containers and objects that modules hold."""
        self._pending += [(module, "", value) for module in self._modules[:1] for value in values]
        self._look_at_values()
        self.facts = reach.Facts()
        """What is known of the code."""
        kinds = list(dict.fromkeys(map(type, self._modules)))
        self._methods = reach.methods_of((*kinds, *self._kinds))
        self._functions = [*self._methods.get("forward", ()), *functions, *self._functions]
        for kind in dict.fromkeys(base for one in kinds for base in one.__mro__):
            # Messages name a function that reaches what is kept: for a class, any of its own.
            methods = (inspect.unwrap(value) for value in [*vars(kind).values()] if isinstance(value, FunctionType))
            method = next((each for each in methods if isinstance(each, FunctionType)), None)
            if method is not None:
                self._look_at_class(method, kind)
        self._look_at_functions()

    # What is there.

    def _look_at_values(self) -> None:
        """Keep what is pending, and what is in it."""
        for owner, name, value in self._pending:
            if type(value) in PLAIN or id(value) in self._seen or len(self._seen) > _MOST_VALUES:
                continue
            self._seen[id(value)] = value
            if (called := reach.called_by(value) or reach.called_by(reach.behind(value))) is not None:
                self._functions.append(called)
            if isinstance(value, type):
                self._look_at_class(owner, value)
                continue
            kept: list[_Kept] = []
            with suppress(Exception):  # of a class that decides itself what its attributes are, and elements
                kept = [((owner, name), place, place.read()) for place in _places_recorded(value)]
            is_object = not kept and is_of_library(type(value)) and attributes_of(value) is not None
            if is_object or isinstance(value, CACHE):
                self._unkept.append(value)
            if kept:
                self._kept += kept
                self._look_at_kind(owner, type(value))
                if isinstance(owner, torch.nn.Module):
                    self.held.add(id(value))
            inside = itertools.chain(fixed_parts_of(value), (value for _, _, pairs in kept for _, value in pairs))
            self._pending += [(owner, name, one) for one in inside if type(one) not in PLAIN]
        self._pending = []

    def _keep(self, owner: Owner, name: str, place: Place) -> None:
        self._kept.append(((owner, name), place, place.read()))

    def _look_at_kind(self, owner: Owner, kind: type) -> None:
        if kind not in self._kinds:
            self._kinds[kind] = None
            for base in kind.__mro__:
                self._look_at_class(owner, base)

    def _look_at_class(self, owner: Owner, kind: type) -> None:
        if kind in self._classes or not reach.is_users_class(kind):
            return
        self._classes.add(kind)
        self._keep(owner, kind.__name__, Place(names_in(), kind))
        held = [(name, value) for name, value in [*vars(kind).items()] if not name.startswith("__")]
        self._pending += [(owner, name, value) for name, value in held if type(value) not in _OF_METHODS]
        self._pending.append((owner, kind.__name__, type(kind)))

    def _look_at_functions(self) -> None:
        looked_at: set[int] = set()
        self._look_at_values()
        for function in self._functions:
            inner: Any = function
            while hasattr(inner, "__wrapped__"):
                self.facts.add_decorator(inner)
                self._look_into(inner)
                inner = inner.__wrapped__
            if id(inner) not in looked_at and len(looked_at) < _MOST_FUNCTIONS:
                looked_at.add(id(inner))
                self._seen[id(inner)] = inner
                self._look_at(inner)
                self._look_at_values()

    def _look_at(self, function: Any) -> None:
        code = getattr(function, "__code__", None)
        if code is None or not reach.is_users_own(code.co_filename):
            return
        names, namespace = self.facts.add(function), function.__globals__
        for name in names.assigned:
            self._keep(function, name, Place(names_in((name,)), namespace))
        for name in names.read:
            for method in self._methods.get(name, ()):
                self._functions.append(method)
            if name not in names.globals or (value := namespace.get(name)) is None:
                continue
            draws = type(value) in _REPLACED and generator_of(value) is not None
            if type(value) not in PLAIN and type(value) is not ModuleType and not draws:
                self._pending.append((function, name, value))
        closed = dict(zip(code.co_freevars, map(contents_of, function.__closure__ or ()), strict=True))
        for held in reach.modules_named((namespace, closed), (*names.read, *closed)):
            is_own = reach.is_users_own(held.get("__file__"))
            for name in names.stored:
                self._keep(function, name, Place(names_in((name,)), held))
            inside = [(name, held[name]) for name in names.read if name in held]
            self._pending += [(function, name, one) for name, one in inside if is_own or type(one) in CONTAINERS]
        self._look_into(function)

    def _look_into(self, function: Any) -> None:
        """Keep what a function holds itself: the variables of outer functions, defaults, attributes."""
        if not isinstance(function, FunctionType):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._keep(function, name, Place(VARIABLE, cell))
            value = contents_of(cell)
            self._pending.append((function, name, value))
        for place in places_of(function):
            self._keep(function, function.__name__, place)
            held = [(name if type(name) is str else function.__name__, value) for name, value in place.read()]
            self._pending += [(function, name, value) for name, value in held]

    # What has changed.

    def expect_fresh(self, iterator: object) -> None:
        """Refuse to take an element of an iterator that was there before the trace.

        Raises:
            TraceError: it was.
        """
        if any(place.holder is iterator for _, place, _ in self._kept if place.kind is PROGRESS):
            raise TraceError(
                "cannot take the next element of an iterator that is older than the trace",
                where=user_location(sys._getframe(1), {}),
                value=f"{iterator!r:.80}",
                why="each call of the program takes another one, and a captured program would have that of this call",
                remedy="index a list with a buffer that counts, or put the line in a function marked fx.wrap",
            )

    def find_changes(self) -> list[Change]:
        """Return what is something else now, with its owner: attributes, elements of containers, names of functions."""
        of_modules = self.attributes.changes()
        state = [each for each in of_modules if each.is_state and not isinstance(each.value, Proxy)]
        self.replaced_parameters = [(each.module, each.name) for each in state]
        changes: list[Change] = [
            (each.module, each.name)
            for each in of_modules
            # a QuickModule has its children in its attributes, too, once it has run
            if not each.is_state and not (isinstance(each.module, QuickModule) and each.name in each.module._modules)
        ]
        changes += self.changed_holders()
        owner: Owner | None = next(iter([*self._functions, *self._modules]), None)
        if owner is not None:
            changes += [(owner, one.name) for one in self.context if self.context[one] is not one.get(self)]
        self._is_as_before = not (of_modules or changes)
        return changes

    def changed_holders(self) -> list[Change]:
        """Return who reaches a container, object, class or variable that is something else now, with its name there."""
        return [change for change, place, saved in self._kept if place.is_changed(saved)]

    def drawn(self) -> list[Change]:
        """Return who reaches a generator of random numbers that was drawn from or seeded, with its name there."""
        kept = [each for each in self._kept if each[1].kind is RANDOM]
        return [change for change, place, saved in kept if place.is_changed(saved)]

    # The end.

    def keep_until_restored(self, trace: Trace) -> None:
        """Let :func:`forget_traced_values` do what it can, should nothing be put back though ``trace`` has ended."""
        self._trace = trace
        _unrestored[id(self)] = self

    def forget_traced_values(self) -> None:
        """Put back what traced values stand for, if the trace has ended.

        Other attributes may have been assigned since.
        """
        if self._trace is not None and self._trace.is_running():
            return
        for attribute in self.attributes.traced():
            attribute.put_back()
        _unrestored.pop(id(self), None)

    def restore(self) -> Proxy | None:
        """Put everything back. Return the traced value that was assigned to a buffer or parameter, if there is one."""
        lost: Proxy | None = None
        for change in () if self._is_as_before else self.attributes.changes():
            value = change.value
            if change.is_state and isinstance(value, Proxy) and not _is_written_in_place(change.name, value):
                lost = value
            change.put_back()
        for _, place, saved in self._kept:
            place.restore(saved)
        iterators = [place.holder for _, place, _ in self._kept if place.kind is PROGRESS]
        generators = [one for one in iterators if isinstance(one, GeneratorType)]
        self.stuck = [one for one in generators if any(map(is_left, gc.get_referents(one)))]
        self.attributes = ModuleAttributes([])
        self._kept, self._seen, self._functions, self._trace = [], {}, [], None
        self.context = contextvars.Context()
        _unrestored.pop(id(self), None)
        return lost

    def clean(self) -> None:
        """Take traced and fake values out of what cannot be put back."""
        for holder in self._unkept:
            clean(holder)
        self._unkept = []


def undone(
    compute: Callable[[], T],
    modules: Iterable[torch.nn.Module],
    values: Iterable[Any] = (),
    error: type[FxError] = TraceError,
) -> T:
    """Return ``compute()``, and put back what it changes of modules, and of what these and ``values`` reach.

    Raises:
        FxError: a generator is left with a value that has no elements; of class ``error``.
    """
    of_python = [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]
    record = Record(of_python, values=values)
    try:
        result = record.context.run(compute)
    finally:
        record.restore()
        record.clean()
    expect_none_stuck(record.stuck, error)
    return result


def expect_none_stuck(generators: list[GeneratorType[Any, Any, Any]], error: type[FxError] = TraceError) -> None:
    """Refuse a program that has given traced values to generators, which nobody can put back.

    Raises:
        FxError: there is one; of class ``error``.
    """
    if generators:
        raise error(
            "cannot take a traced value out of a generator",
            where=user_location(generators[0].gi_frame, {}),
            value=generators[0].__qualname__,
            why="a generator that is older than the trace holds it from then on, and nothing else can be put there",
            remedy="make the generator in the call, or put the line in a function marked fx.wrap",
        )


_unrestored: dict[int, Record] = {}
"""What is recorded of modules that are being traced; or were, where signals have kept it from being put back."""


def forget_traced_values() -> None:
    """Take the traced values of traces that have ended out of modules."""
    for record in list(_unrestored.values()):
        record.forget_traced_values()


def _is_written_in_place(name: str, value: Proxy) -> bool:
    """Return whether a value is what an in-place operation on attribute ``name`` returned: ``self.count += 1``."""
    node = value.node
    while node.op == "call_method" and str(node.target).endswith("_") and isinstance(node.args[0], Node):
        node = node.args[0]
    return node is not value.node and node.op == "get_attr" and str(node.target).rpartition(".")[2] == name


def _places_recorded(value: Any) -> list[Place]:
    """Return the places of a value that are put back: of an object of a library, which may be a lock, none."""
    kind = type(value)
    if isinstance(value, (ModuleType, FunctionType, torch.jit.ScriptModule, CACHE)):
        return []
    places = places_of(value)
    is_known = isinstance(value, (torch.Tensor, torch.nn.Module)) or kind in (*CONTAINERS, *_REPLACED)
    return places if is_known or not is_of_library(kind) else [one for one in places if one.kind in (PROGRESS, RANDOM)]
