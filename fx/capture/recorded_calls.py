"""Functions of torch and Python that do not dispatch on traced arguments, and their replacements in a trace.

``torch.autograd.Function``, ``functional_call`` and ``checkpoint`` become one operation each. ``torch.finfo`` and
similar functions do if they take a traced dtype. Functions that draw or seed random numbers in Python are refused.
"""

from __future__ import annotations

import importlib
import math
import operator
import os
import random
import sys
from collections.abc import Iterator, Mapping
from functools import cache, partial
from types import BuiltinMethodType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch.autograd.function import _SingleLevelFunction
from torch.utils import checkpoint as checkpoints
from torch.utils._device import _device_constructors

from fx.bytecode.values import behind
from fx.capture import higher_order_calls
from fx.capture.leaf_calls import behind_recording, make_is_tensor, record_classes, recording, replace_questions
from fx.capture.patching import Maker, Replacement, Trace, replaced_always, running_tracer, while_tracing
from fx.capture.restore.places import DRAWING, PLAIN, WHY_NO_DRAWING, generator_of
from fx.capture.shared_values import compare
from fx.checks.recorded_checks import record_assertion
from fx.checks.traced_values import kind_of
from fx.frames import is_pythons_file, is_users, is_users_file, user_location
from fx.operators.asynchronous import remote_calls
from fx.proxy import Proxy

# The first `with torch.device(...)` stores which functions make tensors, for good. If a traced program were first, it
# would store their replacements, and have no effect after the trace.
_device_constructors()

MATH = {id(value): value for name, value in vars(math).items() if not name.startswith("_") and callable(value)}
"""The functions of ``math``, by identity."""
_OF_MATH = Replacement(math.__dict__, {value.__name__: recording for value in MATH.values()})
_IMPORTING = importlib.import_module.__globals__["_bootstrap"].__import__.__code__.co_filename
"""The file in which Python imports modules."""
_CALLABLE = (MethodType, BuiltinMethodType, partial)
_READING = frozenset({"getstate", "get_state"})
"""The methods of generators that do not change their state."""
_TAKE_DTYPES = ("iinfo", "finfo", "frombuffer", "can_cast", "promote_types")
_TAKE_SIZES = ("empty", "ones", "rand", "randn", "zeros")
"""Functions whose sizes may be separate arguments, which torch then does not accept as traced values."""
_SETTINGS = (
    "set_default_device",
    "set_default_dtype",
    "set_default_tensor_type",
    "set_deterministic_debug_mode",
    "set_float32_matmul_precision",
    "set_flush_denormal",
    "set_num_threads",
    "use_deterministic_algorithms",
)
"""Functions that change settings of the process."""
_SEEDING = ("manual_seed", "seed", "set_rng_state")


