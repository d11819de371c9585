"""Attributes of a module hierarchy by dotted paths: reads, writes, and the check that a path is the program's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from fx.modules.containers import Container
from fx.node import Node

MISSING = object()
"""The result for a missing attribute, where ``None`` may be a value."""

LEFT_BY_SCRIPTING = frozenset({"__overloads__"})
"""The attributes that ``torch.jit.script`` leaves in compiled modules."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: torch.nn.Module) -> bool:
    """Return whether the module has hooks, for calls or for gradients."""
    state = vars(module)
    return any(state.get(name) for name in _HOOKS)


def does_as_its_class(module: torch.nn.Module) -> bool:
    """Return whether a call of the module does only the work of its class: no hooks, no ``forward`` on the instance."""
    return "forward" not in vars(module) and not has_hooks(module)


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


def training_flag(root: torch.nn.Module, value: Any) -> bool | None:
    """Return the present training flag, if ``value`` is a node that reads one below ``root``.

    >>> import torch, fx
    >>> graph = fx.Graph()
    >>> training_flag(torch.nn.ReLU().eval(), graph.get_attr("training"))
    False
    """
    path = value.target if isinstance(value, Node) and value.op == "get_attr" else ""
    flag = find_attribute(root, path) if str(path).rpartition(".")[2] == "training" else None
    return flag if type(flag) is bool else None


def prefixes(path: str) -> Iterator[str]:
    """Yield the paths of the modules around ``path``, outermost first, and then ``path``.

    >>> list(prefixes("layer.norm.weight"))
    ['layer', 'layer.norm', 'layer.norm.weight']
    """
    names = path.split(".")
    for length in range(1, len(names) + 1):
        yield ".".join(names[:length])


def is_own(program: torch.nn.Module, path: str) -> bool:
    """Return whether the attribute at ``path`` may be replaced or removed: modules on the way are the program's own.

    These are containers, made for the program. Other modules are shared with the traced module.
    """
    owner: Any = program
    for name in path.split(".")[:-1]:
        owner = getattr(owner, name, MISSING)
        if owner is MISSING:
            return True
        if not isinstance(owner, Container):
            return False
    return True


def container_at(module: torch.nn.Module, path: str) -> torch.nn.Module:
    """Return the module at ``path``, the module itself for an empty path; create missing modules on the way."""
    for name in path.split(".") if path else ():
        child = module._modules.get(name)
        if child is None:
            child = module._modules[name] = Container()
        module = child
    return module


def put_attribute(module: torch.nn.Module, path: str, value: Any, persistent: bool = True) -> None:
    """Set the attribute at ``path``; a tensor that is not a parameter becomes a buffer, ``persistent`` or not."""
    prefix, _, name = path.rpartition(".")
    owner = container_at(module, prefix)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        owner.register_buffer(name, value, persistent=persistent)
    else:
        setattr(owner, name, value)


def remove_attribute(module: torch.nn.Module, path: str, kept: AbstractSet[str] = frozenset()) -> None:
    """Remove the attribute at ``path``, and modules on the way that become empty, except those in ``kept``."""
    prefix, _, name = path.rpartition(".")
    owner = fetch_attribute(module, prefix)
    delattr(owner, name)
    if (
        prefix
        and prefix not in kept
        and not any(vars(owner)[table] for table in ("_modules", "_parameters", "_buffers"))
    ):
        remove_attribute(module, prefix, kept)


def free_path(module: torch.nn.Module, path: str) -> str:
    """Return ``path``, with a number appended if it is not free."""
    numbered = itertools.chain([path], (f"{path}_{number}" for number in itertools.count(1)))
    return next(candidate for candidate in numbered if find_attribute(module, candidate, MISSING) is MISSING)


# Names that client code of torch.fx imports from its module graph_module.

USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"
"""The entry of ``meta`` in which transforms note attributes that copies keep; a ``GraphModule`` here keeps them all."""


class CodeOnlyModule(torch.nn.Module):
    """A module that shares ``body``, the ``__dict__`` of another module."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__ = body


def assign_attr(from_obj: object, to_module: torch.nn.Module, target: str) -> None:
    """Set the attribute of a module at a dotted path; a tensor that is not a parameter becomes a buffer."""
    put_attribute(to_module, target, from_obj)


def copy_attr(from_module: torch.nn.Module, to_module: torch.nn.Module, target: str) -> None:
    """Copy the attribute at a dotted path from one module to another, unless they share a module on the way."""
    source: Any = from_module
    destination: Any = to_module
    for name in target.split(".")[:-1]:
        source, destination = getattr(source, name), getattr(destination, name, None)
        if source is destination:
            return
    put_attribute(to_module, target, fetch_attribute(from_module, target))


def del_attr(model: torch.nn.Module, attr_name: str) -> None:
    """Delete the attribute of a module at a dotted path."""
    path, _, name = attr_name.rpartition(".")
    delattr(fetch_attribute(model, path), name)


def has_attr(model: torch.nn.Module, attr_name: str) -> bool:
    """Return whether a module has an attribute at a dotted path; torch.fx returns False for any path with a dot."""
    return find_attribute(model, attr_name, MISSING) is not MISSING
