"""``wrap``: functions that tracing records as one call instead of tracing through them (paper, section 5.2)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from fx.arguments import shown
from fx.errors import TraceError, UnsupportedTraceError

_OF_METHODS = "put the lines of the method into a function of the module, mark that, and call it from the method"
F = TypeVar("F", bound="str | Callable[..., Any]")

_registered: dict[tuple[int, str], dict[str, Any]] = {}
_generated: weakref.WeakKeyDictionary[FunctionType, list[str]] = weakref.WeakKeyDictionary()

__all__ = ["wrap"]


def wrap(fn_or_name: F) -> F:
    """Record calls of this function as one ``call_function`` node instead of tracing through it.

    Call at the top level of a module, with a function, as a decorator, or with the name of a global of that module
    (a builtin's, like ``"len"``, too). A function of another module is recorded wherever that module or this one
    calls it by its name. Calls without a traced value among their arguments run as before.

    >>> import torch, fx
    >>> @fx.wrap
    ... def leaf(x):
    ...     return x if x.sum() > 0 else -x
    >>> [node.name for node in fx.symbolic_trace(lambda x: leaf(x) + 1).graph.nodes]
    ['x', 'leaf', 'add', 'output']

    Args:
        fn_or_name: a function, or the name of a global.

    Returns:
        Its argument.

    Raises:
        TraceError: the argument is neither, or the call is not at the top level of a module.
    """
    frame = sys._getframe(1)
    name: str
    definer: ModuleType | None = None
    if isinstance(fn_or_name, str):
        name = fn_or_name
    elif callable(fn_or_name) and isinstance(getattr(fn_or_name, "__name__", None), str):
        name = fn_or_name.__name__
        definer = sys.modules.get(getattr(fn_or_name, "__module__", None) or "")
    else:
        raise TraceError(
            f"fx.wrap takes a function or the name of one, not {shown(fn_or_name)}",
            remedy='write @fx.wrap above the function, or fx.wrap("name") at the top level of the module',
        )
    owner, _, _ = str(getattr(fn_or_name, "__qualname__", "")).rpartition(".")
    is_method = isinstance(fn_or_name, (FunctionType, MethodType)) and owner and not owner.endswith("<locals>")
    is_global = frame.f_globals.get(name) is fn_or_name
    if frame.f_code.co_name != "<module>" or (is_method and not is_global):
        inside = "on a method" if frame.f_code.co_name == "<module>" else f"inside {frame.f_code.co_name}"
        move = f'move fx.wrap("{name}") to the top level of the module'
        raise UnsupportedTraceError(
            f"fx.wrap must be called at the top level of a module, not {inside}",
            why=f"it replaces the global {name!r} while a program is traced, so it is declared once, where globals are",
            remedy=_OF_METHODS if is_method else move,
        )
    _registered[id(frame.f_globals), name] = frame.f_globals
    if definer is not None and definer.__dict__ is not frame.f_globals and definer.__dict__.get(name) is fn_or_name:
        _registered[id(definer.__dict__), name] = definer.__dict__
    return fn_or_name  # pyright: ignore[reportReturnType]  it is what came in


def is_marked(function: FunctionType) -> bool:
    """Return whether a function is marked where it is defined; a pass may call one that no trace has met."""
    key = id(function.__globals__), function.__name__
    marked = next((marks[key].get(function.__name__) for marks in _registries() if key in marks), None)
    return marked is function or getattr(marked, "__wrapped__", None) is function


def _registries() -> tuple[dict[tuple[int, str], dict[str, Any]], ...]:
    """Return the marks: our own, and those that ``torch.fx.wrap`` notes in its own registry."""
    return _registered, getattr(sys.modules.get("torch.fx._symbolic_trace"), "_wrapped_fns_to_patch", {})


def wrap_generated(function: FunctionType, names: list[str]) -> None:
    """Wrap globals of a generated function as long as it lives, so that tracing it again records its calls whole."""
    if names:
        _generated[function] = names


def wrapped_globals() -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the globals to replace while tracing: a dictionary and a name each."""
    for marked in _registries():
        for (_, name), namespace in list(marked.items()):
            yield namespace, name
    for reference in _generated.keyrefs():  # other threads may be generating functions
        if (function := reference()) is not None:
            for name in _generated.get(function, ()):
                yield function.__globals__, name
