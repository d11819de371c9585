"""Calls in traced code that do not run as they are: one node each, or a query that is answered for the traced value.

Functions under ``wrap`` become one node. So do Python's functions that return concrete values only (``len``, ``max``).
Its introspection (``isinstance``, ``type``, ``hasattr``) is answered for the represented value. All of these are
replaced in the globals of traced code. Python's classes (``int``, ``list``) and methods of tensors are replaced in a
second run only: code may also compare them, and pass them to other code.
"""

from __future__ import annotations

import builtins
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch.fx import Proxy as TorchProxy

from fx.assertions import check_distinct
from fx.bytecode.dialects import nested
from fx.bytecode.mentions import globals_compared, is_compared_by_identity
from fx.bytecode.values import behind
from fx.capture.patching import Builtins, Maker, Trace, is_tracing, running_tracer, while_tracing
from fx.capture.shared_values import may_be_argument
from fx.checks.questions import is_of, kind_for, refuse
from fx.checks.traced_values import STANDING_IN, count_of
from fx.container_kinds import container_kind
from fx.errors import with_article
from fx.frames import is_pythons_file, is_users, user_location
from fx.naming.targets import torch_path
from fx.operators.asynchronous import remote_calls
from fx.provenance import GENERATED_FILES
from fx.proxy import Proxy, TracerBase

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


_RECORDED = recording(len).__code__
"""The code of the results of ``recording``."""


def behind_recording(value: Any) -> Any:
    """Return the argument of ``recording`` if ``value`` is its result: another thread may be tracing."""
    return vars(value)["__wrapped__"] if type(value) is FunctionType and value.__code__ is _RECORDED else value


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


def _recorded(method: str, values_of: Callable[[tuple[Any, ...]], Any]) -> Maker:
    """Record calls of a function that calls ``method`` of these arguments, if one of them does not answer it."""

    def called(tracer: Any, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        if any(_is_to_be_recorded(value, method) for value in values_of(args)):
            return tracer.create_proxy("call_function", original, args, kwargs)
        return original(*args, **kwargs)

    return while_tracing(called)


def _compared(args: tuple[Any, ...]) -> Any:
    return args[0] if len(args) == 1 and type(args[0]) in (list, tuple) else args


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


# Queries.


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
    return is_of(value, frame, classes)


def _names(classes: Any, proxies: type) -> bool:
    """Return whether one of ``classes`` is a class of proxies."""
    if isinstance(classes, tuple):
        return any(_names(kind, proxies) for kind in classes)
    return isinstance(classes, type) and issubclass(classes, proxies)


def _hasattr(value: Proxy, frame: FrameType, name: str) -> Any:
    return NotImplemented if _answers_itself(value, name) else hasattr(kind_for(value, frame), name)


def _getattr(value: Proxy, frame: FrameType, name: str, *default: Any) -> Any:
    return default[0] if default and _hasattr(value, frame, name) is False else NotImplemented


def _id(value: Proxy, frame: FrameType) -> Any:
    if may_be_argument(value.node, value.tracer.root):
        refuse("is", value, frame, "cannot take the identity of a traced value")
    node, tracer = value.node, value.tracer
    for other in tracer.graph.find_nodes(op="placeholder") if node.op == "placeholder" else ():
        if other is not node and not any(user.target is check_distinct and other in user.args for user in node.users):
            names, where = f"{node.target} and {other.target}", user_location(frame, {})
            message = f"the program was captured where {names} are different objects: {where}"
            tracer.create_proxy("call_function", check_distinct, (value, tracer.proxy(other), message), {})
    return NotImplemented


make_is_tensor = _asks(lambda value, frame: issubclass(kind_for(value, frame), torch.Tensor))
"""``torch.is_tensor``, answered for the value that a proxy represents."""
ASKING = Builtins(
    {
        # queries of the kind of a value
        "type": _make_type,
        "isinstance": _asks(_isinstance),
        "hasattr": _asks(_hasattr),
        "getattr": _asks(_getattr),
        "callable": _asks(lambda value, frame: "__call__" in dir(kind_for(value, frame))),
        "id": _asks(_id),
        # functions that need a real number, or a known number of elements; max and min compare, and so branch
        "next": _next,
        "len": _recorded("__len__", lambda args: args[:1]),
        "sum": _recorded("__iter__", lambda args: args[:1]),
        "max": _recorded("__bool__", _compared),
        "min": _recorded("__bool__", _compared),
    }
)
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
