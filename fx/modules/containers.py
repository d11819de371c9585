"""Modules that only hold others: a ``GraphModule`` puts them in the place of the traced model's containers.

``nn.Module`` finds a child by a failed look-up and then ``__getattr__``, which costs generated code more than the
container itself cost eager code. So once the code is compiled, children are also in the module's ``__dict__``, where
Python looks first. It is kept equal to ``_modules`` after every write.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch


class Children(dict[str, Any]):
    """The ``_modules`` of a module, with entries mirrored in the module's ``__dict__``."""

    def __init__(self, modules: dict[str, Any], attributes: dict[str, Any]) -> None:
        super().__init__(modules)
        self._attributes = attributes
        self.mirrored: set[str] = set()
        """The names in both."""

    def mirror(self, names: Iterable[str] = ()) -> None:
        """Mirror these entries too, and update the attributes."""
        self.mirrored.update(names)
        for name in tuple(self.mirrored):
            self._update_attribute(name)

    def _update_attribute(self, name: str) -> None:
        if self.get(name) is None:
            self._attributes.pop(name, None)
            self.mirrored.discard(name)
        else:
            self._attributes[name] = self[name]

    def __setitem__(self, name: str, module: Any) -> None:
        super().__setitem__(name, module)
        if name in self.mirrored:
            self._update_attribute(name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        if name in self.mirrored:
            self._update_attribute(name)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _then_mirror(name: str) -> Any:
    change = getattr(dict, name)

    def changed(self: Children, *args: Any, **kwargs: Any) -> Any:
        try:
            return change(self, *args, **kwargs)
        finally:
            self.mirror()

    changed.__name__ = name
    return changed


for _name in "__ior__ clear pop popitem setdefault update".split():
    setattr(Children, _name, _then_mirror(_name))


class QuickModule(torch.nn.Module):
    """A module whose children can be in its ``__dict__``, where Python looks first."""

    def quicken(self) -> None:
        """Put the children into ``__dict__``, here and in containers below; other threads may use them meanwhile."""
        own = self.__dict__
        modules = own["_modules"]
        names = [name for name in modules if name not in own and not hasattr(type(self), name)]
        if not isinstance(modules, Children):
            modules = own["_modules"] = Children(modules, own)
        modules.mirror(names)
        for child in list(modules.values()):
            if isinstance(child, Container):
                child.quicken()

    def plain_state(self) -> dict[str, Any]:
        """Return ``__dict__`` without the entries that ``quicken`` added."""
        state = self.__dict__.copy()
        if isinstance(modules := state["_modules"], Children):
            for name in modules.mirrored:
                del state[name]
            state["_modules"] = dict(modules)
        return state

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_modules":  # the whole dict is replaced
            for mirrored in getattr(self.__dict__.get("_modules"), "mirrored", ()):
                self.__dict__.pop(mirrored, None)
        super().__setattr__(name, value)


class Container(QuickModule):
    """A module that only holds submodules and attributes; it prints as ``Module``."""

    def _get_name(self) -> str:
        return "Module"

    def __reduce__(self) -> Any:
        return Container, (), self.plain_state()

    def _replicate_for_data_parallel(self) -> Container:
        replica = copy.copy(self)
        replica._parameters, replica._buffers = {}, self._buffers.copy()
        replica._is_replica = True  # type: ignore[assignment]
        return replica
