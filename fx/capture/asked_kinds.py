"""What traced code asks of values (``isinstance``, ``type``, ``hasattr``), answered for what traced ones stand for."""

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
from fx.capture.patching import Trace, running_tracer
from fx.capture.python_functions import FUNCTIONS, SeenClass
from fx.capture.replacements import Builtins
from fx.capture.shared_values import may_be_argument
from fx.errors import with_article
from fx.frames import is_pythons_file, user_location
from fx.naming.printing import describe
from fx.proxy import Proxy, TracerBase


def replace_questions(trace: Trace, namespace: dict[str, Any]) -> None:
    """Let a trace see what code with these globals asks of values."""
    trace.replace_builtins(namespace, ASKING)
    for name, value in list(namespace.items()):
        kind = type(value)
        if kind is ModuleType or kind is _AskedBuiltins:
            if name != "__builtins__" and (value is builtins or kind is _AskedBuiltins):  # which Python itself looks at
                trace.replace(namespace, (name,), _asked_builtins)
        elif kind is functools.partial:
            if _holds_question(value):
                trace.replace(namespace, (name,), _asking_partial)
        elif _NAMES.get(id(value), name) != name:  # from builtins import isinstance as is_a
            trace.replace(namespace, (name,), _asking)


def _make_type(original: Any) -> Any:
    return original if isinstance(original, _Type) else _Type(type)


