"""What a module is set to, its tensors aside: whether calls of two modules are calls of one operation."""

from __future__ import annotations

from typing import Any

import torch

from fx.modules.attributes import does_as_its_class

_BOOKKEEPING = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"})


def same_settings(left: torch.nn.Module, right: torch.nn.Module) -> bool:
    """Return whether two modules differ in nothing but the values of their tensors.

    Compared are class, mode, attributes that are not tensors, which parameters and buffers there are, and the children.
    Modules with hooks, or with a ``forward`` of their own, are only like themselves.
    """
    pending: list[tuple[Any, Any]] = [(left, right)]
    while pending:
        left, right = pending.pop()
        if left is right:
            continue
        if type(left) is not type(right) or not (does_as_its_class(left) and does_as_its_class(right)):
            return False
        if _attributes(left) != _attributes(right) or left._modules.keys() != right._modules.keys():
            return False
        pending.extend(zip(left._modules.values(), right._modules.values(), strict=True))
    return True


def _attributes(module: torch.nn.Module) -> dict[str, object]:
    """The settings of one module, and which tensors it has, as values that can be compared."""
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        if not (name in _BOOKKEEPING or isinstance(value, torch.Tensor)):
            found[name] = repr(value) if isinstance(value, (float, complex)) else _comparable(value)
    for tensors in (module._parameters, module._buffers):
        found.update((name, tensor is None) for name, tensor in tensors.items())
    return found


def _comparable(value: Any) -> object:
    """A list of tensors, as recurrent modules keep one of their weights, counts by its length."""
    if isinstance(value, (list, tuple)) and any(not isinstance(element, (int, str, bool)) for element in value):
        return len(value)  # type: ignore[arg-type]
    return value
