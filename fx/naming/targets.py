"""Dotted names of call targets, each proved by looking it up: what may stand in source, and what is only for people."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from functools import reduce
from types import ModuleType
from typing import Any

import torch

_TORCH_NAMESPACES = (
    "torch",
    "torch.nn.functional",
    "torch.Tensor",
    "torch._C._nn",
    "torch._C._linalg",
    "torch._C._fft",
    "torch._C._special",
    "torch._C._sparse",
    "torch._C._nested",
)
"""Where built-in functions that do not know their module may live."""

_paths: dict[Any, str] = {}


def words(text: str) -> tuple[str, ...]:
    """Split a table's text into the names that it lists, which stand there without quotes and commas."""
    return tuple(text.split())


def torch_path(target: Any) -> str | None:
    """The dotted path that leads from the ``torch`` module to ``target``, or None where there is none.

    >>> torch_path(torch.relu)
    'torch.relu'
    """
    try:
        known = _paths.get(target)
    except TypeError:  # unhashable
        return None
    if known is None:
        known = next((path for path in _candidates(target) if resolves_to(torch, path, target)), None)
        if known is not None:
            _paths[target] = known
    return known


def resolves_to(root: Any, path: str, target: object) -> bool:
    """Return whether following ``path`` (whose first part names ``root``) by attributes ends at ``target``."""
    parts = path.split(".")
    if not all(map(str.isidentifier, parts)):
        return False
    try:
        return reduce(getattr, parts[1:], root) is target
    except (AttributeError, RuntimeError):
        return False


def _candidates(target: Any) -> list[str]:
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return [f"torch.ops.{target}"]
    if isinstance(target, torch._ops.HigherOrderOperator):
        return [f"torch.ops.higher_order.{target.name()}"]
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    module = getattr(target, "__module__", None)
    if not isinstance(name, str):
        return []
    short = name.rpartition(".")[2]
    found: list[str] = []
    if isinstance(module, str) and module.partition(".")[0] == "torch":
        # a function made inside another one, as functional.max_pool2d is, may be found under its plain name only
        found += [f"{module}.{name}", f"{module}.{short}", f"{module}.{getattr(target, '__name__', short)}"]
    elif isinstance(module, str):
        return []
    everywhere = [f"{namespace}.{short}" for namespace in _TORCH_NAMESPACES]
    # public names first: functional.gelu is the same function as torch._C._nn.gelu
    return [*everywhere[:2], *found, *everywhere[2:]]


def qualified_name(target: Callable[..., Any]) -> str:
    """A dotted name for people and for variable names: ``operator.add``, ``torch.relu``, ``package.function``."""
    if (path := torch_path(target)) is not None:
        return path
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if not isinstance(name, str):
        return f"{type(target).__module__}.{type(target).__qualname__}"
    module = getattr(target, "__module__", None)
    if module == "_operator":
        module = "operator"
    return f"{module}.{name}" if isinstance(module, str) else name


def is_from_torch(target: Any) -> bool:
    """Return whether generated code reaches an object through ``torch``, rather than by a global of its own."""
    return torch_path(target) is not None


def module_qualified_name(target: Callable[..., Any]) -> str:
    """A function's name behind that of the module that defines it, by which tables of torch.fx's clients list it.

    >>> import operator
    >>> module_qualified_name(operator.add), module_qualified_name(len), module_qualified_name(torch.Tensor.add)
    ('_operator.add', 'len', 'torch.Tensor.add')
    """
    name = target.__name__
    if is_builtin(target):
        return name
    if getattr(torch.Tensor, name, None) is target:
        return f"torch.Tensor.{name}"
    module = target.__module__
    if module is None:  # pyright: ignore[reportUnnecessaryComparison]  functions of torch are built in
        return qualified_name(target)
    return f"{module.replace('torch._ops', 'torch.ops')}.{name}"


def home_of(target: object) -> ModuleType | None:
    """Return the module that a function says it is of, if it is found there by its name.

    One that imitates another, as ``functools.wraps`` makes it, has that one's name and module, but is not found there.
    """
    home = sys.modules.get(getattr(target, "__module__", None) or "")
    return home if home is not None and getattr(home, getattr(target, "__name__", ""), None) is target else None


def is_builtin(target: object) -> bool:
    """Return whether ``target`` is reached by its plain name everywhere, like ``len``."""
    name = getattr(target, "__name__", None)
    return type(name) is str and getattr(builtins, name, None) is target


def candidate_name(target: Callable[..., Any] | str) -> str:
    """Return what to call a value made by ``target``, before it is made legal and unique."""
    name = target if isinstance(target, str) else getattr(target, "__name__", None)
    if not isinstance(name, str):
        name = type(target).__name__
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        return name[2:-2]
    return name
