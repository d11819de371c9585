"""Attributes of modules: what they were, and which of them the traced code reads and assigns."""

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
"""A module, or a function, and what it calls that which has changed."""
_HELD_IN = ("", "_modules", "_parameters", "_buffers")
"""The dictionaries of a module that are kept: its attributes, and those that stand there under these names."""
_READS_OF_ALL = frozenset({"__dict__", "dir", "vars"})
"""Names by which code reads attributes past their descriptors."""
_NONE: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ChangedAttribute:
    """An attribute, child, parameter or buffer that is something else than it was."""

    module: torch.nn.Module
    """The module that has it."""
    name: str
    """Its name."""
    is_state: bool
    """Whether it is, or was, a parameter or buffer."""
    _now: dict[str, Any]
    _saved: dict[str, Any]

    @property
    def value(self) -> Any:
        """What it is now; ``None`` where it is gone."""
        return self._now.get(self.name)

    def put_back(self) -> None:
        """Let it be what it was. Other threads may be using the rest of the module."""
        if self.name in self._saved:
            self._now[self.name] = self._saved[self.name]
        else:
            self._now.pop(self.name, None)


class ModuleAttributes:
    """The attributes, children, parameters and buffers of modules, as they were."""

    def __init__(self, modules: list[torch.nn.Module]) -> None:
        """What they are now."""
        self._modules = modules
        owns = [module.__dict__ for module in modules]
        self._now: list[dict[str, Any]] = [own[name] if name else own for own in owns for name in _HELD_IN]
        self._saved = [one.copy() if one else _NONE for one in self._now]
        self.kinds_of_torch = {kind for kind in set(map(type, modules)) if kind.__module__.startswith("torch.")}
        """The classes of torch's own among those of the modules, which hold nothing that calls change."""
        of_torch = self.kinds_of_torch
        starts = [len(_HELD_IN) * number for number, module in enumerate(modules) if type(module) not in of_torch]
        places = [start + place for start in starts for place in range(len(_HELD_IN))]
        self._of_users = [[held[place] for place in places] for held in (self._now, self._saved)]
        self._numbers: dict[torch.nn.Module, int] | None = None

    def before(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return the attributes and buffers of a module as they were."""
        if self._numbers is None:
            self._numbers = {one: len(_HELD_IN) * number for number, one in enumerate(self._modules)}
        if (number := self._numbers.get(module)) is None:  # it came while the program ran
            return {**module.__dict__, **module._buffers}
        return {**self._saved[number], **self._saved[number + _HELD_IN.index("_buffers")]}

    def changes(self) -> list[ChangedAttribute]:
        """Return what is something else now.

        All are compared in one go by equality first, as models have thousands of entries: an attribute of a module of
        torch's that is equal to what it was does the same.
        """
        with suppress(Exception):  # comparing a traced value or a tensor may raise
            of_users = ([*itertools.chain(*map(dict.values, held))] for held in self._of_users)
            if self._now == self._saved and same(*of_users):
                return []
        return self._each(lambda now, saved: not same([now], [saved]))

    def traced(self) -> list[ChangedAttribute]:
        """Return what is a traced value now. Nothing is compared: another thread may be tracing."""
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
    """The attributes that the traced code of one run assigns, and those that it reads before.

    What is read only afterwards leaves nothing for the next call. Where the code assigns an attribute by its name,
    modules have a descriptor under that name while it runs, which notes reads and assignments.
    """

    def __init__(self) -> None:
        """None, as yet."""
        self._assigned: set[tuple[int, str]] = set()
        self._read_before: set[tuple[int, str]] = set()

    def watch(self, trace: Trace, facts: Facts) -> None:
        """Let modules tell which attributes are read and assigned, as long as the trace runs."""
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
        """Return those of the changes that the next call of the program may see before it makes them itself.

        Args:
            changes: all of them.
            held: those of them that are in what modules and functions hold.
        """
        unseen = self._assigned - self._read_before - {(id(owner), name) for owner, name in held}
        return [(owner, name) for owner, name in changes if (id(owner), name) not in unseen]


class _WatchedAttributes:
    """An attribute of all modules while there are traces: it stands in the ``__dict__`` of each that has it."""

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
            raise AttributeError(name)  # Python goes on with __getattr__, which knows parameters and the like
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
