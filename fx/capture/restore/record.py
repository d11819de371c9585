"""State that a capture touches, as it was before: modules, and values outside of them that their code reaches."""

from __future__ import annotations

import contextvars
import gc
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, TypeVar

import torch

from fx.capture.patching import Trace
from fx.capture.restore import reach
from fx.capture.restore.leftovers import clean, is_left, take_out
from fx.capture.restore.places import (
    ABSENT,
    CACHE,
    CONTAINERS,
    ENTRIES,
    PLAIN,
    PROGRESS,
    RANDOM,
    VARIABLE,
    Kind,
    Pairs,
    Place,
    attributes_of,
    contents_of,
    fixed_parts_of,
    generator_of,
    is_of_library,
    names_in,
    places_of,
    same,
)
from fx.errors import FxError, TraceError
from fx.frames import user_location
from fx.modules.containers import QuickModule
from fx.node import Node
from fx.proxy import Proxy

T = TypeVar("T")
Owner = torch.nn.Module | FunctionType
Change = tuple[Owner, str]
"""A module or function, and the name under which it reaches a value that has changed."""
_HELD_IN = ("", "_modules", "_parameters", "_buffers")
"""The saved dictionaries of a module: its attributes, and those held in attributes of these names."""
_NONE: dict[str, Any] = {}
_Saved = tuple[Change, Place, Pairs]
"""The owner and name that reach a place, the place, and its saved contents."""
_REPLACED = frozenset({MethodType, BuiltinMethodType, partial})
"""The classes of values that draw random numbers and are replaced in globals: see fx.capture.recorded_calls."""
_OF_METHODS = frozenset({FunctionType, staticmethod, classmethod, property})
"""Classes of values that are examined where code names them."""
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_MOST_FUNCTIONS = 400
"""The maximal number of functions examined for one program."""
_MOST_VALUES = 20_000
"""The maximal number of changeable values examined for one program, the nearest first."""


@dataclass(frozen=True, slots=True)
class ChangedAttribute:
    """An attribute, child, parameter or buffer that has changed."""

    module: torch.nn.Module
    """The module that has it."""
    name: str
    """Its name."""
    is_state: bool
    """True if it is, or was, a parameter or buffer."""
    _now: dict[str, Any]
    _saved: dict[str, Any]

    @property
    def value(self) -> Any:
        """Its current value; ``None`` if it is gone."""
        return self._now.get(self.name)

    def put_back(self) -> None:
        """Restore the saved value. Other threads may be using the rest of the module."""
        if self.name in self._saved:
            self._now[self.name] = self._saved[self.name]
        else:
            self._now.pop(self.name, None)


class ModuleAttributes:
    """The saved attributes, children, parameters and buffers of modules."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        """Save the current ones."""
        owns = [(module, module.__dict__) for module in modules]
        self._now = {module: [own[name] if name else own for name in _HELD_IN] for module, own in owns}
        self._saved = {
            module: [entries.copy() if entries else _NONE for entries in dictionaries]
            for module, dictionaries in self._now.items()
        }
        self.kinds_of_torch = {kind for kind in set(map(type, modules)) if kind.__module__.startswith("torch.")}
        """The torch classes among those of the modules, whose attributes calls do not change."""

    def before(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return the saved attributes and buffers of a module."""
        if module not in self._saved:  # it was added while the program ran
            return {**module.__dict__, **module._buffers}
        own, _, _, buffers = self._saved[module]
        return {**own, **buffers}

    def changes(self) -> list[ChangedAttribute]:
        """Return the changed attributes.

        All are compared at once by equality first, as models have thousands of entries: an attribute of a torch module
        that is equal to its saved value has the same effect.
        """
        of_users = [module for module in self._now if type(module) not in self.kinds_of_torch]
        with suppress(Exception):  # comparing a traced value or a tensor may raise
            if self._now == self._saved and same(_values(self._now, of_users), _values(self._saved, of_users)):
                return []
        return self._each(lambda now, saved: not same([now], [saved]))

    def traced(self) -> list[ChangedAttribute]:
        """Return the attributes that are now traced values. Nothing is compared: another thread may be tracing."""
        return self._each(lambda now, _: isinstance(now, Proxy))

    def _each(self, is_meant: Callable[[Any, Any], bool]) -> list[ChangedAttribute]:
        return [
            ChangedAttribute(module, name, where in ("_parameters", "_buffers"), now, saved)
            for module, dictionaries in self._now.items()
            for where, now, saved in zip(_HELD_IN, dictionaries, self._saved[module], strict=True)
            for name in list({**saved, **now})  # as a trace that ends takes its values out of any dictionary
            if is_meant(now.get(name, ABSENT), saved.get(name, ABSENT))
        ]


