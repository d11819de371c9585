"""Entries of dictionaries and classes for which others stand in while programs are traced.

An exception that a handler of signals raises can interrupt between any two steps. So what stands in is noted before it
is written, and :meth:`Replacement.undo`, which puts back what was there, can be interrupted and called again.
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
"""From what an entry is to what stands in for it."""


class Replacement:
    """Entries of one dictionary or class, what stands in for each, and the traces that need it."""

    __slots__ = ("absent", "entries", "holders", "makers", "namespace", "originals", "owner", "stand_ins")

    def __init__(self, owner: dict[str, Any] | type, makers: Mapping[str, Maker], absent: bool = False) -> None:
        """Replace, once it is put on, the names in ``makers`` by what these make of what the names stand for.

        A name that is not there stands for the builtin. With ``absent``, one that is no builtin either is made of
        ``None``, and left out without.
        """
        self.owner = owner
        self.namespace: Mapping[str, Any] = vars(owner) if isinstance(owner, type) else owner
        self.entries = _entries_of(owner) if isinstance(owner, type) else owner
        """What can be written to; None where each attribute of the class has to be set."""
        self.makers = makers
        self.absent = absent
        self.originals: dict[str, Any] = {}
        """What each name stood for before."""
        self.stand_ins: dict[str, Any] = {}
        self.holders: set[Any] = set()
        """The traces that need it."""

    def prepare(self) -> None:
        """Make what stands in for what is there now: anew, where that is something else than the last time."""
        namespace, originals = self.namespace, self.originals
        if len(originals) == len(self.makers) and _holds(namespace, originals):
            return
        for name, make in self.makers.items():
            found = namespace.get(name, ABSENT)
            if originals.get(name, self) is found:
                continue
            original = getattr(builtins, name, None) if found is ABSENT else found
            if original is not None or self.absent:
                self.stand_ins[name] = value = make(original)
                originals[name] = found
                if isinstance(self.owner, type) and not _is_looked_up(name, found, value):
                    self.entries = None

    def put_on(self) -> None:
        """Let the others stand in, where the entries are what they were."""
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
        """Put back what was there, but where somebody else has replaced it meanwhile."""
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


# Setting ``__call__`` of a class lets Python look at all classes below it, for what calls their instances: of
# torch.nn.Module there are hundreds, which takes longer than to trace a small model. Where one function of Python's
# takes the place of another, all of them stay what they are. What Python has found goes by the class's version.

_modified: Callable[[type], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyType_Modified", ctypes.pythonapi))
"""Lets Python look up anew what a class has, and those below it."""


def _is_looked_up(name: str, *values: Any) -> bool:
    """Return whether Python looks a name up in a class at each use, whichever of the values it stands for."""
    return not name.startswith("__") or all(type(value) is FunctionType for value in values)


def _entries_of(owner: type) -> dict[str, Any] | None:
    """The dictionary of a class, behind the view of it that Python gives; None where it is not found."""
    found = gc.get_referents(vars(owner))
    return found[0] if len(found) == 1 and type(found[0]) is dict else None


class Builtins:
    """Stand-ins for builtins that code with certain globals calls by their names: one set for all such globals."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        """``makers`` are those of each name's stand-in."""
        self.makers = makers
        self.stand_ins = {name: make(getattr(builtins, name)) for name, make in makers.items()}
        """What stands in for each."""
        for name, value in self.stand_ins.items():
            if isinstance(value, FunctionType):
                vars(value)["_stands_for"] = getattr(builtins, name)
        self._absent = dict.fromkeys(makers, ABSENT)

    def replacement_in(self, namespace: dict[str, Any]) -> Replacement:
        """Return what replaces, in globals, the names that they do not have."""
        made = Replacement(namespace, self.makers)
        if self.makers.keys().isdisjoint(namespace):
            made.originals, made.stand_ins = self._absent, self.stand_ins
        else:
            names = self.makers.keys() - namespace.keys()
            made.originals = {name: ABSENT for name in self.makers if name in names}
            made.stand_ins = {name: self.stand_ins[name] for name in made.originals}
        return made
