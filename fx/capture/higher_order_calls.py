"""Higher-order functions (``vmap``, ``grad``, ``cond``, loops) in traced code: one operation each, with their bodies.

Each has one function here, which takes the same arguments as torch's and returns the call that the program records.
Transforms are intercepted where torch does the work, so that it does not matter where traced code imports them from and
when it applies them. Those that do much before they call the function (``jacrev``) are replaced where traced code
refers to them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from fx import higher_order
from fx.capture.bodies import LEAF, Body, Inner, attach, parts
from fx.capture.patching import Maker, outside_of_trace, replaced_always, running_tracer, while_tracing
from fx.frames import user_location
from fx.proxy import Proxy

_HIGHER_ORDER = "torch._higher_order_ops"
_LOOPS = ("cond", "while_loop", "map", "scan", "associative_scan")
HOMES: tuple[dict[str, Any], ...] = (
    torch.__dict__,
    torch.func.__dict__,
    *(sys.modules[name].__dict__ for name in (_HIGHER_ORDER, *(f"{_HIGHER_ORDER}.{name}" for name in _LOOPS))),
)
"""The namespaces of torch whose functions are replaced also where traced code has imported them."""
_CLOSED = (_NormBase, torch.nn.RNNBase, torch.nn.RNNCellBase, torch.nn.MultiheadAttention, torch.nn.Transformer,
           torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer, torch.nn.TransformerEncoder,
           torch.nn.TransformerDecoder)  # fmt: skip
"""Modules that branch on their inputs or on their mode, so that a body calls them whole."""
_OF_CHECKPOINT = frozenset("use_reentrant context_fn determinism_check debug early_stop preserve_rng_state".split())
"""The arguments of ``checkpoint`` that are not passed to the function."""
_BODIES = {"cond": ("cond_true", "cond_false"), "while_loop": ("while_loop_condition", "while_loop_step")}
"""The names of the bodies of functions with several."""


@dataclass(frozen=True, slots=True)
class HigherOrderCall:
    """A call of a higher-order function, as the program records it."""

    target: Any
    """The function that the program calls."""
    functions: Sequence[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]]
    """The functions, each with the arguments of its calls."""
    operands: tuple[Any, ...]
    """The arguments after the bodies; the closed values follow them."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The keyword arguments."""
    result: Callable[[Any], Any] = lambda returned: returned
    """Maps the structure of the first function's result to that of the call's result."""
    inner: Inner = lambda place, value: value
    """Maps an example input outside to its value in a body."""
    leading: tuple[Any, ...] = ()
    """The arguments before the bodies."""
    varies: bool = False
    """True if numbers among the arguments and results may differ when the program runs."""
    spreads_closed: bool = False
    """True if the closed values are separate arguments, and not a tuple."""


def record(tracer: Any, call: HigherOrderCall, run: Callable[[], Any]) -> Any:
    """Record a call of a higher-order function; if only constants take part, return ``run()``."""
    name = call.target.__name__
    bodies = [Body(tracer, f"{body_name}_body") for body_name in _BODIES.get(name, (name,))]
    for body, (function, args, kwargs) in zip(bodies, call.functions, strict=True):
        body.capture(function, args, kwargs, call.inner, call.varies)
    if not _takes_part(tracer, bodies, (call.leading, call.operands)):
        return outside_of_trace(run)
    # attributes before the functions that close over others, in the order in which the code of the program reads them
    fetched = {
        id(leaf): tracer.proxy(tracer.create_arg(leaf))
        for leaf in pytree.tree_leaves((call.leading, call.operands))
        if not isinstance(leaf, Proxy) and isinstance(leaf, torch.Tensor)
    }
    read, closed = attach(tracer, bodies)
    args = (*call.leading, *read, *call.operands, *(closed if call.spreads_closed else (closed,)))
    args = pytree.tree_map(lambda leaf: fetched.get(id(leaf), leaf), args)
    whole = tracer.create_proxy("call_function", call.target, args, dict(call.options))
    return parts(call.result(bodies[0].returned), whole, tracer, call.varies)


def _takes_part(tracer: Any, bodies: Sequence[Body], arguments: Any) -> bool:
    """Return whether a call is recorded: it has a traced argument, or a body does more than compute."""
    if tracer._takes_part(arguments) or any(body.closed for body in bodies):
        return True
    nodes = [node for body in bodies for node in body.graph.nodes if node.op not in ("placeholder", "output")]
    return any(node.op != "get_attr" and node.is_impure() for node in nodes)


