"""Entries of dictionaries and classes that are replaced while programs are traced.

The exception of a signal handler can interrupt between any two steps. So a replacement is noted before it is written,
and :meth:`Replacement.undo`, which restores the original, can be interrupted and called again.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import operator
from collections.abc import Callable, Mapping
from itertools import repeat
from types import FunctionType
from typing import Any

from fx.capture.restore.places import ABSENT

Maker = Callable[[Any], Any]
"""A function that makes the replacement for the original value of an entry."""


class Replacement:
    """Entries of one dictionary or class, the replacement for each, and the traces that need them."""

    __slots__ = ("absent", "entries", "holders", "makers", "namespace", "originals", "owner", "stand_ins")

    def __init__(self, owner: dict[str, Any] | type, makers: Mapping[str, Maker], absent: bool = False) -> None:
        """Prepare to replace the names in ``makers`` by the results of these for the original values.

        A name that the owner lacks means the builtin.

        Args:
            owner: the dictionary or class.
            makers: by name, the function that makes the replacement.
            absent: for a name that is no builtin either, true to call the maker with ``None``, false to leave it out.
        """
        self.owner = owner
        self.namespace: Mapping[str, Any] = vars(owner) if isinstance(owner, type) else owner
        self.entries = _entries_of(owner) if isinstance(owner, type) else owner
        """The dictionary to write to; None if each attribute of the class has to be set."""
        self.makers = makers
        self.absent = absent
        self.originals: dict[str, Any] = {}
        """The original value of each name."""
        self.stand_ins: dict[str, Any] = {}
        self.holders: set[Any] = set()
        """The traces that need it."""

    def prepare(self) -> None:
        """Make the replacements for the current values, again if a value has changed since the last time."""
        namespace, originals = self.namespace, self.originals
        if len(originals) == len(self.makers) and _holds(namespace, originals):
            return
        for name, make in self.makers.items():
            current = namespace.get(name, ABSENT)
            if originals.get(name, self) is current:
                continue
            original = getattr(builtins, name, None) if current is ABSENT else current
            if original is not None or self.absent:
                self.stand_ins[name] = value = make(original)
                originals[name] = current
                if isinstance(self.owner, type) and not _is_looked_up(name, current, value):
                    self.entries = None

    def put_on(self) -> None:
        """Install the replacements where the entries have their original values."""
        entries, originals = self.entries, self.originals
        if entries is not None and _holds(entries, originals):
            entries.update(self.stand_ins)
        else:
            for name, value in self.stand_ins.items():
                if self.namespace.get(name, ABSENT) is originals[name]:
                    self._write(name, value)
        if isinstance(self.owner, type):
            _modified(self.owner)

    def undo(self) -> None:
        """Restore the original values, except where other code has replaced them since."""
        entries, originals = self.entries, self.originals
        if entries is not None and _holds(entries, self.stand_ins):
            for name, original in originals.items():  # hundreds for each trace, so without a call for each
                if original is ABSENT:
                    del entries[name]
                else:
                    entries[name] = original
        else:
            for name, value in self.stand_ins.items():
                if self.namespace.get(name) is value:
                    self._write(name, originals[name])
        if isinstance(self.owner, type):
            _modified(self.owner)

    def _write(self, name: str, value: Any) -> None:
        if self.entries is not None:
            if value is ABSENT:
                del self.entries[name]
            else:
                self.entries[name] = value
        elif value is ABSENT:
            delattr(self.owner, name)
        else:
            setattr(self.owner, name, value)


def _holds(owner: Mapping[str, Any], entries: dict[str, Any]) -> bool:
    """Return whether a dictionary has all of these entries."""
    return all(map(operator.is_, map(owner.get, entries, repeat(ABSENT)), entries.values()))


# Setting ``__call__`` of a class makes Python look up how to call instances in all its subclasses: torch.nn.Module has
# hundreds, which takes longer than to trace a small model. If one Python function replaces another, these lookups need
# not be repeated. Python's cache of attributes depends on the version of the class.

_modified: Callable[[type], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyType_Modified", ctypes.pythonapi))
"""Invalidates Python's cache of the attributes of a class and its subclasses."""


def _is_looked_up(name: str, *values: Any) -> bool:
    """Return whether Python looks a name up in the class at each use, for each of these values."""
    return not name.startswith("__") or all(type(value) is FunctionType for value in values)


def _entries_of(owner: type) -> dict[str, Any] | None:
    """Return the dictionary of a class, behind the read-only view of it; None if it cannot be identified."""
    referents = gc.get_referents(vars(owner))
    return referents[0] if len(referents) == 1 and type(referents[0]) is dict else None


class Builtins:
    """Replacements for builtins that code with certain globals calls by name: one set for all such globals."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        """Make the replacement for each name of ``makers``."""
        self.makers = makers
        self.stand_ins = {name: make(getattr(builtins, name)) for name, make in makers.items()}
        """The replacement for each name."""
        for name, value in self.stand_ins.items():
            if isinstance(value, FunctionType):
                vars(value)["_stands_for"] = getattr(builtins, name)
        self._absent = dict.fromkeys(makers, ABSENT)

    def replacement_in(self, namespace: dict[str, Any]) -> Replacement:
        """Return the replacement, in globals, of the names that they do not have."""
        replacement = Replacement(namespace, self.makers)
        if self.makers.keys().isdisjoint(namespace):
            replacement.originals, replacement.stand_ins = self._absent, self.stand_ins
        else:
            names = self.makers.keys() - namespace.keys()
            replacement.originals = {name: ABSENT for name in self.makers if name in names}
            replacement.stand_ins = {name: self.stand_ins[name] for name in replacement.originals}
        return replacement
