"""Entries of dictionaries and classes for which others stand in while programs are traced.

An exception that a handler of signals raises can interrupt between any two steps. So what stands in is noted before it
is written, and :meth:`Replacement.undo`, which puts back what was there, can be interrupted and called again.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

Maker = Callable[[Any], Any]
"""From what an entry is to what stands in for it."""
ABSENT = object()
"""What a name stands for that a dictionary does not have."""


class Replacement:
    """Entries of one dictionary or class, what stands in for each, and the traces that need it."""

    __slots__ = ("absent", "holders", "makers", "namespace", "originals", "owner", "stand_ins")

    def __init__(self, owner: dict[str, Any] | type, makers: Mapping[str, Maker], absent: bool = False) -> None:
        """Replace, once it is put on, the names in ``makers`` by what these make of what the names stand for.

        A name that is not there stands for the builtin. With ``absent``, one that is no builtin either is made of
        ``None``, and left out without.
        """
        self.owner = owner
        self.namespace: Mapping[str, Any] = vars(owner) if isinstance(owner, type) else owner
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
        for name, make in self.makers.items():
            found = namespace.get(name, ABSENT)
            if originals.get(name, self) is found:
                continue
            original = getattr(builtins, name, None) if found is ABSENT else found
            if original is not None or self.absent:
                self.stand_ins[name] = make(original)
                originals[name] = found

    def put_on(self) -> None:
        """Let the others stand in, where the entries are what they were."""
        owner, originals = self.owner, self.originals
        if not isinstance(owner, type) and _holds(owner, originals):
            owner.update(self.stand_ins)
            return
        for name, value in self.stand_ins.items():
            if self.namespace.get(name, ABSENT) is originals[name]:
                _write(owner, name, value)

    def undo(self) -> None:
        """Put back what was there, but where somebody else has replaced it meanwhile."""
        owner, originals = self.owner, self.originals
        if not isinstance(owner, type) and _holds(owner, self.stand_ins):
            for name, original in originals.items():
                if original is ABSENT:
                    del owner[name]
                else:
                    owner[name] = original
            return
        for name, value in self.stand_ins.items():
            if self.namespace.get(name) is value:
                _write(owner, name, originals[name])


def _holds(owner: dict[str, Any], entries: dict[str, Any]) -> bool:
    """Return whether a dictionary has all of these entries."""
    return all(map(operator.is_, map(owner.get, entries, repeat(ABSENT)), entries.values()))


def _write(owner: dict[str, Any] | type, name: str, value: Any) -> None:
    if isinstance(owner, type):
        if value is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    elif value is ABSENT:
        del owner[name]
    else:
        owner[name] = value


class Builtins:
    """Stand-ins for builtins that code with certain globals calls by their names: one set for all such globals."""

    def __init__(self, makers: Mapping[str, Maker]) -> None:
        """``makers`` are those of each name's stand-in."""
        self.makers = makers
        self._stand_ins = {name: make(getattr(builtins, name)) for name, make in makers.items()}
        self._absent = dict.fromkeys(makers, ABSENT)

    def replacement_in(self, namespace: dict[str, Any]) -> Replacement:
        """Return what replaces, in globals, the names that they do not have."""
        made = Replacement(namespace, self.makers)
        if self.makers.keys().isdisjoint(namespace):
            made.originals, made.stand_ins = self._absent, self._stand_ins
        else:
            names = self.makers.keys() - namespace.keys()
            made.originals = {name: ABSENT for name in self.makers if name in names}
            made.stand_ins = {name: self._stand_ins[name] for name in made.originals}
        return made
