"""Functions and classes whose calls with traced values become one node each: those under ``wrap``, and Python's own.

Python's functions that return concrete values only (``len``, ``max``) are replaced in the globals of all traced code.
Its classes (``int``, ``list``) and methods of tensors are replaced in a second run only: code may also compare them,
and pass them to other code.
"""

from __future__ import annotations

import builtins
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from fx.bytecode.dialects import nested
from fx.bytecode.mentions import globals_compared
from fx.bytecode.values import behind
from fx.capture.patching import Maker, Trace, is_tracing, running_tracer, while_tracing
from fx.checks.traced_values import count_of
from fx.container_kinds import container_kind
from fx.frames import is_users
from fx.naming.targets import torch_path
from fx.operators.asynchronous import remote_calls
from fx.provenance import GENERATED_FILES
from fx.proxy import Proxy

CLASSES = ("float", "int", "list", "tuple")
"""The classes whose calls are recorded in a second run."""
_METHOD_DESCRIPTOR = type(torch.Tensor.relu)
_METHOD_REFUSED = re.compile(
    r"descriptor '(\w+)' for 'torch._C.TensorBase' objects doesn't apply|^(\w+)\(\) takes 1 positional argument but"
)


def find_proxy(value: Any) -> Proxy | None:
    """Return the first traced value in a value or container."""
    pending, visited = [value], dict[int, Any]()
    while pending:
        current = pending.pop()
        if isinstance(current, Proxy):
            return current
        if id(current) not in visited and (kind := container_kind(current)) is not None:
            visited[id(current)] = current
            pending.extend(reversed(kind.parts(current)))
    return None


# Functions under ``wrap``.


