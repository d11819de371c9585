"""Functions on attributes at dotted paths, as client code of torch.fx imports them from its ``graph_module``."""

from __future__ import annotations

from typing import Any

import torch

from fx.modules.attributes import MISSING, fetch_attribute, find_attribute, put_attribute

USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"
"""The entry of ``meta`` in which transforms note attributes that copies keep; a ``GraphModule`` here keeps them all."""


class CodeOnlyModule(torch.nn.Module):
    """A module whose attributes are those of ``body``, the ``__dict__`` of another one, which it shares."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__ = body


def assign_attr(from_obj: object, to_module: torch.nn.Module, target: str) -> None:
    """Make an object the attribute of a module at a dotted path; a tensor that is not a parameter becomes a buffer."""
    put_attribute(to_module, target, from_obj)


def copy_attr(from_module: torch.nn.Module, to_module: torch.nn.Module, target: str) -> None:
    """Make the attribute of a module at a dotted path that of another one, unless they share a module on the way."""
    source: Any = from_module
    held: Any = to_module
    for name in target.split(".")[:-1]:
        source, held = getattr(source, name), getattr(held, name, None)
        if source is held:
            return
    put_attribute(to_module, target, fetch_attribute(from_module, target))


def del_attr(model: torch.nn.Module, attr_name: str) -> None:
    """Delete the attribute of a module at a dotted path."""
    path, _, name = attr_name.rpartition(".")
    delattr(fetch_attribute(model, path), name)


def has_attr(model: torch.nn.Module, attr_name: str) -> bool:
    """Return whether a module has an attribute at a dotted path. torch.fx says no of any path with a dot."""
    return find_attribute(model, attr_name, MISSING) is not MISSING
