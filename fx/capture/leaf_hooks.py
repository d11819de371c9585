"""Forward hooks of leaf modules, which run when the program runs, and what they leave for the traced code."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Set
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from fx.bytecode.mentions import stores
from fx.operators.effect_rules import CONTAINER_WRITES

_ADDS = CONTAINER_WRITES | {"add", "put"}
"""Methods of containers and queues that change them."""


def leaves_something(
    module: torch.nn.Module, modules: Collection[torch.nn.Module], held: Collection[int], read: Set[str]
) -> bool:
    """Return whether a forward hook of a module changes what a program holds: the traced code may look for it.

    Args:
        module: the module.
        modules: all modules of the program.
        held: the identities of containers and objects that these hold.
        read: what names of attributes the traced code has.
    """
    state = {**vars(module), **module._parameters, **module._buffers}
    tensors = {name for name, value in state.items() if isinstance(value, torch.Tensor)}  # read when the program runs
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        function, owners = _function(hook)
        if function is None:
            continue
        code = function.__code__
        writes, attributes = stores(code)
        if not writes and _ADDS.isdisjoint(code.co_names):
            continue
        others = (owner for owner in owners if isinstance(owner, torch.nn.Module) and owner is not module)
        if attributes and any(owner in modules for owner in others):
            return True
        if attributes & read - tensors:  # perhaps of the module, which the hook is given
            return True
        if any(id(value) in held for value in _reached(function, code, [module, *owners])):
            return True
    return False


def awaits_input(module: torch.nn.Module) -> bool:
    """Return whether a module gets the shapes of its parameters from the first input, by a hook of its own."""
    held = (*module._parameters.values(), *module._buffers.values())
    return any(one is not None and is_lazy(one) for one in held)


def _function(hook: Any) -> tuple[FunctionType | None, list[Any]]:
    """Return the function behind a hook, with the objects that it is given beside the arguments of the call."""
    owners: list[Any] = []
    while isinstance(hook, functools.partial):
        owners += [*hook.args, *hook.keywords.values()]
        hook = hook.func
    if not isinstance(hook, (FunctionType, MethodType)):
        hook = getattr(hook, "__call__", None)  # noqa: B004 - its method is what is looked at
    if isinstance(hook, MethodType):
        owners.append(hook.__self__)
        hook = hook.__func__
    return hook if isinstance(hook, FunctionType) else None, owners


def _reached(function: FunctionType, code: CodeType, owners: list[Any]) -> Iterator[Any]:
    """Yield what a function names: of its owners, of outer functions, and of the globals."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != type(cell)()]
    for owner in (*owners, *cells):
        yield owner
        held = getattr(owner, "__dict__", {})
        yield from (held[name] for name in code.co_names if name in held)
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