def recording(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function``: a call with a traced value becomes one node, and so does every call of another process."""

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
"""The code of the results of ``recording``."""


def behind_recording(value: Any) -> Any:
    """Return the argument of ``recording`` if ``value`` is its result: another thread may be tracing."""
    return vars(value)["__wrapped__"] if type(value) is FunctionType and value.__code__ is RECORDED else value


def is_importable(function: Callable[..., Any]) -> bool:
    """Return whether its module, or torch, has the function under its name."""
    if torch_path(function) is not None:
        return True
    owner: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    for name in function.__qualname__.split("."):
        owner = getattr(owner, name, None)
    return behind_recording(owner) is function


class ProxyableClassMeta(type):
    """Metaclass of classes whose construction and methods may be traced: with a traced argument, a call is a node."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create an instance, or record its creation."""
        proxy = find_proxy((args, kwargs)) if is_tracing() else None
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", cls, args, kwargs)
        instance = cls.__new__(cls)  # type: ignore[call-overload]
        cls.__init__(instance, *args, **kwargs)  # type: ignore[misc]
        return instance


# Functions of Python's.


def _is_to_be_recorded(value: Any, method: str) -> bool:
    """Return whether a value is traced, of unknown length, and of a class that does not override the method.

    Proxies of clients may know the answer.
    """
    is_plain = isinstance(value, Proxy) and getattr(type(value), method) is getattr(Proxy, method)
    return is_plain and count_of(value.node) is None


@while_tracing
def _next(tracer: Any, original: Any, iterator: Any, /, *default: Any) -> Any:
    if tracer._state.modules is not None:
        tracer._state.modules.expect_fresh(iterator)
    return original(iterator, *default)


@while_tracing
def _len(tracer: Any, original: Any, value: Any, /) -> Any:
    if _is_to_be_recorded(value, "__len__"):
        return tracer.create_proxy("call_function", original, (value,), {})
    return original(value)


@while_tracing
def _sum(tracer: Any, original: Any, values: Any, /, *start: Any, **named: Any) -> Any:
    if _is_to_be_recorded(values, "__iter__"):
        return tracer.create_proxy("call_function", original, (values, *start), named)
    return original(values, *start, **named)


@while_tracing
def _extreme(tracer: Any, original: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call ``max`` or ``min``, which compare, and so branch."""
    values = args[0] if len(args) == 1 and type(args[0]) in (list, tuple) else args
    if any(_is_to_be_recorded(value, "__bool__") for value in values):
        return tracer.create_proxy("call_function", original, args, kwargs)
    return original(*args, **kwargs)


FUNCTIONS: dict[str, Maker] = {"next": _next, "len": _len, "sum": _sum, "max": _extreme, "min": _extreme}
"""Functions of Python that need a real number, or a known number of elements."""


# Classes of Python's.


class SeenClass:
    """A Python class, as the globals of traced code see it: equal to the class, and accepted by ``isinstance``."""

    def __init__(self, original: type) -> None:
        self._original: Any = original
        self._stands_for = original

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._original)

    def __subclasscheck__(self, value: Any) -> bool:
        return issubclass(value, self._original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __getitem__(self, item: Any) -> Any:
        return self._original[item]

    def __or__(self, other: Any) -> Any:
        return self._original | other

    def __ror__(self, other: Any) -> Any:
        return other | self._original

    def __eq__(self, other: object) -> bool:
        return other is self._original or other is self

    def __hash__(self) -> int:
        return hash(self._original)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._original,)


class ClassCalled(SeenClass):
    """A class whose calls with a traced value are recorded."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Create an instance, or record its creation."""
        traced = len(args) == 1 and isinstance(args[0], Proxy)
        if traced and (tracer := running_tracer()) is not None:
            return tracer.create_proxy("call_function", self._original, args, kwargs)
        return self._original(*args, **kwargs)

    def __fx_create_arg__(self, _: Any) -> Any:
        return self._original


def record_classes(trace: Trace, namespace: dict[str, Any]) -> None:
    """Record calls of these Python classes where the globals of traced code refer to them."""
    if str(namespace.get("__name__")).partition(".")[0] != __name__.partition(".")[0]:  # capture itself runs on ours
        trace.replace(namespace, _classes_of(namespace), ClassCalled)


def calls_classes(frame: FrameType) -> bool:
    """Return whether the code refused in ``frame`` refers to classes whose calls a second run may record."""
    code = frame.f_code
    named = [name for name in CLASSES if name in code.co_names]
    is_seen = is_users(frame) or code.co_filename in GENERATED_FILES
    return bool(named) and is_seen and not set(named).isdisjoint(_classes_of(frame.f_globals, (code,)))


def _classes_of(namespace: dict[str, Any], more: tuple[CodeType, ...] = ()) -> list[str]:
    """Return the classes that a namespace holds by name, and that its functions do not compare by identity."""
    # another thread may be tracing
    named = [name for name in CLASSES if behind(namespace.get(name, builtin := getattr(builtins, name))) is builtin]
    compared = globals_compared((*more, *_codes(namespace)))
    return [name for name in named if name not in compared]


def _codes(namespace: dict[str, Any]) -> Iterator[CodeType]:
    """Yield the code of all functions of a namespace and of methods of its classes, with the code nested in it."""
    values = list(namespace.values())
    for value in values:
        if isinstance(value, type) and value.__module__ == namespace.get("__name__"):
            values.extend(vars(value).values())
    for value in values:
        if isinstance(value, FunctionType):
            yield from nested(value.__code__)


# Methods of tensors.


def record_methods(trace: Trace, names: Iterable[str]) -> None:
    """Record calls of the tensor methods among these names that take a traced value."""
    for name in names:
        function = behind(getattr(torch.Tensor, name, None))
        if type(function) is _METHOD_DESCRIPTOR and not name.startswith("__"):
            trace.replace(torch.Tensor, (name,), functools.partial(_method, function), absent=True)


def called_method(error: BaseException | None) -> str | None:
    """Return the tensor method that code calls with traced values: ``Tensor.relu(x)``, ``real.expand(n, 3)``."""
    match = _METHOD_REFUSED.match(str(error)) if isinstance(error, TypeError) else None
    name = "" if match is None else match[1] or match[2]
    return name if hasattr(torch.Tensor, name) else None


def _method(function: Any, _: Any) -> Any:
    name = function.__name__

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if find_proxy((self, args, kwargs)) is not None and (tracer := running_tracer()) is not None:
            return tracer.create_proxy("call_method", name, (self, *args), kwargs)
        return function(self, *args, **kwargs)

    method.__name__ = name
    method.__wrapped__ = method._stands_for = function  # type: ignore[attr-defined]
    return method