def _values(contents: dict[torch.nn.Module, list[dict[str, Any]]], modules: list[torch.nn.Module]) -> list[Any]:
    return [value for module in modules for entries in contents[module] for value in entries.values()]


class Record:
    """The saved state that a capture touches: assignments during the capture are not part of the model."""

    def __init__(
        self, modules: Iterable[torch.nn.Module], functions: Iterable[FunctionType] = (), values: Iterable[Any] = ()
    ) -> None:
        """Save the state of ``modules``, and the values that their methods, ``functions`` and ``values`` reach."""
        # attributes of compiled modules are not in dicts
        self._modules = [module for module in modules if not issubclass(type(module), torch.jit.ScriptModule)]
        self._trace: Trace | None = None
        self._is_as_before = False
        """True if no change is known."""
        self.replaced_parameters: list[Change] = []
        """Parameters and buffers that were replaced, but not by traced values."""
        self.attributes = ModuleAttributes(self._modules)
        """The attributes of the modules themselves."""
        self.context = contextvars.copy_context()
        """The context in which the code runs, so that its changes of context variables end with it."""
        self._saved: list[_Saved] = []
        self._hooks: dict[torch.nn.Module, list[Any]] = {}
        """The forward hooks of the modules that have some."""
        for module in self._modules:
            if _has_hooks(module):
                self._hooks[module] = _hooks_of(module)
                for name in _HOOKS:
                    self._save(module, name, Place(ENTRIES, module.__dict__[name]))
        self.stuck: list[GeneratorType[Any, Any, Any]] = []
        """Generators that still hold traced values after all else is restored."""
        self._unsaved: list[Any] = []
        """Values that are not restored, but cleaned of traced values: caches, and objects of Python."""
        self._seen: dict[int, Any] = {id(module): module for module in self._modules}
        """The values that were examined, by identity; they are held here so that the identity stays theirs."""
        self._pending: list[tuple[Owner, str, Any]] = []
        self._functions: list[FunctionType] = []
        self._classes: set[type] = set()
        self._kinds: dict[type, None] = {}
        """The classes of saved objects."""
        of_torch = self.attributes.kinds_of_torch
        for module in self._modules:
            own = module.__dict__
            # Torch's own modules hold nothing that calls change, except what a hook leaves in them.
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or type(module) not in of_torch:
                self._examine(module, ((name, value) for name, value in own.items() if name not in _OF_EVERY_MODULE))
        self.held: set[int] = set()
        """The identities of the containers and objects that modules hold and functions name."""
        for module in self._modules[:1]:
            self._examine(module, (("", value) for value in values))
        self._look_at_values()
        self.facts = reach.Facts()
        """The facts about the code."""
        kinds = list(dict.fromkeys(map(type, self._modules)))
        self._methods = reach.methods_of((*kinds, *self._kinds))
        self._functions = [*self._methods.get("forward", ()), *functions, *self._functions]
        for kind in dict.fromkeys(base for derived in kinds for base in derived.__mro__):
            # Messages name a function that reaches the saved value: for a class, any function of its own.
            methods = (inspect.unwrap(value) for value in [*vars(kind).values()] if isinstance(value, FunctionType))
            method = next((each for each in methods if isinstance(each, FunctionType)), None)
            if method is not None:
                self._look_at_class(method, kind)
        self._look_at_functions()

    # Saving.

    def _examine(self, owner: Owner, values: Iterable[tuple[str, Any]]) -> None:
        """Let values be examined that ``owner`` reaches by these names, except those that hold nothing."""
        self._pending += [(owner, name, value) for name, value in values if type(value) not in PLAIN]

    def _look_at_values(self) -> None:
        """Save the pending values, and the values in them."""
        for owner, name, value in self._pending:
            if id(value) in self._seen or len(self._seen) > _MOST_VALUES:
                continue
            self._seen[id(value)] = value
            if (called := reach.called_by(value)) is not None:
                self._functions.append(called)
            if isinstance(value, type):
                self._look_at_class(owner, value)
                continue
            saved: list[_Saved] = []
            with suppress(Exception):  # of a class that defines its attributes or elements itself
                saved = [((owner, name), place, place.read()) for place in _places_recorded(value)]
            is_object = not saved and is_of_library(type(value)) and attributes_of(value) is not None
            if is_object or isinstance(value, CACHE):
                self._unsaved.append(value)
            if saved:
                self._saved += saved
                if type(value) not in self._kinds:
                    self._kinds[type(value)] = None
                    for base in type(value).__mro__:
                        self._look_at_class(owner, base)
                self.held.add(id(value))
            inside = itertools.chain(fixed_parts_of(value), (value for _, _, pairs in saved for _, value in pairs))
            self._examine(owner, ((name, value) for value in inside))
        self._pending = []

    def _save(self, owner: Owner, name: str, place: Place) -> None:
        self._saved.append(((owner, name), place, place.read()))

    def _look_at_class(self, owner: Owner, kind: type) -> None:
        if kind in self._classes or not reach.is_users_class(kind):
            return
        self._classes.add(kind)
        self._save(owner, kind.__name__, Place(names_in(), kind))
        attributes = [(name, value) for name, value in [*vars(kind).items()] if not name.startswith("__")]
        self._examine(owner, [each for each in attributes if type(each[1]) not in _OF_METHODS])
        self._examine(owner, [(kind.__name__, type(kind))])

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
            self._save(function, name, Place(names_in((name,)), namespace))
        for name in names.read:
            self._functions += self._methods.get(name, ())
            value = namespace.get(name) if name in names.globals else None
            is_drawing = type(value) in _REPLACED and generator_of(value) is not None
            if type(value) is not ModuleType and not is_drawing:
                self._examine(function, [(name, value)])
        closed = dict(zip(code.co_freevars, map(contents_of, function.__closure__ or ()), strict=True))
        for module_globals in reach.modules_named((namespace, closed), (*names.read, *closed)):
            is_own = reach.is_users_own(module_globals.get("__file__"))
            for name in names.stored:
                self._save(function, name, Place(names_in((name,)), module_globals))
            reached = [(name, module_globals[name]) for name in names.read if name in module_globals]
            self._examine(function, [each for each in reached if is_own or type(each[1]) in CONTAINERS])
        self._look_into(function)

    def _look_into(self, function: Any) -> None:
        """Save the contents of a function itself: the variables of outer functions, defaults, attributes."""
        if not isinstance(function, FunctionType):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._save(function, name, Place(VARIABLE, cell))
            self._examine(function, [(name, contents_of(cell))])
        own = function.__name__
        for place in places_of(function):
            self._save(function, own, place)
            self._examine(function, [(key if type(key) is str else own, value) for key, value in place.read()])

    # Changes.

    def expect_fresh(self, iterator: object) -> None:
        """Refuse to take an element of an iterator that existed before the trace."""
        if any(place.holder is iterator for _, place, _ in self._saved if place.kind is PROGRESS):
            raise TraceError(
                "cannot take the next element of an iterator that is older than the trace",
                where=user_location(sys._getframe(1), {}),
                value=f"{iterator!r:.80}",
                why="each call of the program takes the next one, and a captured program would repeat this one",
                remedy="index a list with a buffer that counts, or put the line in a function marked fx.wrap",
            )

    def expect_own_hooks(self, module: torch.nn.Module) -> None:
        """Refuse a module whose forward hooks are not those from before the trace."""
        if module not in self._hooks and not _has_hooks(module):
            return
        if not same(self._hooks.get(module, ()), _hooks_of(module)):
            raise TraceError(
                "cannot call a module whose hooks were changed while the program is captured",
                where=user_location(sys._getframe(1), {}),
                value=type(module).__name__,
                why="the captured program would call the module with the hooks from before",
                remedy="register them before the capture, or call the function of torch.nn.functional",
            )

    def find_changes(self) -> list[Change]:
        """Return the changes, with their owners: attributes, elements of containers, names of functions."""
        of_modules = self.attributes.changes()
        state = [each for each in of_modules if each.is_state and not isinstance(each.value, Proxy)]
        self.replaced_parameters = [(each.module, each.name) for each in state]
        changes: list[Change] = [
            (each.module, each.name)
            for each in of_modules
            # a QuickModule has its children in its attributes too, once it has run
            if not each.is_state and not (isinstance(each.module, QuickModule) and each.name in each.module._modules)
        ]
        changes += [(module, name) for module in self._newly_hooked() for name in _HOOKS if vars(module)[name]]
        changes += self.changed_holders()
        owner: Owner | None = next(iter([*self._functions, *self._modules]), None)
        if owner is not None:
            changes += [
                (owner, variable.name) for variable in self.context if self.context[variable] is not variable.get(self)
            ]
        self._is_as_before = not (of_modules or changes)
        return changes

    def _newly_hooked(self) -> list[torch.nn.Module]:
        """Return the modules that had no hooks and have some now."""
        return [module for module in self._modules if _has_hooks(module) and module not in self._hooks]

    def changed_holders(self, kind: Kind | None = None) -> list[Change]:
        """Return the owner and name that reach each changed container, object, class or variable, or generator."""
        places = [each for each in self._saved if kind in (None, each[1].kind)]
        return [change for change, place, saved in places if place.is_changed(saved)]

    # The end.

    def keep_until_restored(self, trace: Trace) -> None:
        """Let :func:`forget_traced_values` restore what it can if ``trace`` ends without a call of :meth:`restore`."""
        self._trace = trace
        _unrestored[id(self)] = self

    def forget_traced_values(self) -> None:
        """Restore the attributes that are traced values, if the trace has ended. Others may be assigned since."""
        if self._trace is not None and self._trace.is_running():
            return
        for attribute in self.attributes.traced():
            attribute.put_back()
        _unrestored.pop(id(self), None)

    def restore(self) -> Proxy | None:
        """Restore everything. Return the traced value that was assigned to a buffer or parameter, if there is one."""
        lost: Proxy | None = None
        for change in () if self._is_as_before else self.attributes.changes():
            value = change.value
            if change.is_state and isinstance(value, Proxy) and not _is_written_in_place(change.name, value):
                lost = value
            change.put_back()
        for module in () if self._is_as_before else self._newly_hooked():
            for name in _HOOKS:
                vars(module)[name].clear()
        parts = itertools.chain.from_iterable(pair for _, _, saved in self._saved for pair in saved)
        # of traces that were running in other threads when the state was saved
        of_others = [part for part in parts if issubclass(type(part), Proxy)]
        for _, place, saved in self._saved:
            place.restore(saved)
        if ended := [value for value in of_others if _has_ended(value)]:
            take_out(ended)
        iterators = [place.holder for _, place, _ in self._saved if place.kind is PROGRESS]
        generators = [iterator for iterator in iterators if isinstance(iterator, GeneratorType)]
        self.stuck = [iterator for iterator in generators if any(map(is_left, gc.get_referents(iterator)))]
        self.attributes = ModuleAttributes([])
        self._saved, self._seen, self._functions, self._trace = [], {}, [], None
        self.context = contextvars.Context()
        _unrestored.pop(id(self), None)
        return lost

    def clean(self) -> None:
        """Take traced and fake values out of holders that cannot be restored."""
        for holder in self._unsaved:
            clean(holder)
        self._unsaved = []


