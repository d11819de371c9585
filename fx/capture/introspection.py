"""Introspection of traced values (``isinstance``, ``type``, ``hasattr``), answered for the values they represent."""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

import torch
from torch.fx import Proxy as TorchProxy

from fx.bytecode.mentions import is_compared_by_identity
from fx.capture.leaf_calls import FUNCTIONS, SeenClass
from fx.capture.patching import Builtins, Trace, running_tracer
from fx.capture.shared_values import may_be_argument
from fx.checks.questions import kind_for, refuse
from fx.checks.traced_values import STANDING_IN
from fx.errors import with_article
from fx.frames import is_pythons_file
from fx.proxy import Proxy, TracerBase


def replace_questions(trace: Trace, namespace: dict[str, Any]) -> None:
    """Replace, for a trace, the functions that query values in code with these globals."""
    trace.replace_all(ASKING.replacement_in(namespace))
    for name, value in list(namespace.items()):
        kind = type(value)
        if kind is ModuleType:
            is_query = value is builtins or value is _builtins  # another thread may be tracing
        elif kind is functools.partial:
            is_query = any(id(part) in _NAMES for part in (value.func, *value.args, *value.keywords.values()))
        else:
            is_query = _NAMES.get(id(value), name) != name  # from builtins import isinstance as is_a
        if is_query and name != "__builtins__":  # which Python itself reads
            trace.replace(namespace, (name,), _seen)


def _make_type(original: Any) -> Any:
    return original if isinstance(original, _Type) else _Type(type)


class _Type(SeenClass):
    """A replacement for ``type``."""

    # The class has to be `type`: functools.singledispatch and inspect accept only classes.
    __class__: Any = property(lambda self: type)
    __dict__: Any = property(lambda self: type.__dict__)

    def __init__(self, original: type) -> None:
        super().__init__(original)
        # A metaclass's own __call__ ends in `type.__call__(cls, ...)`, which is not a call of this object. Modules that
        # are imported during the trace call `type.__new__`.
        for name in ("__doc__", "__module__", *vars(type)):
            if name != "__dict__" and hasattr(type, name):
                object.__setattr__(self, name, getattr(type, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and _is_asked_of(args[0], sys._getframe(1)):
            return kind_for(args[0], sys._getframe(1))
        result = type(*args, **kwargs)
        if result is not type or len(args) != 1:
            return result
        # `type(cls) is type` has this object on its other side, also if the left result was stored in a list. Python's
        # own code, such as inspect, gets the replacement only for such a comparison.
        frame = sys._getframe(1)
        return self if not is_pythons_file(frame.f_code.co_filename) or is_compared_by_identity(frame) else result

    def __repr__(self) -> str:
        return repr(type)


def _is_asked_of(value: Any, frame: FrameType) -> bool:
    """Return whether traced code queries a traced value: not a method of a tracer or proxy."""
    if not isinstance(value, Proxy) or running_tracer() is None:
        return False
    return not isinstance(frame.f_locals.get("self"), (TracerBase, Proxy))


def _answers_itself(value: Proxy, name: str) -> bool:
    """Return whether a proxy answers itself: a client's class defines its attributes, or it holds this attribute."""
    own = type(value)
    return own.__getattr__ is not Proxy.__getattr__ or (not own.__module__.startswith("fx.") and name in vars(value))


def _asks(answer: Callable[..., Any]) -> Callable[[Any], Any]:
    """Make the replacement for a function of Python, which answers for traced values by ``answer``.

    ``answer`` takes the value, the calling frame, and the other arguments. If it returns ``NotImplemented``, the
    original function is called.
    """

    def make(original: Any) -> Any:
        def query(*args: Any, **kwargs: Any) -> Any:
            if args and _is_asked_of(args[0], frame := sys._getframe(1)):
                answered = answer(args[0], frame, *args[1:], **kwargs)
                if answered is not NotImplemented:
                    return answered
            return original(*args, **kwargs)

        query.__name__ = original.__name__
        STANDING_IN.add(query.__code__)
        return query

    return make


def _isinstance(value: Proxy, frame: FrameType, classes: Any) -> Any:
    # Not by Proxy.__class__: torch also reads it before it accepts an object as a tensor.
    if _names(classes, TorchProxy):  # this asks whether a trace is running, in the way libraries know from torch.fx
        return True
    if _names(classes, Proxy):
        return NotImplemented
    for kind in classes if type(classes) is tuple else (classes,):
        if type(kind) is type(torch.FloatTensor):  # not a class: a dtype is asked for
            refuse("dtype", value, frame, f"cannot tell whether a traced value is {with_article(torch.typename(kind))}")
    return issubclass(kind_for(value, frame), classes)


def _names(classes: Any, proxies: type) -> bool:
    """Return whether one of ``classes`` is a class of proxies."""
    if isinstance(classes, tuple):
        return any(_names(kind, proxies) for kind in classes)
    return isinstance(classes, type) and issubclass(classes, proxies)


def _is_tensor(value: Proxy, frame: FrameType) -> bool:
    return issubclass(kind_for(value, frame), torch.Tensor)


def _hasattr(value: Proxy, frame: FrameType, name: str) -> Any:
    return NotImplemented if _answers_itself(value, name) else hasattr(kind_for(value, frame), name)


def _getattr(value: Proxy, frame: FrameType, name: str, *default: Any) -> Any:
    return default[0] if default and _hasattr(value, frame, name) is False else NotImplemented


def _callable(value: Proxy, frame: FrameType) -> bool:
    return "__call__" in dir(kind_for(value, frame))


def _id(value: Proxy, frame: FrameType) -> Any:
    if may_be_argument(value.node, value.tracer.root):
        refuse("is", value, frame, "cannot take the identity of a traced value")
    return NotImplemented


make_is_tensor = _asks(_is_tensor)
"""``torch.is_tensor``, answered for the value that a proxy represents."""
_QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "type": _make_type,
    "isinstance": _asks(_isinstance),
    "hasattr": _asks(_hasattr),
    "getattr": _asks(_getattr),
    "callable": _asks(_callable),
    "id": _asks(_id),
}
"""Functions of Python that query the kind of a value."""
ASKING = Builtins({**_QUESTIONS, **FUNCTIONS})
"""The replacements, in the globals of traced code, for functions that query values or are called with them."""
_NAMES = {
    **{id(getattr(builtins, name)): name for name in ASKING.makers},
    **{id(value): name for name, value in ASKING.stand_ins.items()},
}
"""The names of these functions and of their replacements, which another thread may have installed, by identity."""


_builtins = ModuleType(builtins.__name__)
"""The module ``builtins`` as the globals of traced code see it."""
vars(_builtins).update(ASKING.stand_ins, __getattr__=functools.partial(getattr, builtins))


def _seen(value: Any) -> Any:
    """Return the replacement for such a function, for a ``partial`` of one, or for the module ``builtins``."""
    if type(value) is functools.partial:
        keywords = {name: _seen(part) for name, part in value.keywords.items()}
        return functools.partial(*map(_seen, (value.func, *value.args)), **keywords)
    if value is builtins:
        return _builtins
    name = _NAMES.get(id(value))
    return value if name is None else ASKING.stand_ins[name]