class RecordedCalls:
    """The replacements of one run in the globals of the code that it traces."""

    def __init__(self, trace: Trace, functions: Mapping[int, Any], records_classes: bool) -> None:
        """Make the replacements outside of the globals of traced code, and search no globals yet."""
        self._trace = trace
        self._functions = functions
        """By their identity, the functions that are recorded whole."""
        self._records_classes = records_classes
        """True if calls of Python's classes are recorded."""
        self._searched: set[int] = set()
        for replacement in _of_rpc(sys.modules.get("torch.distributed.rpc")):
            trace.replace_all(replacement)
        self._stand_ins = trace.stand_ins(
            *higher_order_calls.HOMES, checkpoints.__dict__, os.__dict__, numpy.__dict__, operator.__dict__
        )
        """The replacements by their functions' identity, however imported: ``from torch import finfo``."""

    def search_function(self, function: Any) -> None:
        """Search the globals of a function, and of all functions that its decorators call."""
        while function is not None:
            self.search(getattr(function, "__globals__", {}))
            function = getattr(function, "__wrapped__", None)

    def search(self, namespace: dict[str, Any]) -> None:
        """Make the replacements in globals, and in all globals that they reach."""
        pending = [namespace]
        for current in pending:
            if id(current) in self._searched:
                continue
            self._searched.add(id(current))
            name = str(current.get("__name__"))
            if name.startswith(("torch.", "math")):
                self._record_whole(current)
            elif not name.startswith(f"{__package__}."):  # of the replacements of torch functions
                if self._records_classes:
                    record_classes(self._trace, current)
                pending.extend(self._replace_in(current))

    def _record_whole(self, namespace: dict[str, Any]) -> None:
        """Record these functions where globals of torch, or of ``math``, refer to them."""
        functions = self._functions
        if namespace is _OF_MATH.owner and functions.keys() >= MATH.keys():
            self._trace.replace_all(_OF_MATH)
        else:
            entries = list(namespace.items())
            names = [name for name, value in entries if id(behind_recording(value)) in functions]
            self._trace.replace(namespace, names, recording)

    def _replace_in(self, namespace: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Make the replacements in globals of the user's code.

        Yields:
            The globals of functions, classes and modules of the same package in these globals. They may also take
            traced values, and pass them on.
        """
        package = _package_of(namespace)
        homes: dict[int, dict[str, Any]] = {}
        modules: set[str] = set()
        """The names of the modules of classes and of their base classes."""
        for name, entry in list(namespace.items()):
            if type(entry) in PLAIN:
                continue
            value = behind_recording(behind(entry))  # another thread may be tracing
            kind = type(value)
            if (stand_in := self._stand_ins.get(id(value))) is not None:
                self._trace.replace(namespace, (name,), lambda _, stand_in=stand_in: stand_in)
            elif id(value) in self._functions:
                self._trace.replace(namespace, (name,), recording)
            if kind is FunctionType:
                homes.update((id(home), home) for home in _homes_of(value))
            elif issubclass(kind, type):
                modules.update([base.__module__ for base in value.__mro__])
            elif kind is ModuleType:
                if package and _package_of(value.__dict__) == package:
                    homes[id(value.__dict__)] = value.__dict__
            elif kind in _CALLABLE and _draws(value):
                self._trace.replace(namespace, (name,), _random)
        homes.update((id(home), home) for home in map(_users_module, modules) if home is not None)
        homes.pop(id(namespace), None)
        replace_questions(self._trace, namespace)
        for home in homes.values():
            if package and _package_of(home) == package:
                yield home
            else:
                replace_questions(self._trace, home)


def _homes_of(function: FunctionType) -> Iterator[dict[str, Any]]:
    """Yield the globals of a user's function, and of the functions that its decorators wrap, maybe elsewhere."""
    current: Any = function
    while isinstance(current, FunctionType):
        if is_users_file(current.__code__.co_filename):
            yield current.__globals__
        current = vars(current).get("__wrapped__")


def _draws(value: Any) -> bool:
    """Return whether a value is a method that changes the state of a generator of random numbers."""
    return callable(value) and generator_of(value) is not None and getattr(value, "__name__", "") not in _READING


def _drawing_of(home: Mapping[str, Any]) -> dict[str, Maker]:
    """Return the replacements for the methods of generators in a module."""
    return {name: _random for name, value in home.items() if _draws(value)}


@cache
def _of_rpc(rpc: Any) -> tuple[Replacement, ...]:
    """Return the replacements for calls of other processes, also under the names by which generated code calls them."""
    calls = {call.__name__: recording for call in remote_calls()}
    homes = (rpc.__dict__, rpc.api.__dict__) if calls else ()
    return tuple(Replacement(home, calls) for home in homes)


def _users_module(name: str) -> dict[str, Any] | None:
    """Return the globals of a user's module; None for others."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return vars(module) if file is not None and is_users_file(file) and not is_pythons_file(file) else None


def _package_of(namespace: dict[str, Any]) -> str:
    """Return the name of the package that a module belongs to; empty for one that belongs to none."""
    package, dot, _ = str(namespace.get("__name__")).partition(".")
    return package if dot and package != __name__.partition(".")[0] else ""  # capture itself runs on ours


def _make_apply(_: Any) -> Any:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = running_tracer()
        if tracer is None or not tracer._takes_part(args):
            inherited: Any = super(_SingleLevelFunction, cls)
            return inherited.apply(*args, **kwargs)
        return tracer.create_proxy("call_function", cls.apply, args, kwargs)

    return classmethod(apply)


@while_tracing
def _functional_call(
    tracer: Any,
    original: Any,
    module: torch.nn.Module,
    parameters_and_buffers: dict[str, Any],
    args: Any = None,
    kwargs: Any = None,
    **options: Any,
) -> Any:
    positional = args if isinstance(args, tuple) else () if args is None else (args,)
    call = (module, dict(parameters_and_buffers), positional, dict(kwargs or {}))
    return tracer.create_proxy("call_function", torch.func.functional_call, call, options)


@while_tracing
def _of_dtype(tracer: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a function that reads a dtype, or sizes, without a check for traced ones."""
    if any(isinstance(value, Proxy) for value in (*args, *kwargs.values())):
        return tracer.create_proxy("call_function", original, args, kwargs)
    return original(*args, **kwargs)


@while_tracing
def _product(tracer: Any, original: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Record ``numpy.prod`` of the sizes of a traced value as Python's."""
    parts = value if type(value) in (list, tuple) else (value,)
    traced = [part for part in parts if isinstance(part, Proxy)]
    if traced and not args and not kwargs:
        kinds = {kind_of(part.node) for part in traced}
        if kinds <= {(torch.Size, True) if parts[0] is value else (int, True)}:
            return tracer.create_proxy("call_function", math.prod, (value,), {})
    return original(value, *args, **kwargs)


@while_tracing
def _identity(tracer: Any, original: Any, left: Any, right: Any, /) -> bool:
    """Answer ``operator.is_`` and ``operator.is_not`` of traced values like the operators."""
    if isinstance(left, Proxy) or isinstance(right, Proxy):
        return compare(tracer, original, left, right)
    return original(left, right)


@while_tracing
def _setting(tracer: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_users(sys._getframe(2)):  # torch.compile saves and sets some
        return original(*args, **kwargs)
    raise tracer._refusal(
        "cannot change a setting of torch while a program is captured",
        where=user_location(sys._getframe(2), {}),
        value=f"torch.{original.__name__}",
        why="it belongs to the process, and a captured program would leave it out",
        remedy="set it around the program, or put the line in a function marked fx.wrap",
    )


@while_tracing
def _check_with(tracer: Any, original: Any, error_type: Any, cond: Any, message: Any) -> None:
    """Record ``torch._check`` and the functions that call it."""
    if not isinstance(cond, Proxy):
        return original(error_type, cond, message)
    if message is None:
        message = f"the condition of torch._check does not hold: {user_location(sys._getframe(2), {})}"
    record_assertion(tracer, cond, message)
    return None


@while_tracing
def _saved_hooks(tracer: Any, original: Any, hooks: Any) -> Any:
    raise tracer._refusal(
        "cannot capture hooks on tensors that are saved for the backward pass",
        where=user_location(sys._getframe(2), {}),
        value=type(hooks).__name__,
        why="they belong to the run of the program, and a graph cannot hold them",
        remedy="use them around the program, or make the module that does a leaf",
    )


def _drawing(place: int | None = None, name: str = "") -> Maker:
    """Refuse to draw or seed random numbers, unless a seed is given as the argument at ``place``, or by its name."""

    def called(tracer: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        seed = None if place is None else args[place] if len(args) > place else kwargs.get(name)
        if seed is None:
            _refuse_drawing(tracer, original, sys._getframe(2))
        return original(*args, **kwargs)

    return while_tracing(called)


def _refuse_drawing(tracer: Any, function: Any, frame: FrameType) -> None:
    """Refuse a function that draws if user code calls it, also through Python's own code."""
    while is_pythons_file(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    # torch.compile restores the state before it; modules that are imported meanwhile create generators
    if is_users(frame) and frame.f_code.co_filename != _IMPORTING:
        name = getattr(function, "__name__", "random")
        home = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
        raise tracer._refusal(DRAWING, where=user_location(frame, {}), value=f"{home}.{name}", **WHY_NO_DRAWING)


_random = _drawing()
replaced_always(random.__dict__, {**_drawing_of(vars(random)), "_urandom": _random})
replaced_always(random.Random, {"seed": _drawing(1, "a")})
replaced_always(os.__dict__, {"urandom": _random})
replaced_always(numpy.random.__dict__, {**_drawing_of(vars(numpy.random)), "default_rng": _drawing(0, "seed")})
replaced_always(numpy.__dict__, {"prod": _product})
replaced_always(operator.__dict__, {"is_": _identity, "is_not": _identity})
replaced_always(_SingleLevelFunction, {"apply": _make_apply}, absent=True)
replaced_always(torch.nn.utils.stateless.__dict__, {"_functional_call": _functional_call})
replaced_always(
    torch.__dict__,
    {
        **dict.fromkeys((*_TAKE_DTYPES, *_TAKE_SIZES), _of_dtype),
        **dict.fromkeys(_SEEDING, _random),
        "_check_with": _check_with,
        "is_tensor": make_is_tensor,
        **dict.fromkeys(_SETTINGS, _setting),
    },
)
replaced_always(checkpoints.__dict__, {"checkpoint": higher_order_calls.make_checkpoint})
replaced_always(torch.random.__dict__, dict.fromkeys(_SEEDING, _random))
replaced_always(torch.autograd.graph.saved_tensors_hooks, {"__enter__": _saved_hooks})
