"""Modules that a program imports while it is captured: what they keep of replaced functions is put back."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

_MOST_VALUES = 20_000
"""Values of one module that are looked at, at most."""
_ABSENT: Any = object()


def latest_module() -> str | None:
    """Return the name of the module that was imported last."""
    return next(reversed(sys.modules), None)


def put_back_in_modules_after(latest: str | None, originals: Mapping[int, Any]) -> None:
    """Put the originals of stand-ins, by the identity of these, into modules that were imported after one."""
    names = itertools.takewhile(lambda name: name != latest, reversed(list(sys.modules)))
    for module in [sys.modules.get(name) for name in names]:
        if type(module) is ModuleType:
            _Originals(module.__name__, originals).of(vars(module))


class _Originals:
    """What the values of one module are with originals in the place of stand-ins."""

    def __init__(self, module: str, originals: Mapping[int, Any]) -> None:
        self._module = module
        self._originals = originals
        self._seen: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """Return a value with originals in it; what can be changed is changed itself."""
        original = self._originals.get(id(value), _ABSENT)
        if original is not _ABSENT:
            return original
        if id(value) in self._seen or len(self._seen) > _MOST_VALUES:
            return value
        self._seen[id(value)] = value
        kind = type(value)
        if kind in (tuple, frozenset):
            return self._of_elements(value, kind)
        if kind in (staticmethod, classmethod):
            function = self.of(value.__func__)
            return value if function is value.__func__ else kind(function)
        if kind is list and (elements := self._of_elements(value, list)) is not value:
            value[:] = elements
        elif kind is set and (elements := self._of_elements(value, set)) is not value:
            value.clear()
            value.update(elements)
        elif kind is dict:
            self._put_into(value)
        elif kind is partial:
            value.__setstate__((self.of(value.func), self.of(value.args), self.of(value.keywords), vars(value)))
        elif isinstance(value, type) and value.__module__ == self._module:
            for name, held in list(vars(value).items()):
                if (other := self.of(held)) is not held:
                    setattr(value, name, other)
        elif isinstance(value, FunctionType) and value.__module__ == self._module:
            self._put_into_function(value)
        elif kind.__module__ == self._module and isinstance(attributes := getattr(value, "__dict__", None), dict):
            self._put_into(attributes)
        return value

    def _of_elements(self, elements: Any, kind: Any) -> Any:
        others = [self.of(one) for one in elements]
        return elements if all(one is other for one, other in zip(elements, others, strict=True)) else kind(others)

    def _put_into(self, entries: dict[Any, Any]) -> None:
        saved = list(entries.items())
        others = [(self.of(key), self.of(value)) for key, value in saved]
        if any(other is not key for (key, _), (other, _) in zip(saved, others, strict=True)):
            entries.clear()
        for (_, value), (key, other) in zip(saved, others, strict=True):
            if other is not value or key not in entries:
                entries[key] = other

    def _put_into_function(self, function: FunctionType) -> None:
        defaults = self.of(function.__defaults__)
        if defaults is not function.__defaults__:
            function.__defaults__ = defaults
        self.of(function.__kwdefaults__)
        self.of(vars(function))
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:  # nothing yet
                continue
            if (other := self.of(held)) is not held:
                cell.cell_contents = other
