"""What calling the traced root does besides its ``forward``: hooks, and methods that an instance or class replaces."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch

from fx.arguments import shown
from fx.capture.signature import function_calling
from fx.errors import TraceError, type_in_words
from fx.modules.containers import QuickModule
from fx.provenance import defined_at
from fx.proxy import TracerBase


def own_method(root: torch.nn.Module, name: str) -> Any:
    """The function that a call of ``root.name`` runs, given ``root``; ``None`` if there is none.

    Raises:
        TraceError: it cannot be traced, or calling the root does something else than its hooks and that method.
    """
    own = vars(root).get(name)
    if name == "forward":
        _refuse_other_calls(root)
    if own is None or isinstance(own, torch.nn.Module):
        held = inspect.getattr_static(type(root), name, None)
        if isinstance(held, (staticmethod, classmethod, functools.partialmethod)):
            return _with_owner(root, name)
        return getattr(type(root), name, None)
    if isinstance(own, MethodType) and own.__self__ is root and isinstance(own.__func__, FunctionType):
        return own.__func__
    raise TraceError(
        f"cannot trace {name!r} of {type_in_words(root)}, which its instance has replaced",
        where=defined_at(own),
        value=shown(own),
        why=f"the {name} of its class would be captured, and is not what a call of it runs",
        remedy=f"override {name} in a subclass, or capture a module that calls this one",
    )


def _with_owner(root: torch.nn.Module, name: str) -> FunctionType:
    """A function of the root and the arguments of a method that is not given the root as one of its own."""
    method = getattr(root, name)
    found = function_calling(method, owner="self")
    if found is None:
        raise TraceError(
            f"cannot trace {name!r} of {type_in_words(root)}, which takes *args or **kwargs and is no plain method",
            where=defined_at(inspect.unwrap(getattr(method, "func", method))),
            value=shown(method),
            why="what is captured is a function of the module and of one input for each parameter",
            remedy=f"write def {name}(self, ...) that calls it",
        )
    return found


def _refuse_other_calls(root: torch.nn.Module) -> None:
    call = type(root).__call__
    known = isinstance(root, (QuickModule, torch.jit.ScriptModule)) or getattr(call, "__module__", "").startswith(
        ("torch.", "fx.")
    )
    if not known and isinstance(call, FunctionType):
        raise TraceError(
            f"cannot trace {type_in_words(root)}, whose class replaces __call__",
            where=defined_at(call),
            value=shown(root),
            why="its forward would be captured alone, without what its __call__ does",
            remedy="move that into forward, or capture a module that calls this one",
        )
    for hooks in (root._backward_hooks, root._backward_pre_hooks):
        for hook in hooks.values():
            raise TraceError(
                f"cannot trace {type_in_words(root)} that has backward hooks itself",
                where=defined_at(hook),
                value=shown(hook),
                why="they belong to the call of this module, which the program takes the place of",
                remedy="capture it without, and register them on the program; inner modules may have some",
            )


def calling(root: torch.nn.Module, called: Callable[..., Any], tracer: TracerBase) -> Callable[..., Any]:
    """``called``, which takes the root first, with the forward hooks of the root around it."""
    if tracer.traced_func_name != "forward" or not (root._forward_pre_hooks or root._forward_hooks):
        return called

    def with_hooks(_: Any, *args: Any) -> Any:
        kwargs: dict[str, Any] = {}
        for number, hook in list(root._forward_pre_hooks.items()):
            if number in root._forward_pre_hooks_with_kwargs:
                changed: Any = hook(root, args, kwargs)  # type: ignore[call-arg]
                args, kwargs = (args, kwargs) if changed is None else changed
            elif (changed := hook(root, args)) is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = called(root, *args, **kwargs)
        for number, hook in list(root._forward_hooks.items()):
            if number in root._forward_hooks_with_kwargs:
                changed = hook(root, args, kwargs, result)  # type: ignore[call-arg]
            else:
                changed = hook(root, args, result)
            result = result if changed is None else changed
        return result

    with_hooks.__annotations__ = getattr(called, "__annotations__", {})
    return with_hooks
