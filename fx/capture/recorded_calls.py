"""Functions of torch and Python that tell nobody when they are called, and what a trace does instead.

``torch.autograd.Function``, ``functional_call`` and ``checkpoint`` become one operation each. ``torch.finfo`` and the
like do when they are given a traced dtype. What draws or seeds random numbers in Python is refused.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction

from fx.capture import patching
from fx.capture.patching import Trace
from fx.frames import user_location
from fx.proxy import Proxy

_torch: Any = torch
_TAKE_DTYPES = ("iinfo", "finfo", "frombuffer", "can_cast", "promote_types")
_DRAWING = (
    "betavariate binomial beta choice choices exponential expovariate gammavariate gauss getrandbits lognormvariate "
    "normal normalvariate paretovariate permutation poisson rand randbytes randint randn random random_sample "
    "randrange sample seed shuffle standard_normal triangular uniform vonmisesvariate weibullvariate"
).split()
_SEEDING = ("manual_seed", "seed", "set_rng_state")


def replace(trace: Trace) -> None:
    """Let a trace see these calls, wherever the traced code has the functions from."""
    trace.replace(_SingleLevelFunction, ("apply",), _make_apply, absent=True)
    trace.replace(torch.nn.utils.stateless.__dict__, ("_functional_call",), _make_functional_call)
    trace.replace(torch.__dict__, _TAKE_DTYPES, _make_of_dtype)
    for namespace in (torch.__dict__, torch.random.__dict__):
        trace.replace(namespace, _SEEDING, _make_refused)
    checkpoints = sys.modules.get("torch.utils.checkpoint")
    if checkpoints is not None:
        trace.replace(checkpoints.__dict__, ("checkpoint",), make_checkpoint)


def replace_in(trace: Trace, namespace: dict[str, Any]) -> None:
    """Do the same for what the globals of traced code refer to."""
    numpy: Any = sys.modules.get("numpy")
    for name, value in list(namespace.items()):
        if value is random:
            trace.replace(random.__dict__, _DRAWING, _make_refused)
        elif numpy is not None and (value is numpy or value is numpy.random):
            trace.replace(numpy.random.__dict__, _DRAWING, _make_refused)
        elif isinstance(getattr(value, "__self__", None), _generators(numpy)) and name in _DRAWING:
            trace.replace(namespace, (name,), _make_refused)
        elif getattr(value, "__code__", None) in _codes_of_checkpoint():
            trace.replace(namespace, (name,), make_checkpoint)


def _generators(numpy: ModuleType | None) -> tuple[type, ...]:
    return (random.Random,) if numpy is None else (random.Random, numpy.random.RandomState)


def _codes_of_checkpoint() -> Iterator[Any]:
    module: Any = sys.modules.get("torch.utils.checkpoint")
    if module is not None:
        found = module.checkpoint
        yield getattr(getattr(found, "__wrapped__", found), "__code__", None)
        yield found.__code__


def _tracer() -> Any:
    """The tracer of the trace that this thread is in."""
    session: Any = patching.running_session()
    return None if session is None else session.tracer


def _make_apply(_: Any) -> Any:
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = _tracer()
        if tracer is None or not tracer.takes_part(args):
            inherited: Any = super(_SingleLevelFunction, cls)
            return inherited.apply(*args, **kwargs)
        return tracer.create_proxy("call_function", cls.apply, args, kwargs)

    return classmethod(apply)


def _make_functional_call(original: Any) -> Any:
    def _functional_call(
        module: torch.nn.Module,
        parameters_and_buffers: dict[str, Any],
        args: Any = None,
        kwargs: Any = None,
        **options: Any,
    ) -> Any:
        tracer = _tracer()
        if tracer is None:
            return original(module, parameters_and_buffers, args, kwargs, **options)
        given = args if isinstance(args, tuple) else () if args is None else (args,)
        call = (module, dict(parameters_and_buffers), given, dict(kwargs or {}))
        return tracer.create_proxy("call_function", torch.func.functional_call, call, options)

    return _functional_call


def make_checkpoint(original: Any) -> Any:
    """``checkpoint``, recorded with the submodule that it calls as one operation."""

    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = _tracer()
        if tracer is None or not tracer.takes_part((args, kwargs)):
            return original(function, *args, **kwargs)
        if not isinstance(function, torch.nn.Module):
            raise tracer._refusal(
                "cannot capture a checkpoint of a function that is no module",
                where=user_location(sys._getframe(1), {}),
                value=getattr(function, "__qualname__", repr(function)),
                why="a node cannot hold the function, and without the checkpoint its values would be kept in memory",
                remedy="make what it calls a submodule of its own, and give that to checkpoint",
            )
        return tracer.create_proxy("call_function", original, (function, *args), kwargs)

    checkpoint.__wrapped__ = original  # type: ignore[attr-defined]
    return checkpoint


def _make_of_dtype(original: Any) -> Any:
    """A function that reads a dtype without asking whether it is a traced one."""

    def of_dtype(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, Proxy) and (tracer := _tracer()) is not None:
                return tracer.create_proxy("call_function", original, args, kwargs)
        return original(*args, **kwargs)

    of_dtype.__name__ = original.__name__
    return of_dtype


def _make_refused(original: Any) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        tracer = _tracer()
        if tracer is None:
            return original(*args, **kwargs)
        name = getattr(original, "__name__", "random")
        home = getattr(original, "__module__", None) or type(getattr(original, "__self__", None)).__module__
        raise tracer._refusal(
            "cannot draw random numbers in Python, or seed a generator, while a program is captured",
            where=user_location(sys._getframe(1), {}),
            value=f"{home}.{name}",
            why="what is drawn now would be a constant of the program, and the state of the generator is everybody's",
            remedy="draw with torch.rand and the like, which are recorded, or mark the function with fx.wrap",
        )

    refused.__wrapped__ = original  # type: ignore[attr-defined]
    return refused