def _recorded(call_of: Callable[..., HigherOrderCall]) -> Maker:
    """Make the replacement for a function whose calls ``call_of`` describes."""

    def called(tracer: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        return record(tracer, call_of(*args, **kwargs), lambda: original(*args, **kwargs))

    return while_tracing(called)


def _made(calls_of: Callable[..., Callable[..., HigherOrderCall]]) -> Maker:
    """Make the replacement for a function that returns another one, whose calls are recorded."""

    def make(original: Any) -> Any:
        return lambda *args, **kwargs: _recorded(calls_of(*args, **kwargs))(original(*args, **kwargs))

    return make


# Transforms.


def _vmap(
    function: Any, in_dims: Any, out_dims: Any, randomness: Any, chunk_size: Any, *args: Any, **kwargs: Any
) -> HigherOrderCall:
    def inner(place: int | str, value: Any) -> Any:
        if isinstance(place, str):
            return value
        return _sample_of(value, in_dims[place] if isinstance(in_dims, (tuple, list)) else in_dims)

    options = _options_of(
        in_dims=(in_dims, 0), out_dims=(out_dims, 0), randomness=(randomness, "error"), chunk_size=(chunk_size, None)
    )
    return HigherOrderCall(higher_order.vmap, [(function, args, kwargs)], (args, kwargs), options, inner=inner)


def _grad(
    target: Any, with_value: bool, function: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any
) -> HigherOrderCall:
    def result(returned: Any) -> Any:
        inputs, (_, auxiliary) = _differentiated(args, argnums), _split(returned, has_aux)
        if with_value:
            return (inputs, (LEAF, *auxiliary) if has_aux else LEAF)
        return (inputs, *auxiliary) if has_aux else inputs

    options = _options_of(argnums=(argnums, 0), has_aux=(has_aux, False))
    return HigherOrderCall(target, [(function, args, kwargs)], (args, kwargs), options, result)


def _vjp(function: Any, *primals: Any, argnums: Any = None, has_aux: bool = False) -> HigherOrderCall:
    def result(returned: Any) -> Any:
        main, auxiliary = _split(returned, has_aux)
        return (main, LEAF, *auxiliary)  # the second is a function

    _expect_made_here(argnums, "jacrev")
    options = _options_of(has_aux=(has_aux, False))
    return HigherOrderCall(higher_order.vjp, [(function, primals, {})], (primals,), options, result)


def _jvp(
    function: Any, primals: Any, tangents: Any, argnums: Any, *, strict: bool = False, has_aux: bool
) -> HigherOrderCall:
    def result(returned: Any) -> Any:
        main, auxiliary = _split(returned, has_aux)
        return (main, main, *auxiliary)

    _expect_made_here(argnums, "jacfwd")
    options = _options_of(strict=(strict, False), has_aux=(has_aux, False))
    return HigherOrderCall(higher_order.jvp, [(function, primals, {})], (primals, tangents), options, result)


def _linearize(function: Any, *primals: Any) -> HigherOrderCall:
    return HigherOrderCall(
        higher_order.linearize, [(function, primals, {})], (primals,), result=lambda returned: (returned, LEAF)
    )


def _expect_made_here(argnums: Any, name: str) -> None:
    """Refuse to call, in traced code, a jacobian made before the capture: only jacobians pass numbers of arguments."""
    if argnums is None:
        return
    raise running_tracer()._refusal(
        f"cannot capture a call of a function that {name} made before the capture",
        where=user_location(sys._getframe(1), {}),
        value=f"{name}(…)(…)",
        why="it reads its results while it makes the jacobian, and they are known only when the program runs",
        remedy=f"call {name} in the program, where its result is called: {name}(function)(x)",
    )


def _jacobian(
    target: Any, order: int, function: Any, argnums: Any = 0, has_aux: bool = False, **options: Any
) -> Callable[..., HigherOrderCall]:
    all_options = {**_options_of(argnums=(argnums, 0), has_aux=(has_aux, False)), **options}

    def call_of(*args: Any) -> HigherOrderCall:
        def result(returned: Any) -> Any:
            jacobians, auxiliary = _split(returned, has_aux)
            for _ in range(order):
                jacobians = _product(jacobians, _differentiated(args, argnums))
            return (jacobians, *auxiliary) if has_aux else jacobians

        return HigherOrderCall(target, [(function, args, {})], (args,), all_options, result)

    return call_of


def _functionalize(function: Any, *, remove: str = "mutations") -> Callable[..., HigherOrderCall]:
    options = _options_of(remove=(remove, "mutations"))
    return lambda *args, **kwargs: HigherOrderCall(
        higher_order.functionalize, [(function, args, kwargs)], (args, kwargs), options
    )


# Control flow.


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> HigherOrderCall:
    calls = [(function, operands, {}) for function in (true_fn, false_fn)]
    return HigherOrderCall(higher_order.cond, calls, (tuple(operands),), leading=(pred,), varies=True)


@while_tracing
def _make_cond(tracer: Any, original: Any, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    if not tracer._takes_part(pred):
        return (true_fn if pred else false_fn)(*operands)
    return record(tracer, _cond(pred, true_fn, false_fn, operands), lambda: original(pred, true_fn, false_fn, operands))


def _while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> HigherOrderCall:
    carried = tuple(carried_inputs)
    calls = [(function, carried_inputs, {}) for function in (cond_fn, body_fn)]
    return HigherOrderCall(higher_order.while_loop, calls, (carried,), result=lambda _: carried, varies=True)


def _map(function: Any, xs: Any, *args: Any) -> HigherOrderCall:
    return HigherOrderCall(
        higher_order.map,
        [(function, (xs, *args), {})],
        (xs, args),
        inner=lambda place, value: value if place else _sample_of(value, 0),
        varies=True,
    )


def _scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> HigherOrderCall:
    return HigherOrderCall(
        higher_order.scan,
        [(combine_fn, (init, xs), {})],
        (init, xs),
        _options_of(dim=(dim, 0), reverse=(reverse, False)),
        lambda returned: (init, *_split(returned)[1]),
        lambda place, value: _sample_of(value, dim) if place else value,
        varies=True,
    )


def _associative_scan(combine_fn: Any, xs: Any, dim: int, **options: Any) -> HigherOrderCall:
    return HigherOrderCall(
        higher_order.associative_scan,
        [(combine_fn, (xs, xs), {})],
        (xs, dim),
        options,
        lambda _: xs,
        lambda _, value: _sample_of(value, dim),
        varies=True,
    )


def _checkpoint(checkpoint: Any, function: Any, *args: Any, **kwargs: Any) -> HigherOrderCall:
    own = {name: value for name, value in kwargs.items() if name in _OF_CHECKPOINT}
    named = {name: value for name, value in kwargs.items() if name not in own}
    calls, operands = [(function, args, named)], (*args, *named.values())
    return HigherOrderCall(checkpoint, calls, operands, own, spreads_closed=True)


@while_tracing
def make_checkpoint(tracer: Any, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Record ``checkpoint`` with the submodule that it calls, or with the body of a function."""

    def run() -> Any:
        return original(function, *args, **kwargs)

    if not isinstance(function, torch.nn.Module):
        return record(tracer, _checkpoint(original, function, *args, **kwargs), run)
    if not tracer._takes_part((args, kwargs)):
        return run()
    return tracer.create_proxy("call_function", original, (function, *args), kwargs)


@while_tracing
def _make_operator(tracer: Any, original: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a call of a higher-order operator of ``torch.ops``; exported programs call these too."""
    functions = [
        argument for argument in args if callable(argument) and not isinstance(argument, (Proxy, torch.nn.Module))
    ]
    if not functions:
        if not tracer._takes_part((args, kwargs)):
            return original(operator, *args, **kwargs)
        return tracer.create_proxy("call_function", operator, args, kwargs)
    if operator.name() == "cond" and len(args) == 4:
        return _make_cond(functools.partial(original, operator))(*args)
    if operator.name() == "while_loop" and len(args) == 4 and not args[3]:
        return _recorded(_while_loop)(functools.partial(original, operator))(*args[:3])
    raise tracer._refusal(
        f"cannot capture the higher-order operator {operator.name()} with functions of Python's",
        where=user_location(sys._getframe(2), {}),
        value=getattr(functions[0], "__qualname__", repr(functions[0])),
        why="it is called with tensors in an order of its own",
        remedy=f"call {_FUNCTIONS_OF.get(operator.name(), 'the function of torch that calls it')} instead",
    )


# Arguments, and the structures of results.


def _sample_of(value: Any, dims: Any) -> Any:
    """Return the slice of a value that a single call by ``vmap`` gets."""
    flat, spec = pytree.tree_flatten(value)
    along = pytree._broadcast_to_and_flatten(dims, spec)
    assert along is not None
    sample = [leaf if dim is None else leaf.select(dim, 0) for leaf, dim in zip(flat, along, strict=True)]
    return pytree.tree_unflatten(sample, spec)


def _options_of(**values: tuple[Any, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    return {name: value for name, (value, default) in values.items() if value != default}


def _differentiated(args: Sequence[Any], argnums: Any) -> Any:
    """Return the arguments that ``argnums`` selects."""
    if isinstance(argnums, int):
        return args[argnums] if -len(args) <= argnums < len(args) else LEAF
    return tuple(args[number] for number in argnums)


def _split(returned: Any, has_aux: bool = True) -> tuple[Any, tuple[Any, ...]]:
    """Return the structures of a function's result, and of its auxiliary result if it has one."""
    if not has_aux:
        return returned, ()
    return (returned[0], returned[1:]) if type(returned) is tuple and len(returned) == 2 else (LEAF, (LEAF,))


def _product(output: Any, inputs: Any) -> Any:
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return type(output)(_product(element, inputs) for element in output)
    if isinstance(output, dict):
        return {key: _product(element, inputs) for key, element in output.items()}
    return LEAF if output is LEAF else inputs


# Replacements.

_WORKING: dict[str, Maker] = {
    "grad_impl": _recorded(functools.partial(_grad, higher_order.grad, False)),
    "grad_and_value_impl": _recorded(functools.partial(_grad, higher_order.grad_and_value, True)),
    "_vjp_with_argnums": _recorded(_vjp),
    "_jvp_with_argnums": _recorded(_jvp),
}
"""Functions of ``torch._functorch.eager_transforms`` that do the work, each with the maker of its replacement."""
_NAMED: dict[str, Maker] = {
    "jacrev": _made(functools.partial(_jacobian, higher_order.jacrev, 1)),
    "jacfwd": _made(functools.partial(_jacobian, higher_order.jacfwd, 1)),
    "hessian": _made(functools.partial(_jacobian, higher_order.hessian, 2)),
    "functionalize": _made(_functionalize),
    "linearize": _recorded(_linearize),
    "cond": _make_cond,
    "while_loop": _recorded(_while_loop),
    "map": _recorded(_map),
    "scan": _recorded(_scan),
    "associative_scan": _recorded(_associative_scan),
}
"""Functions that are replaced where traced code refers to them."""
_FUNCTIONS_OF = {
    "cond": "torch.cond",
    "while_loop": "torch.while_loop",
    "map_impl": "torch._higher_order_ops.map",
    "scan": "torch._higher_order_ops.scan",
    "associative_scan": "torch._higher_order_ops.associative_scan",
}
"""The functions of torch that call an operator, by the operator's name."""


def is_opened_in_body(tracer: Any, module: torch.nn.Module) -> bool:
    """Return whether a leaf is traced through in a body, which holds no modules but takes their tensors."""
    kind = type(module)
    opened = kind.__module__.startswith("torch.nn.modules.") and not isinstance(module, _CLOSED)
    if opened and tracer._state.flags is not None:
        tracer._state.flags.opened.add(id(module))
    return opened


_torch: Any = torch
_OPERATORS = dict.fromkeys(type(getattr(_torch.ops.higher_order, name)) for name in _FUNCTIONS_OF)
# programs that are captured again call functions of torch, which are recorded
replaced_always(higher_order.__dict__, {"is_recorded": while_tracing(lambda tracer, original: True)})
replaced_always(_torch._functorch.apis.__dict__, {"vmap_impl": _recorded(_vmap)})
replaced_always(_torch._functorch.eager_transforms.__dict__, _WORKING)
for _kind in _OPERATORS:
    replaced_always(_kind, {"__call__": _make_operator})
for _home in HOMES:
    replaced_always(_home, {name: _NAMED[name] for name in _NAMED if isinstance(_home.get(name), FunctionType)})
