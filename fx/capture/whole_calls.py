"""Functions and classes whose calls with traced values become one node each: those under ``wrap``, and the like."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fx.capture.patching import is_tracing, running_tracer
from fx.container_kinds import container_kind
from fx.naming.targets import torch_path
from fx.operators.asynchronous import remote_calls
from fx.proxy import Proxy


def recording(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, recorded as one node where it is called with a traced value; calls of others always."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        proxy = find_proxy((args, kwargs))
        tracer = (running_tracer() if function in remote_calls() else None) if proxy is None else proxy.tracer
        if tracer is None:
            return function(*args, **kwargs)
        result = tracer.create_proxy("call_function", function, args, kwargs)
        result.node.meta["is_wrapped"] = True
        return result

    recorded.__name__ = getattr(function, "__name__", "recorded")
    recorded.__wrapped__ = function  # type: ignore[attr-defined]
    return recorded


RECORDED = recording(len).__code__
"""The code of what ``recording`` returns."""


def is_importable(function: Callable[..., Any]) -> bool:
    """Return whether its module, or torch, has a function under its name."""
    if torch_path(function) is not None:
        return True
    found: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return behind_recording(found) is function


def behind_recording(value: Any) -> Any:
    """Return what ``recording`` was given, if ``value`` is its result: another thread may be tracing."""
    return value.__wrapped__ if getattr(value, "__code__", None) is RECORDED else value


def find_proxy(value: Any) -> Proxy | None:
    """The first traced value in a value or container."""
    pending, seen = [value], dict[int, Any]()
    while pending:
        one = pending.pop()
        if isinstance(one, Proxy):
            return one
        if id(one) not in seen and (kind := container_kind(one)) is not None:
            seen[id(one)] = one
            pending.extend(reversed(kind.parts(one)))
    return None


class ProxyableClassMeta(type):
    """Metaclass of classes whose construction and methods may be traced: with a traced argument, a call is a node."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an instance, or record its making."""
        proxy = find_proxy((args, kwargs)) if is_tracing() else None
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", cls, args, kwargs)
        instance = cls.__new__(cls)  # type: ignore[call-overload]
        cls.__init__(instance, *args, **kwargs)  # type: ignore[misc]
        return instance
