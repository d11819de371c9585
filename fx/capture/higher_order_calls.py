"""Calls of functions of functions (``vmap``, ``grad``, ``cond``, loops): one operation each, with captured bodies.

They are seen where torch does the work, wherever the traced code has them from and whenever it has made them. Those
that do much before they call the function (``jacrev``, ``cond``) are replaced where traced code refers to them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from fx import higher_order
from fx.capture.bodies import LEAF, Body, attach, parts
from fx.capture.example_values import _outside
from fx.capture.patching import Trace, replaced_together, running_tracer
from fx.capture.replacements import Replacement
from fx.errors import TraceError
from fx.frames import user_location
from fx.proxy import Proxy

_HIGHER_ORDER = "torch._higher_order_ops"
_LOOPS = ("cond", "while_loop", "map", "scan", "associative_scan")
HOMES: tuple[dict[str, Any], ...] = (
    torch.__dict__,
    torch.func.__dict__,
    *(sys.modules[name].__dict__ for name in (_HIGHER_ORDER, *(f"{_HIGHER_ORDER}.{name}" for name in _LOOPS))),
)
"""The namespaces of torch whose functions are replaced where traced code has imported them, too."""
_CLOSED = (_NormBase, torch.nn.RNNBase, torch.nn.RNNCellBase, torch.nn.MultiheadAttention, torch.nn.Transformer,
           torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer, torch.nn.TransformerEncoder,
           torch.nn.TransformerDecoder)  # fmt: skip
"""Modules that branch on what they are given, or on their mode, so that a body calls them whole."""
Inner = Callable[[Any], Callable[[Any], Any]]


def replace(trace: Trace) -> None:
    """Let a trace see these calls."""
    for several in _replacements():
        trace.replace_all(several)


@functools.cache
def _replacements() -> tuple[Replacement, ...]:
    """What is replaced where, and by what it makes of it."""
    apis: Any = sys.modules["torch._functorch.apis"]
    transforms: Any = sys.modules["torch._functorch.eager_transforms"]
    of_transforms = {
        "grad_impl": _make_grad(higher_order.grad, _of_grad),
        "grad_and_value_impl": _make_grad(higher_order.grad_and_value, _of_grad_and_value),
        "_vjp_with_argnums": _make_vjp,
        "_jvp_with_argnums": _make_jvp,
    }
    named = {**_MADE, **_CONTROL_FLOW}
    in_homes = [{name: named[name] for name in named if isinstance(home.get(name), FunctionType)} for home in HOMES]
    return (
        replaced_together(higher_order.__dict__, {"is_recorded": _make_is_recorded}),
        replaced_together(apis.__dict__, {"vmap_impl": _make_vmap}),
        replaced_together(transforms.__dict__, of_transforms),
        *(replaced_together(home, makers) for home, makers in zip(HOMES, in_homes, strict=True) if makers),
    )


def is_opened_in_body(tracer: Any, module: torch.nn.Module) -> bool:
    """Return whether a leaf is looked into in a body, which holds no modules: its functions take what it holds."""
    kind = type(module)
    opened = kind.__module__.startswith("torch.nn.modules.") and not isinstance(module, _CLOSED)
    if opened and tracer._flags is not None:
        tracer._flags.opened.add(id(module))
    return opened


def _make_is_recorded(original: Any) -> Any:
    """Let programs that are captured again call functions of torch, which are seen."""
    return lambda: original() or running_tracer() is not None


# Recording.


def _record(
    tracer: Any,
    run: Callable[[], Any],
    target: Any,
    calls: Sequence[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]],
    arguments: Callable[[list[Proxy]], tuple[Any, ...]],
    options: Mapping[str, Any],
    result: Callable[[Any], Any],
    inner: Inner = lambda place: lambda value: value,
    varying: bool = False,
) -> Any:
    """Record a call of a function of functions, or make it, where only constants take part.

    Args:
        tracer: records it.
        run: makes it.
        target: what the program calls.
        calls: each function with the arguments that it is called with.
        arguments: the arguments of the call for what reads the bodies; the closed values come behind them.
        options: its keyword arguments.
        result: the structure of what it returns, for that of what the first function does.
        inner: of an argument, what the example inputs are in the body for what they are outside.
        varying: whether numbers among the arguments and results may be others when the program runs.
    """
    names = [target.__name__] if len(calls) == 1 else [f"{target.__name__}_{word}" for word in _WORDS[target.__name__]]
    bodies = [Body(tracer, f"{name}_body") for name in names]
    for body, (function, args, kwargs) in zip(bodies, calls, strict=True):
        body.capture(function, args, kwargs, inner, varying)
    if not _takes_part(tracer, bodies, arguments([])):
        return _outside(run)
    read, closed = attach(tracer, bodies)
    whole = tracer.create_proxy("call_function", target, (*arguments(read), closed), dict(options))
    return parts(result(bodies[0].returned), whole, tracer, varying)


def _takes_part(tracer: Any, bodies: Sequence[Body], arguments: Any) -> bool:
    """Return whether a call is recorded: a traced value is among its arguments, or its bodies do more than compute."""
    if tracer.takes_part(arguments) or any(body.closed for body in bodies):
        return True
    nodes = [node for body in bodies for node in body.graph.nodes if node.op not in ("placeholder", "output")]
    return any(node.op != "get_attr" and node.is_impure() for node in nodes)


def record_checkpoint(
    tracer: Any, checkpoint: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], own: dict[str, Any]
) -> Any:
    """Record ``checkpoint(function, *args, **kwargs, **own)``, of which ``own`` is not for the function."""
    body = Body(tracer, "checkpoint_body")
    body.capture(function, args, kwargs, lambda place: lambda value: value, varying=False)
    if not _takes_part(tracer, [body], (args, kwargs)):
        return checkpoint(function, *args, **kwargs, **own)
    [read], closed = attach(tracer, [body])
    given = (read, *args, *kwargs.values(), *closed)
    return parts(body.returned, tracer.create_proxy("call_function", checkpoint, given, own), tracer)


# Function transforms.


def _make_vmap(original: Any) -> Any:
    def vmap_impl(func: Any, in_dims: Any, out_dims: Any, randomness: Any, chunk_size: Any, *args: Any, **kw: Any):
        def run() -> Any:
            return original(func, in_dims, out_dims, randomness, chunk_size, *args, **kw)

        tracer = running_tracer()
        if tracer is None:
            return run()
        options = {"in_dims": in_dims, "out_dims": out_dims, "randomness": randomness, "chunk_size": chunk_size}
        defaults = {"in_dims": 0, "out_dims": 0, "randomness": "error", "chunk_size": None}
        options = {name: value for name, value in options.items() if value != defaults[name]}

        def inner(place: Any) -> Callable[[Any], Any]:
            dims = in_dims[place] if isinstance(in_dims, (tuple, list)) and isinstance(place, int) else in_dims
            return (lambda value: value) if isinstance(place, str) else lambda value: _sample(value, dims)

        return _record(
            tracer, run, higher_order.vmap, [(func, args, kw)], lambda read: (*read, args, kw), options, _same, inner
        )

    return vmap_impl


def _sample(value: Any, dims: Any) -> Any:
    """What one of the calls that ``vmap`` makes gets for a value."""
    flat, spec = pytree.tree_flatten(value)
    along = pytree._broadcast_to_and_flatten(dims, spec)
    assert along is not None
    one = [leaf if dim is None else leaf.select(dim, 0) for leaf, dim in zip(flat, along, strict=True)]
    return pytree.tree_unflatten(one, spec)


def _make_grad(target: Any, result: Callable[[Any, Any, bool], Any]) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def grad_impl(func: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
            tracer = running_tracer()
            if tracer is None:
                return original(func, argnums, has_aux, args, kwargs)
            options = _options(argnums=(argnums, 0), has_aux=(has_aux, False))
            return _record(
                tracer,
                lambda: original(func, argnums, has_aux, args, kwargs),
                target,
                [(func, args, kwargs)],
                lambda read: (*read, args, kwargs),
                options,
                lambda returned: result(returned, _sliced(args, argnums), has_aux),
            )

        return grad_impl

    return make


def _make_vjp(original: Any) -> Any:
    def vjp(func: Any, *primals: Any, argnums: Any = None, has_aux: bool = False) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(func, *primals, argnums=argnums, has_aux=has_aux)
        if argnums is not None:
            raise _made_before(tracer, "jacrev")
        return _record(
            tracer,
            lambda: original(func, *primals, has_aux=has_aux),
            higher_order.vjp,
            [(func, primals, {})],
            lambda read: (*read, primals),
            _options(has_aux=(has_aux, False)),
            lambda returned: _with_function(returned, has_aux),
        )

    return vjp


def _make_jvp(original: Any) -> Any:
    def jvp(func: Any, primals: Any, tangents: Any, argnums: Any, *, strict: bool = False, has_aux: bool) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(func, primals, tangents, argnums, strict=strict, has_aux=has_aux)
        if argnums is not None:
            raise _made_before(tracer, "jacfwd")
        return _record(
            tracer,
            lambda: original(func, primals, tangents, argnums, strict=strict, has_aux=has_aux),
            higher_order.jvp,
            [(func, primals, {})],
            lambda read: (*read, primals, tangents),
            _options(strict=(strict, False), has_aux=(has_aux, False)),
            lambda returned: _of_jvp(returned, has_aux),
        )

    return jvp


def _make_jacobian(original: Any) -> Any:
    target = getattr(higher_order, original.__name__)

    def jacobian(func: Any, argnums: Any = 0, *more: Any, **options: Any) -> Any:
        made = original(func, argnums, *more, **options)
        if more:
            options = {"has_aux": more[0], **options}

        def call(*args: Any) -> Any:
            tracer = running_tracer()
            if tracer is None:
                return made(*args)
            has_aux = bool(options.get("has_aux", False))
            sliced = _sliced(args, argnums)
            named = {**_options(argnums=(argnums, 0)), **options}

            def result(returned: Any) -> Any:
                output = returned[0] if has_aux and type(returned) is tuple else LEAF if has_aux else returned
                jacobians = _product(output, sliced)
                if original.__name__ == "hessian":
                    return _product(jacobians, sliced)
                return (jacobians, returned[1] if type(returned) is tuple else LEAF) if has_aux else jacobians

            return _record(
                tracer, lambda: made(*args), target, [(func, args, {})], lambda read: (*read, args), named, result
            )

        return call

    return jacobian


def _make_functionalize(original: Any) -> Any:
    def functionalize(func: Any, *, remove: str = "mutations") -> Any:
        made = original(func, remove=remove)

        def call(*args: Any, **kwargs: Any) -> Any:
            tracer = running_tracer()
            if tracer is None:
                return made(*args, **kwargs)
            return _record(
                tracer,
                lambda: made(*args, **kwargs),
                higher_order.functionalize,
                [(func, args, kwargs)],
                lambda read: (*read, args, kwargs),
                _options(remove=(remove, "mutations")),
                _same,
            )

        return call

    return functionalize


def _make_linearize(original: Any) -> Any:
    def linearize(func: Any, *primals: Any) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(func, *primals)
        return _record(
            tracer,
            lambda: original(func, *primals),
            higher_order.linearize,
            [(func, primals, {})],
            lambda read: (*read, primals),
            {},
            lambda returned: _with_function(returned, has_aux=False),
        )

    return linearize


_MADE: dict[str, Callable[[Any], Any]] = {
    "jacrev": _make_jacobian,
    "jacfwd": _make_jacobian,
    "hessian": _make_jacobian,
    "functionalize": _make_functionalize,
    "linearize": _make_linearize,
}


def _made_before(tracer: Any, name: str) -> TraceError:
    return tracer._refusal(
        f"cannot capture a call of what {name} has made before the capture",
        where=user_location(sys._getframe(2), {}),
        value=f"{name}(…)(…)",
        why="it looks at its results while it makes the jacobian, and these are known only when the program runs",
        remedy=f"call {name} in the program, where its result is called: {name}(function)(x)",
    )


# Structures of results.


def _same(returned: Any) -> Any:
    return returned


def _options(**values: tuple[Any, Any]) -> dict[str, Any]:
    """Those of the options that are not the defaults."""
    return {name: value for name, (value, default) in values.items() if value != default}


def _sliced(args: Sequence[Any], argnums: Any) -> Any:
    if isinstance(argnums, int):
        return args[argnums] if -len(args) <= argnums < len(args) else LEAF
    return tuple(args[number] for number in argnums)


def _of_grad(returned: Any, sliced: Any, has_aux: bool) -> Any:
    return (sliced, _auxiliary(returned)) if has_aux else sliced


def _of_grad_and_value(returned: Any, sliced: Any, has_aux: bool) -> Any:
    return (sliced, (LEAF, _auxiliary(returned)) if has_aux else LEAF)


def _auxiliary(returned: Any) -> Any:
    return returned[1] if type(returned) is tuple and len(returned) == 2 else LEAF


def _with_function(returned: Any, has_aux: bool) -> Any:
    """Of ``vjp`` and ``linearize``, whose second result is a function."""
    if not has_aux:
        return (returned, LEAF)
    return (returned[0] if type(returned) is tuple else LEAF, LEAF, _auxiliary(returned))


def _of_jvp(returned: Any, has_aux: bool) -> Any:
    if not has_aux:
        return (returned, returned)
    output = returned[0] if type(returned) is tuple else LEAF
    return (output, output, _auxiliary(returned))


def _product(output: Any, sliced: Any) -> Any:
    """The structure of jacobians: that of the arguments in the place of each tensor of the output."""
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return type(output)(_product(one, sliced) for one in output)
    if isinstance(output, dict):
        return {key: _product(one, sliced) for key, one in output.items()}
    return LEAF if output is LEAF else sliced


# Control flow.


def _make_cond(original: Any) -> Any:
    def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(pred, true_fn, false_fn, operands)
        if not tracer.takes_part(pred):
            return (true_fn if pred else false_fn)(*operands)
        operands = tuple(operands)
        return _record(
            tracer,
            lambda: original(pred, true_fn, false_fn, operands),
            higher_order.cond,
            [(true_fn, operands, {}), (false_fn, operands, {})],
            lambda read: (pred, *read, operands),
            {},
            _same,
            varying=True,
        )

    return cond


def _make_while_loop(original: Any) -> Any:
    def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(cond_fn, body_fn, carried_inputs)
        carried = tuple(carried_inputs)
        return _record(
            tracer,
            lambda: original(cond_fn, body_fn, carried),
            higher_order.while_loop,
            [(cond_fn, carried, {}), (body_fn, carried, {})],
            lambda read: (*read, carried),
            {},
            lambda _: carried,
            varying=True,
        )

    return while_loop


def _make_map(original: Any) -> Any:
    def map(f: Any, xs: Any, *args: Any) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(f, xs, *args)
        return _record(
            tracer,
            lambda: original(f, xs, *args),
            higher_order.map,
            [(f, (xs, *args), {})],
            lambda read: (*read, xs, args),
            {},
            _same,
            lambda place: (lambda value: value) if place else lambda value: _sample(value, 0),
            varying=True,
        )

    return map


def _make_scan(original: Any) -> Any:
    def scan(combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(combine_fn, init, xs, dim=dim, reverse=reverse)
        return _record(
            tracer,
            lambda: original(combine_fn, init, xs, dim=dim, reverse=reverse),
            higher_order.scan,
            [(combine_fn, (init, xs), {})],
            lambda read: (*read, init, xs),
            _options(dim=(dim, 0), reverse=(reverse, False)),
            lambda returned: (init, returned[1] if type(returned) is tuple and len(returned) == 2 else LEAF),
            lambda place: (lambda value: _sample(value, dim)) if place else lambda value: value,
            varying=True,
        )

    return scan


def _make_associative_scan(original: Any) -> Any:
    def associative_scan(combine_fn: Any, xs: Any, dim: int, **options: Any) -> Any:
        tracer = running_tracer()
        if tracer is None:
            return original(combine_fn, xs, dim, **options)
        return _record(
            tracer,
            lambda: original(combine_fn, xs, dim, **options),
            higher_order.associative_scan,
            [(combine_fn, (xs, xs), {})],
            lambda read: (*read, xs, dim),
            options,
            lambda _: xs,
            lambda _: lambda value: _sample(value, dim),
            varying=True,
        )

    return associative_scan


_WORDS = {"cond": ("true", "false"), "while_loop": ("condition", "step")}
"""What the bodies of an operator with several are called."""
_CONTROL_FLOW: dict[str, Callable[[Any], Any]] = {
    "cond": _make_cond,
    "while_loop": _make_while_loop,
    "map": _make_map,
    "scan": _make_scan,
    "associative_scan": _make_associative_scan,
}


def record_operator(tracer: Any, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call of a higher-order operator of ``torch.ops`` that is given functions, if it is a known one."""
    functions = [one for one in args if callable(one) and not isinstance(one, (Proxy, torch.nn.Module))]
    if kwargs or not functions:
        return NotImplemented
    if operator.name() == "cond" and len(args) == 4:
        return _make_cond(operator)(*args)
    if operator.name() == "while_loop" and len(args) == 4 and not args[3]:
        return _make_while_loop(operator)(*args[:3])
    return NotImplemented
