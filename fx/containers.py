"""Modules that only hold others: what a ``GraphModule`` puts where the traced model had containers.

``nn.Module`` finds a child by a failed look-up and then ``__getattr__``, which costs generated code more than the
container itself cost eager code. Here each child also gets a property that reads ``_modules``, so it stays true
whatever replaces the child.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch


class Container(torch.nn.Module):
    """Holds submodules and attributes under names; prints as ``Module``."""

    def _get_name(self) -> str:
        return "Module"

    def __reduce__(self) -> Any:
        return Container, (), self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> Container:
        copied = Container()
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied


def child_property(name: str) -> property:
    """A property that reads the child ``name``; where it is gone, look-up goes on as for any module."""

    def child(self: torch.nn.Module) -> Any:
        try:
            return self._modules[name]
        except KeyError:
            raise AttributeError(name) from None

    return property(child)


def add_child_properties(cls: Any, names: Iterable[str]) -> None:
    """Give ``cls`` a property for each name that it does not use for something else."""
    added = [name for name in names if not hasattr(cls, name)]
    for name in added:
        setattr(cls, name, child_property(name))
    # TorchScript would compile properties; it knows children without them
    cls.__jit_unused_properties__ = [*getattr(cls, "__jit_unused_properties__", []), *added]


@lru_cache(maxsize=1024)
def _container_class(names: tuple[str, ...]) -> type[Container]:
    cls: type[Container] = type("Container", (Container,), {"__module__": __name__})
    add_child_properties(cls, names)
    return cls


def quicken(module: torch.nn.Module) -> None:
    """Make look-ups of children quick in the containers reached from ``module`` through containers."""
    pending: list[Callable[[], Iterable[Any]]] = [module._modules.values]
    while pending:
        for child in pending.pop()():
            if isinstance(child, Container):
                child.__class__ = _container_class(tuple(child._modules))
                pending.append(child._modules.values)
