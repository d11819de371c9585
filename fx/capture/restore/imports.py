"""Modules that a program imports while it is captured: what they keep of replaced functions is put back."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

_MOST_HOLDERS = 20_000
"""Namespaces, containers, classes and functions of one module that are looked at, at most."""


def latest_module() -> str | None:
    """Return the name of the module that was imported last."""
    return next(reversed(sys.modules), None)


def put_back_in_modules_after(latest: str | None, originals: Mapping[int, Any]) -> None:
    """Put the originals of stand-ins, by the identity of these, into modules that were imported after one."""
    names = itertools.takewhile(lambda name: name != latest, reversed(list(sys.modules)))
    for module in [sys.modules.get(name) for name in names]:
        if type(module) is ModuleType:
            _put_back_in(module, originals)


def _put_back_in(module: ModuleType, originals: Mapping[int, Any]) -> None:
    pending: list[Any] = [vars(module)]
    seen: set[int] = set()
    for holder in pending:
        if id(holder) in seen or len(seen) > _MOST_HOLDERS:
            continue
        seen.add(id(holder))
        if isinstance(holder, type):
            for name, value in list(vars(holder).items()):
                function = value.__func__ if isinstance(value, staticmethod) else value
                if id(function) in originals:
                    original = originals[id(function)]
                    setattr(holder, name, staticmethod(original) if function is not value else original)
            entries: Iterable[Any] = vars(holder).values()
        elif isinstance(holder, FunctionType):
            holder.__defaults__ = _with_originals(holder.__defaults__ or (), originals) or None
            entries = (holder.__kwdefaults__ or {},)
        else:
            for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
                if id(value) in originals:
                    holder[key] = originals[id(value)]
            entries = holder.values() if isinstance(holder, dict) else holder
        pending += [value for value in entries if _may_keep(value, module.__name__)]


def _with_originals(values: Sequence[Any], originals: Mapping[int, Any]) -> tuple[Any, ...]:
    return tuple(originals.get(id(value), value) for value in values)


def _may_keep(value: Any, module: str) -> bool:
    """Return whether a value is a container, or a class or function of a module."""
    return type(value) in (dict, list) or (isinstance(value, (type, FunctionType)) and value.__module__ == module)
