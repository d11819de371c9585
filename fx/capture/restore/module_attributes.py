"""Attributes of modules: their saved values, and those that the traced code reads and assigns."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from fx.capture import patching
from fx.capture.patching import Trace
from fx.capture.restore.places import ABSENT, same
from fx.capture.restore.reach import Facts
from fx.proxy import Proxy

Owner = torch.nn.Module | FunctionType
Change = tuple[Owner, str]
"""A module or function, and the name under which it reaches a value that has changed."""
_HELD_IN = ("", "_modules", "_parameters", "_buffers")
"""The saved dictionaries of a module: its attributes, and those held in attributes of these names."""
_READS_OF_ALL = frozenset({"__dict__", "dir", "vars"})
"""Names by which code reads attributes without their descriptors."""
_NONE: dict[str, Any] = {}


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
        self._modules = modules
        owns = [module.__dict__ for module in modules]
        self._now: list[dict[str, Any]] = [own[name] if name else own for own in owns for name in _HELD_IN]
        self._saved = [entries.copy() if entries else _NONE for entries in self._now]
        self.kinds_of_torch = {kind for kind in set(map(type, modules)) if kind.__module__.startswith("torch.")}
        """The torch classes among those of the modules, whose attributes calls do not change."""
        of_torch = self.kinds_of_torch
        starts = [len(_HELD_IN) * number for number, module in enumerate(modules) if type(module) not in of_torch]
        places = [start + place for start in starts for place in range(len(_HELD_IN))]
        self._of_users = [[dictionaries[place] for place in places] for dictionaries in (self._now, self._saved)]
        self._numbers: dict[torch.nn.Module, int] | None = None

    def before(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return the saved attributes and buffers of a module."""
        if self._numbers is None:
            self._numbers = {saved_module: len(_HELD_IN) * number for number, saved_module in enumerate(self._modules)}
        if (number := self._numbers.get(module)) is None:  # it was added while the program ran
            return {**module.__dict__, **module._buffers}
        return {**self._saved[number], **self._saved[number + _HELD_IN.index("_buffers")]}

    def changes(self) -> list[ChangedAttribute]:
        """Return the changed attributes.

        All are compared at once by equality first, as models have thousands of entries: an attribute of a torch module
        that is equal to its saved value has the same effect.
        """
        with suppress(Exception):  # comparing a traced value or a tensor may raise
            of_users = ([*itertools.chain(*map(dict.values, dictionaries))] for dictionaries in self._of_users)
            if self._now == self._saved and same(*of_users):
                return []
        return self._each(lambda now, saved: not same([now], [saved]))

    def traced(self) -> list[ChangedAttribute]:
        """Return the attributes that are now traced values. Nothing is compared: another thread may be tracing."""
        return self._each(lambda now, _: isinstance(now, Proxy))

    def _each(self, is_meant: Callable[[Any, Any], bool]) -> list[ChangedAttribute]:
        places = itertools.product(self._modules, _HELD_IN)
        return [
            ChangedAttribute(module, name, where in ("_parameters", "_buffers"), now, saved)
            for (module, where), now, saved in zip(places, self._now, self._saved, strict=True)
            for name in {**saved, **now}
            if is_meant(now.get(name, ABSENT), saved.get(name, ABSENT))
        ]


class AssignedAttributes:
    """The attributes that the traced code of one run assigns, and those that it reads before it assigns them.

    An attribute that is only read afterwards leaves nothing for the next call. If the code assigns an attribute by its
    name, modules have a descriptor under that name while it runs, which notes reads and assignments.
    """

    def __init__(self) -> None:
        """Start without any."""
        self._assigned: set[tuple[int, str]] = set()
        self._read_before: set[tuple[int, str]] = set()

    def watch(self, trace: Trace, facts: Facts) -> None:
        """Note which attributes of modules are read and assigned, as long as the trace runs."""
        if _READS_OF_ALL.isdisjoint(facts.read):
            for name in facts.stored:
                if not name.startswith("__") and not hasattr(torch.nn.Module, name):
                    trace.replace(torch.nn.Module, (name,), lambda _, name=name: _WatchedAttributes(name), absent=True)

    def read(self, module: torch.nn.Module, name: str) -> None:
        """Note that an attribute is read, or looked for."""
        if (id(module), name) not in self._assigned:
            self._read_before.add((id(module), name))

    def assign(self, module: torch.nn.Module, name: str) -> None:
        """Note that an attribute is set."""
        self._assigned.add((id(module), name))

    def seen_by_next_call(self, changes: list[Change], held: list[Change]) -> list[Change]:
        """Return the changes that the next call of the program may see before it makes them itself.

        Args:
            changes: all changes.
            held: the changes in objects that modules and functions hold.
        """
        unseen = self._assigned - self._read_before - {(id(owner), name) for owner, name in held}
        return [(owner, name) for owner, name in changes if (id(owner), name) not in unseen]


class _WatchedAttributes:
    """An attribute of all modules during traces; its value is in the ``__dict__`` of each module that has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, module: torch.nn.Module | None, kind: type) -> Any:
        name = self._name
        if module is None:
            raise AttributeError(f"type object {kind.__name__!r} has no attribute {name!r}")
        session: Any = patching.running_session()
        if session is not None:
            session.assigned.read(module, name)
        if name not in module.__dict__:
            raise AttributeError(name)  # Python continues with __getattr__, which finds parameters and the like
        return module.__dict__[name]

    def __set__(self, module: torch.nn.Module, value: Any) -> None:
        module.__dict__[self._name] = value
        session: Any = patching.running_session()
        if session is not None:
            session.assigned.assign(module, self._name)

    def __delete__(self, module: torch.nn.Module) -> None:
        session: Any = patching.running_session()
        if session is not None:
            session.assigned.read(module, self._name)
            session.assigned.assign(module, self._name)
        if self._name not in module.__dict__:
            raise AttributeError(self._name)
        del module.__dict__[self._name]
