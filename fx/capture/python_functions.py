"""Functions of Python that give concrete values alone (``len``, ``int``, ``max``), recorded where traced code calls
them.

Functions are replaced in the globals of all traced code. Classes (``int``, ``list``) are replaced in a second run only,
as are methods of tensors: code may also compare them, and give them to others.
"""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from fx.bytecode.dialects import nested
from fx.bytecode.mentions import globals_compared
from fx.capture.patching import Trace, running_tracer
from fx.capture.whole_calls import find_proxy
from fx.checks.questions import count_of
from fx.frames import is_users
from fx.provenance import GENERATED_FILES
from fx.proxy import Proxy

CLASSES = ("float", "int", "list", "tuple")
"""The classes whose calls are recorded in a second run."""


def record_classes(trace: Trace, namespace: dict[str, Any]) -> None:
    """Record calls of these classes of Python's where the globals of traced code refer to them."""
    if str(namespace.get("__name__")).partition(".")[0] != __name__.partition(".")[0]:  # capture itself runs on ours
        trace.replace(namespace, _classes_of(namespace), ClassCalled)


def record_methods(trace: Trace, names: Iterable[str]) -> None:
    """Record calls of those of the names that are methods of tensors, where a traced value is among the arguments."""
    for name in names:
        function = behind_method(getattr(torch.Tensor, name, None))
        if type(function) is _METHOD_DESCRIPTOR and not name.startswith("__"):
            trace.replace(torch.Tensor, (name,), functools.partial(_method, function), absent=True)


def _record(tracer: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tracer.create_proxy("call_function", function, args, kwargs)


def _is_to_be_recorded(value: Any, method: str) -> bool:
    """Return whether a value is traced and answers by itself what the method does: proxies of clients may know it."""
    return isinstance(value, Proxy) and getattr(type(value), method) is getattr(Proxy, method)


def _make_len(original: Any) -> Any:
    def len(value: Any, /) -> Any:
        if (
            _is_to_be_recorded(value, "__len__")
            and (tracer := running_tracer()) is not None
            and count_of(value.node) is None
        ):
            return _record(tracer, original, (value,), {})
        return original(value)

    return len


def _make_sum(original: Any) -> Any:
    def sum(values: Any, /, *start: Any, **named: Any) -> Any:
        traced = _is_to_be_recorded(values, "__iter__")
        if traced and (tracer := running_tracer()) is not None and count_of(values.node) is None:
            return _record(tracer, original, (values, *start), named)
        return original(values, *start, **named)

    return sum


def _make_extreme(original: Any) -> Any:
    """``max`` or ``min``, which compare, and so branch."""

    def extreme(*args: Any, **kwargs: Any) -> Any:
        values = args[0] if len(args) == 1 and type(args[0]) in (list, tuple) else args
        if not any(_is_to_be_recorded(value, "__bool__") for value in values) or (tracer := running_tracer()) is None:
            return original(*args, **kwargs)
        return _record(tracer, original, args, kwargs)

    extreme.__name__ = original.__name__
    return extreme


def _make_next(original: Any) -> Any:
    def next(iterator: Any, /, *default: Any) -> Any:
        if (tracer := running_tracer()) is not None and tracer._state.modules is not None:
            tracer._state.modules.expect_fresh(iterator)
        return original(iterator, *default)

    return next


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "next": _make_next,
    "len": _make_len,
    "sum": _make_sum,
    "max": _make_extreme,
    "min": _make_extreme,
}
"""Functions of Python that need a real number, or elements whose number is known."""


class SeenClass:
    """A class of Python's, as the globals of traced code see it: equal to the class, and what ``isinstance`` takes."""

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
        """Make an instance, or record its making."""
        traced = len(args) == 1 and isinstance(args[0], Proxy)
        if traced and (tracer := running_tracer()) is not None:
            return _record(tracer, self._original, args, kwargs)
        return self._original(*args, **kwargs)

    def __fx_create_arg__(self, _: Any) -> Any:
        return self._original


def calls_classes(frame: FrameType) -> bool:
    """Return whether the code that is refused in ``frame`` refers to classes whose calls a second run may record."""
    code = frame.f_code
    named = [name for name in CLASSES if name in code.co_names]
    is_seen = is_users(frame) or code.co_filename in GENERATED_FILES
    return bool(named) and is_seen and not set(named).isdisjoint(_classes_of(frame.f_globals, (code,)))


def _classes_of(namespace: dict[str, Any], more: tuple[CodeType, ...] = ()) -> list[str]:
    """The classes that a namespace has under their names, and that none of its functions compares by identity."""
    named = [name for name in CLASSES if _behind_class(namespace.get(name, one := getattr(builtins, name))) is one]
    compared = globals_compared((*more, *_codes(namespace)))
    return [name for name in named if name not in compared]


def _behind_class(value: Any) -> Any:
    return value._original if type(value) is ClassCalled else value  # another thread may be tracing


_METHOD_DESCRIPTOR = type(torch.Tensor.relu)
_METHOD = re.compile(
    r"descriptor '(\w+)' for 'torch._C.TensorBase' objects doesn't apply|^(\w+)\(\) takes 1 positional argument but"
)


def called_method(error: BaseException | None) -> str | None:
    """Return the method of tensors that code calls with traced values: ``Tensor.relu(x)``, ``real.expand(n, 3)``."""
    found = _METHOD.match(str(error)) if isinstance(error, TypeError) else None
    name = "" if found is None else found[1] or found[2]
    return name if hasattr(torch.Tensor, name) else None


def _method(function: Any, _: Any) -> Any:
    name = function.__name__

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if find_proxy((self, args, kwargs)) is not None and (tracer := running_tracer()) is not None:
            return tracer.create_proxy("call_method", name, (self, *args), kwargs)
        return function(self, *args, **kwargs)

    method.__name__ = name
    method.__wrapped__ = function  # type: ignore[attr-defined]
    return method


def behind_method(function: Any) -> Any:
    """Return the method of tensors behind one whose calls are recorded, by which torch asks for it."""
    return function.__wrapped__ if getattr(function, "__code__", None) is _METHOD_CODE else function


_METHOD_CODE = _method(torch.Tensor.relu, None).__code__


def _codes(namespace: dict[str, Any]) -> Iterator[CodeType]:
    """The code of all functions of a namespace and of methods of its classes, with what is nested in it."""
    values = list(namespace.values())
    for value in values:
        if isinstance(value, type) and value.__module__ == namespace.get("__name__"):
            values.extend(vars(value).values())
    for value in values:
        if isinstance(value, FunctionType):
            yield from nested(value.__code__)


assert all(hasattr(builtins, name) for name in (*CLASSES, *FUNCTIONS))
