"""Control flow of torch (``cond``, loops, maps, scans) in traced code: one operation each, with captured bodies."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from fx import higher_order
from fx.capture.bodies import record
from fx.capture.patching import running_tracer
from fx.capture.result_structures import auxiliary, options_of, sample_of
from fx.frames import user_location
from fx.proxy import Proxy


def _make_cond(original: Any) -> Any:
    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        tracer = running_tracer()
        if tracer is not None and not tracer._takes_part(pred):
            return (true_fn if pred else false_fn)(*operands)
        return record(
            lambda: original(pred, true_fn, false_fn, operands),
            higher_order.cond,
            [(true_fn, operands, {}), (false_fn, operands, {})],
            lambda read: (pred, *read, tuple(operands)),
            varying=True,
        )

    return cond


def _make_while_loop(original: Any) -> Any:
    def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
        return record(
            lambda: original(cond_fn, body_fn, carried_inputs),
            higher_order.while_loop,
            [(cond_fn, carried_inputs, {}), (body_fn, carried_inputs, {})],
            lambda read: (*read, tuple(carried_inputs)),
            result=lambda _: tuple(carried_inputs),
            varying=True,
        )

    return while_loop


def _make_map(original: Any) -> Any:
    def map(f: Any, xs: Any, *args: Any) -> Any:
        return record(
            lambda: original(f, xs, *args),
            higher_order.map,
            [(f, (xs, *args), {})],
            lambda read: (*read, xs, args),
            inner=lambda place: (lambda value: value) if place else lambda value: sample_of(value, 0),
            varying=True,
        )

    return map


def _make_scan(original: Any) -> Any:
    def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
        return record(
            lambda: original(combine_fn, init, xs, dim=dim, reverse=reverse),
            higher_order.scan,
            [(combine_fn, (init, xs), {})],
            lambda read: (*read, init, xs),
            options_of(dim=(dim, 0), reverse=(reverse, False)),
            lambda returned: (init, auxiliary(returned)),
            lambda place: (lambda value: sample_of(value, dim)) if place else lambda value: value,
            varying=True,
        )

    return scan


def _make_associative_scan(original: Any) -> Any:
    def associative_scan(combine_fn: Any, xs: Any, dim: int, **options: Any) -> Any:
        return record(
            lambda: original(combine_fn, xs, dim, **options),
            higher_order.associative_scan,
            [(combine_fn, (xs, xs), {})],
            lambda read: (*read, xs, dim),
            options,
            lambda _: xs,
            lambda _: lambda value: sample_of(value, dim),
            varying=True,
        )

    return associative_scan


CONTROL_FLOW: dict[str, Callable[[Any], Any]] = {
    "cond": _make_cond,
    "while_loop": _make_while_loop,
    "map": _make_map,
    "scan": _make_scan,
    "associative_scan": _make_associative_scan,
}


def make_operator(original: Any) -> Any:
    """A higher-order operator of ``torch.ops``, which exported programs call, too."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(self, *args, **kwargs)
        functions = [one for one in args if callable(one) and not isinstance(one, (Proxy, torch.nn.Module))]
        if not functions:
            if not tracer._takes_part((args, kwargs)):
                return original(self, *args, **kwargs)
            return tracer.create_proxy("call_function", self, args, kwargs)
        if self.name() == "cond" and len(args) == 4:
            return _make_cond(functools.partial(original, self))(*args)
        if self.name() == "while_loop" and len(args) == 4 and not args[3]:
            return _make_while_loop(functools.partial(original, self))(*args[:3])
        raise tracer._refusal(
            f"cannot capture the higher-order operator {self.name()} with functions of Python's",
            where=user_location(sys._getframe(1), {}),
            value=getattr(functions[0], "__qualname__", repr(functions[0])),
            why="it is called with tensors in an order of its own",
            remedy=f"call {FUNCTIONS_OF.get(self.name(), 'the function of torch that calls it')} instead",
        )

    return __call__


FUNCTIONS_OF = {
    "cond": "torch.cond",
    "while_loop": "torch.while_loop",
    "map_impl": "torch._higher_order_ops.map",
    "scan": "torch._higher_order_ops.scan",
    "associative_scan": "torch._higher_order_ops.associative_scan",
}