def undone(
    compute: Callable[[], T],
    modules: Iterable[torch.nn.Module],
    values: Iterable[Any] = (),
    error: type[FxError] = TraceError,
) -> T:
    """Return ``compute()``, and undo its changes to modules, and to values that these and ``values`` reach."""
    record = Record(modules, values=values)
    try:
        result = record.context.run(compute)
    finally:
        record.restore()
        record.clean()
    expect_none_stuck(record.stuck, error)
    return result


def expect_none_stuck(generators: list[GeneratorType[Any, Any, Any]], error: type[FxError] = TraceError) -> None:
    """Refuse a program that has sent traced values to generators, which cannot be restored."""
    if generators:
        raise error(
            "cannot take a traced value out of a generator",
            where=user_location(generators[0].gi_frame, {}),
            value=generators[0].__qualname__,
            why="a generator that is older than the trace holds it from then on, and it cannot be removed",
            remedy="make the generator in the call, or put the line in a function marked fx.wrap",
        )


_unrestored: dict[int, Record] = {}
"""Records of modules that are being traced; also of ended traces, if a signal has prevented their restoration."""


def forget_traced_values() -> None:
    """Take the traced values of ended traces out of modules."""
    for record in list(_unrestored.values()):
        record.forget_traced_values()


def _has_ended(value: Proxy) -> bool:
    """Return whether the trace that made a value has ended."""
    trace = value.tracer._state.trace
    return trace is None or not trace.is_running()


_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def _has_hooks(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _hooks_of(module: torch.nn.Module) -> list[Any]:
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def _is_written_in_place(name: str, value: Proxy) -> bool:
    """Return whether a value is the result of an in-place operation on attribute ``name``: ``self.count += 1``."""
    node = value.node
    while node.op == "call_method" and str(node.target).endswith("_") and isinstance(node.args[0], Node):
        node = node.args[0]
    return node is not value.node and node.op == "get_attr" and str(node.target).rpartition(".")[2] == name


def _places_recorded(value: Any) -> list[Place]:
    """Return the places of a value that are restored: none of an object of a library, which may be a lock."""
    kind = type(value)
    if isinstance(value, (ModuleType, FunctionType, torch.jit.ScriptModule, CACHE)):
        return []
    places = places_of(value)
    is_known = isinstance(value, (torch.Tensor, torch.nn.Module)) or kind in (*CONTAINERS, *_REPLACED)
    if is_known or not is_of_library(kind):
        return places
    return [place for place in places if place.kind in (PROGRESS, RANDOM)]