class _Type(SeenClass):
    """``type``."""

    # Whoever asks is told that this is `type`: functools.singledispatch and inspect refuse what is not a class.
    __class__: Any = property(lambda self: type)
    __dict__: Any = property(lambda self: type.__dict__)

    def __init__(self, original: type) -> None:
        super().__init__(original)
        # `type.__call__(cls, ...)`, which a metaclass's own __call__ ends in, is not a call of this object, and modules
        # that are imported meanwhile call `type.__new__`.
        for name in ("__doc__", "__module__", *vars(type)):
            if name != "__dict__" and hasattr(type, name):
                object.__setattr__(self, name, getattr(type, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and _is_asked_of(args[0], sys._getframe(1)):
            return args[0]._kind_for(sys._getframe(1))
        found = type(*args, **kwargs)
        if found is not type or len(args) != 1:
            return found
        # `type(cls) is type` has this on its other side, also where the left one was kept in a list. Code of Python's
        # own, as that of inspect, takes no stand-in but for such a comparison.
        frame = sys._getframe(1)
        return self if not is_pythons_file(frame.f_code.co_filename) or is_compared_by_identity(frame) else found

    def __repr__(self) -> str:
        return repr(type)


def _is_asked_of(value: Any, frame: FrameType) -> bool:
    """Return whether traced code asks something of a traced value: not a tracer's or proxy's own method."""
    if not isinstance(value, Proxy) or running_tracer() is None:
        return False
    return not isinstance(frame.f_locals.get("self"), (TracerBase, Proxy))


def _answers_itself(value: Proxy, name: str) -> bool:
    """Return whether a proxy's class, of a client's, says what attributes there are, or it holds this one itself."""
    own = type(value)
    return own.__getattr__ is not Proxy.__getattr__ or (not own.__module__.startswith("fx.") and name in vars(value))


def _make_isinstance(original: Any) -> Any:
    # Not by Proxy.__class__, which torch asks too before it takes an object for a tensor.
    def isinstance(value: Any, classes: Any) -> bool:
        if original(value, Proxy) and _is_asked_of(value, sys._getframe(1)):
            if _names(classes, TorchProxy):  # which asks whether this is a trace, as libraries know it from torch.fx
                return True
            if not _names(classes, Proxy):
                _refuse_dtypes(value, classes, sys._getframe(1))
                return issubclass(value._kind_for(sys._getframe(1)), classes)
        return original(value, classes)

    return isinstance


def _names(classes: Any, proxies: type) -> bool:
    """Return whether one of ``classes`` is a class of proxies."""
    if isinstance(classes, tuple):
        return any(_names(one, proxies) for one in classes)
    return isinstance(classes, type) and issubclass(classes, proxies)


def _refuse_dtypes(value: Proxy, classes: Any, frame: FrameType) -> None:
    """Refuse ``torch.FloatTensor`` and the like, which are not classes but ask for a dtype."""
    for kind in classes if type(classes) is tuple else (classes,):
        if type(kind) is type(torch.FloatTensor):
            raise value.tracer._refusal(
                f"cannot tell whether a traced value is {with_article(torch.typename(kind))}",
                where=user_location(frame, {}),
                value=describe(value.node),
                why="that asks for its dtype, which is known only when the module runs",
                remedy="ask isinstance(value, torch.Tensor), or decide the dtype from a module attribute",
            )


def make_is_tensor(original: Any) -> Any:
    """``torch.is_tensor``, answered for what a traced value stands for."""

    def is_tensor(value: Any) -> bool:
        if isinstance(value, Proxy) and running_tracer() is not None:
            return issubclass(value._kind_for(sys._getframe(1)), torch.Tensor)
        return original(value)

    return is_tensor


def _make_hasattr(original: Any) -> Any:
    def hasattr(value: Any, name: str) -> bool:
        if _is_asked_of(value, sys._getframe(1)) and not _answers_itself(value, name):
            return original(value._kind_for(sys._getframe(1)), name)
        return original(value, name)

    return hasattr


def _make_getattr(original: Any) -> Any:
    def getattr(value: Any, name: str, *default: Any) -> Any:
        if default and _is_asked_of(value, sys._getframe(1)) and not _answers_itself(value, name):
            kind = value._kind_for(sys._getframe(1))
            if not hasattr(kind, name):
                return default[0]
        return original(value, name, *default)

    return getattr


def _make_dir(original: Any) -> Any:
    def dir(*values: Any) -> Any:
        if len(values) == 1 and _is_asked_of(values[0], sys._getframe(1)):
            return original(values[0]._kind_for(sys._getframe(1)))
        return original(*values) if values else sorted(sys._getframe(1).f_locals)

    return dir


def _make_id(original: Any) -> Any:
    def id(value: Any, /) -> int:
        if _is_asked_of(value, frame := sys._getframe(1)) and may_be_argument(value.node, value.tracer.root):
            raise value.tracer._refusal(
                "cannot take the identity of a traced value",
                where=user_location(frame, {}),
                value=describe(value.node),
                why="the operation may give the very tensor that it was given, as is known only when the module runs",
                remedy="compare what decides it (shape, dtype, device), or put the line in a function marked fx.wrap",
            )
        return original(value)

    return id


def _make_callable(original: Any) -> Any:
    def callable(value: Any) -> bool:
        if _is_asked_of(value, sys._getframe(1)):
            return "__call__" in dir(value._kind_for(sys._getframe(1)))
        return original(value)

    return callable


_QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "isinstance": _make_isinstance,
    "type": _make_type,
    "hasattr": _make_hasattr,
    "getattr": _make_getattr,
    "callable": _make_callable,
    "dir": _make_dir,
    "id": _make_id,
}
"""Functions of Python that ask what a value is."""
ASKING = Builtins({**_QUESTIONS, **FUNCTIONS})
"""What traced code asks of values, or calls with them: what stands in for these functions in its globals."""
_NAMES = {
    **{id(getattr(builtins, name)): name for name in ASKING.makers},
    **{id(value): name for name, value in ASKING.stand_ins.items()},
}
"""The names of these functions, and of what stands in for them, as it does where another thread is tracing, by
identity.
"""


class _AskedBuiltins(ModuleType):
    """The module ``builtins``, as the globals of traced code see it."""

    def __init__(self) -> None:
        super().__init__(builtins.__name__)
        self.__dict__.update(ASKING.stand_ins)

    def __getattr__(self, name: str) -> Any:
        return getattr(builtins, name)


@functools.cache
def _asked_builtins(_: Any) -> ModuleType:
    return _AskedBuiltins()


def _asking(value: Any) -> Any:
    """Return what stands in for one of these functions; other values stay what they are."""
    name = _NAMES.get(id(value))
    return value if name is None else ASKING.stand_ins[name]


def _holds_question(value: Any) -> bool:
    """Return whether a ``functools.partial`` calls one of these functions, or hands one on."""
    return any(id(one) in _NAMES for one in (value.func, *value.args, *value.keywords.values()))


def _asking_partial(original: Any) -> Any:
    keywords = {name: _asking(value) for name, value in original.keywords.items()}
    return functools.partial(*map(_asking, (original.func, *original.args)), **keywords)
