"""Hooks of modules, and replaced methods: the root's are traced, a leaf's run in the program."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Set
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from fx.arguments import shown
from fx.bytecode.mentions import stores
from fx.capture.restore.places import contents_of
from fx.capture.signature import function_calling
from fx.errors import TraceError, type_in_words
from fx.modules.containers import QuickModule
from fx.operators.effect_rules import CONTAINER_WRITES
from fx.provenance import defined_at
from fx.proxy import TracerBase

_ADDS = CONTAINER_WRITES | {"add", "put"}
"""Methods of containers and queues that change them."""


def own_method(root: torch.nn.Module, name: str) -> Any:
    """Return the function that a call of ``root.name`` runs with ``root`` as first argument; ``None`` if there is none.

    Raises:
        TraceError: it cannot be traced, or a call of the root runs more than its hooks and that method.
    """
    own = vars(root).get(name)
    if name == "forward":
        _refuse_other_calls(root)
    if own is None or isinstance(own, torch.nn.Module):
        attribute = inspect.getattr_static(type(root), name, None)
        if isinstance(attribute, (staticmethod, classmethod, functools.partialmethod)):
            return _with_owner(root, name)
        return getattr(type(root), name, None)
    if isinstance(own, MethodType) and own.__self__ is root and isinstance(own.__func__, FunctionType):
        return own.__func__
    raise TraceError(
        f"cannot trace {name!r} of {type_in_words(root)}, which its instance has replaced",
        where=defined_at(own),
        value=shown(own),
        why=f"the {name} of its class would be captured, but a call runs the replacement",
        remedy=f"override {name} in a subclass, or capture a module that calls this one",
    )


def _with_owner(root: torch.nn.Module, name: str) -> FunctionType:
    """Return a function of the root and a method's arguments, for a method that does not take the root."""
    method = getattr(root, name)
    function = function_calling(method, owner="self")
    if function is None:
        raise TraceError(
            f"cannot trace {name!r} of {type_in_words(root)}, which takes *args or **kwargs and is no plain method",
            where=defined_at(inspect.unwrap(getattr(method, "func", method))),
            value=shown(method),
            why="capture needs a function of the module with one input for each parameter",
            remedy=f"write def {name}(self, ...) that calls it",
        )
    return function


def _refuse_other_calls(root: torch.nn.Module) -> None:
    call = type(root).__call__
    is_plain = isinstance(root, (QuickModule, torch.jit.ScriptModule)) or getattr(call, "__module__", "").startswith(
        ("torch.", "fx.")
    )
    if not is_plain and isinstance(call, FunctionType):
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
                why="they belong to the call of this module, which the program replaces",
                remedy="capture it without, and register them on the program; inner modules may have some",
            )


def calling(root: torch.nn.Module, called: Callable[..., Any], tracer: TracerBase) -> Callable[..., Any]:
    """Return ``called``, a function of the root first, with the forward hooks of the root around it."""
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


def leaves_something(
    module: torch.nn.Module, modules: Collection[torch.nn.Module], held: Collection[int], read: Set[str]
) -> bool:
    """Return whether a forward hook of a module changes objects that a program holds, and the traced code may read.

    Args:
        module: the module.
        modules: all modules of the program.
        held: the identities of the containers and objects in these modules.
        read: the names of the attributes in the traced code.
    """
    state = {**vars(module), **module._parameters, **module._buffers}
    tensors = {name for name, value in state.items() if isinstance(value, torch.Tensor)}  # read when the program runs
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        function, owners = _function(hook)
        if function is None:
            continue
        code = function.__code__
        writes, attributes = stores(code)
        others = (owner for owner in owners if isinstance(owner, torch.nn.Module) and owner is not module)
        if attributes & read - tensors or (attributes and any(owner in modules for owner in others)):
            return True  # the former may be of the module, which the hook takes
        changes = writes or not _ADDS.isdisjoint(code.co_names)
        if changes and any(id(value) in held for value in _reached(function, code, [module, *owners])):
            return True
    return False


def awaits_input(module: torch.nn.Module) -> bool:
    """Return whether a module takes the shapes of its parameters from the first input, by a hook of its own."""
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None and is_lazy(tensor) for tensor in tensors)


def _function(hook: Any) -> tuple[FunctionType | None, list[Any]]:
    """Return the function behind a hook, with the objects that it is bound to."""
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
    """Yield the values that a function names: attributes of its owners, variables of outer functions, and globals."""
    cells = map(contents_of, function.__closure__ or ())
    for owner in (*owners, *cells):
        yield owner
        attributes = getattr(owner, "__dict__", {})
        yield from (attributes[name] for name in code.co_names if name in attributes)
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
