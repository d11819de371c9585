"""Attributes of modules that are no parameters, buffers or modules: numbers, texts, tensors, lists and dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_SIMPLE = (bool, int, float, complex, str, type(None))
_CHANGEABLE = (list, dict)


class AttributeState:
    """The attributes of a program's modules at one time, which calls of the program may change."""

    def __init__(self, program: nn.Module) -> None:
        self._modules = [(vars(module), frozenset(vars(module)), _state(vars(module))) for module in program.modules()]

    @property
    def is_changed(self) -> bool:
        """True if an attribute has another value than before."""
        return next(self._changes(), None) is not None

    def put_back(self) -> None:
        """Give the attributes their values, in the same lists and dicts, and remove new ones."""
        for attributes, name, before in [*self._changes()]:
            if before is None:
                del attributes[name]
                continue
            value, contents = before
            if contents is not None:
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(contents)
            attributes[name] = value

    def _changes(self) -> Iterator[tuple[dict[str, Any], str, tuple[Any, Any] | None]]:
        """Yield the attributes of each changed module, the name of one, and its earlier value; None if it is new."""
        for attributes, names, state in self._modules:
            for name, (value, contents) in state.items():
                now = attributes.get(name, state)
                if not _is_same(now, value) or (contents is not None and not _is_same(now, contents)):
                    yield attributes, name, (value, contents)
            if len(attributes) > len(names):
                yield from ((attributes, name, None) for name in _state(attributes) if name not in names)


def _state(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the public attributes that a program may keep state in, each with a copy of its contents, if it has some.

    Private ones are those of torch and of tools.
    """
    kinds = (*_SIMPLE, *_CHANGEABLE, torch.Tensor)
    return {
        name: (value, value.copy() if isinstance(value, _CHANGEABLE) else None)
        for name, value in attributes.items()
        if name[0] != "_" and isinstance(value, kinds)
    }


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())
    return isinstance(one, _SIMPLE) and one == other
