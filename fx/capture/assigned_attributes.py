"""Attributes of modules that the traced code assigns, and those of them that the next call of the program may see.

Where the code that is reached assigns an attribute by its name, modules have a descriptor under that name while the
program runs, which notes reads and assignments. What is read only afterwards leaves nothing for the next call.
"""

from __future__ import annotations

from typing import Any

import torch

from fx.capture import patching
from fx.capture.patching import Trace
from fx.capture.restore.record import Change, Record

_READS_OF_ALL = frozenset({"__dict__", "dir", "vars"})
"""Names by which code reads attributes past their descriptors."""


class AssignedAttributes:
    """The attributes that the traced code of one run assigns, and those that it reads before."""

    def __init__(self) -> None:
        """None, as yet."""
        self._assigned: set[tuple[int, str]] = set()
        self._read_before: set[tuple[int, str]] = set()

    def watch(self, trace: Trace, state: Record) -> None:
        """Let modules tell which attributes are read and assigned, as long as the trace runs."""
        around = state.facts
        if _READS_OF_ALL.isdisjoint(around.read):
            for name in around.stored:
                if not name.startswith("__") and not hasattr(torch.nn.Module, name):
                    trace.replace(torch.nn.Module, (name,), lambda _, name=name: _Watched(name), absent=True)

    def read(self, module: torch.nn.Module, name: str) -> None:
        """Note that an attribute is read, or looked for."""
        if (id(module), name) not in self._assigned:
            self._read_before.add((id(module), name))

    def assign(self, module: torch.nn.Module, name: str) -> None:
        """Note that an attribute is set."""
        self._assigned.add((id(module), name))

    def seen_by_next_call(self, changes: list[Change], state: Record) -> list[Change]:
        """Return those of the changes that the next call of the program may see before it makes them itself."""
        held = {(id(owner), name) for owner, name in state.changed_holders()}
        unseen = self._assigned - self._read_before - held
        return [(owner, name) for owner, name in changes if (id(owner), name) not in unseen]


class _Watched:
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
