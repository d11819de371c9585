"""Dotted names of call targets: names for source, each checked by a look-up, and names for people alone."""

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
"""The namespaces to search for built-in functions that do not know their module."""

_paths: dict[Any, str] = {}


def words(text: str) -> tuple[str, ...]:
    """Split a table's text into its names, written without quotes and commas."""
    return tuple(text.split())


def torch_path(target: Any) -> str | None:
    """Return the dotted path from the ``torch`` module to ``target``, or None if there is none.

    >>> torch_path(torch.relu)
    'torch.relu'
    """
    try:
        path = _paths.get(target)
    except TypeError:  # unhashable
        return None
    if path is None:
        path = next((path for path in _candidates(target) if resolves_to(torch, path, target)), None)
        if path is not None:
            _paths[target] = path
    return path


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
    in_module: list[str] = []
    if isinstance(module, str) and module.partition(".")[0] == "torch":
        # a function defined inside another, such as functional.max_pool2d, may be found by its plain name only
        in_module += [f"{module}.{name}", f"{module}.{short}", f"{module}.{getattr(target, '__name__', short)}"]
    elif isinstance(module, str):
        return []
    everywhere = [f"{namespace}.{short}" for namespace in _TORCH_NAMESPACES]
    # public names first: functional.gelu is the same function as torch._C._nn.gelu
    return [*everywhere[:2], *in_module, *everywhere[2:]]


def qualified_name(target: Callable[..., Any]) -> str:
    """Return a dotted name for people and for variables: ``operator.add``, ``torch.relu``, ``package.function``."""
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
    """Return whether generated code reaches an object through ``torch``, rather than through its own global."""
    return torch_path(target) is not None


def module_qualified_name(target: Callable[..., Any]) -> str:
    """Return a function's name after the name of its defining module, as in tables of torch.fx's clients.

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
    """Return the module in a function's ``__module__``, if the function is found there by its name.

    A wrapper from ``functools.wraps`` has the name and module of the wrapped function, but is not found there.
    """
    name = getattr(target, "__name__", None)
    home = sys.modules.get(getattr(target, "__module__", None) or "")
    return home if isinstance(name, str) and getattr(home, name, None) is target else None


def is_builtin(target: object) -> bool:
    """Return whether ``target`` is a builtin, which code reaches by its plain name, like ``len``."""
    name = getattr(target, "__name__", None)
    return type(name) is str and getattr(builtins, name, None) is target


def candidate_name(target: Callable[..., Any] | str) -> str:
    """Return a candidate for the name of a value from ``target``, not yet legal and unique."""
    name = target if isinstance(target, str) else getattr(target, "__name__", None)
    if not isinstance(name, str):
        name = type(target).__name__
    if name.startswith("__") and name.endswith("__") and len(name) > 4:
        return name[2:-2]
    return name
