"""What stands in a module hierarchy at a dotted path, and whether the place is the program's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fx.modules.containers import Container

MISSING = object()
"""Stands for an attribute that is not there, where ``None`` may be one."""


def fetch_attribute(module: torch.nn.Module, path: str) -> Any:
    """Return the attribute at ``path``; the module itself for an empty path.

    Raises:
        AttributeError: there is none.

    >>> fetch_attribute(torch.nn.Sequential(torch.nn.ReLU()), "0.inplace")
    False
    """
    value: Any = module
    for name in path.split(".") if path else ():
        value = getattr(value, name)
    return value


def find_attribute(module: torch.nn.Module | None, path: str, default: Any = None) -> Any:
    """Return the attribute at ``path``, or ``default`` if there is none."""
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name, MISSING)
        if value is MISSING:
            return default
    return value


def prefixes(path: str) -> Iterator[str]:
    """Yield the path and those of the modules around it, the outermost first.

    >>> list(prefixes("layer.norm.weight"))
    ['layer', 'layer.norm', 'layer.norm.weight']
    """
    names = path.split(".")
    for length in range(1, len(names) + 1):
        yield ".".join(names[:length])


def is_own(program: torch.nn.Module, path: str) -> bool:
    """Whether what stands at ``path`` may be replaced or removed: all modules on the way are the program's own.

    Those are containers, made for the program. Others are shared with the module that was traced.
    """
    owner: Any = program
    for name in path.split(".")[:-1]:
        owner = getattr(owner, name, MISSING)
        if owner is MISSING:
            return True
        if not isinstance(owner, Container):
            return False
    return True
