"""Function transforms (``vmap``, ``grad``, jacobians) in traced code: one operation each, with captured bodies.

They are seen where torch does the work, wherever the traced code has them from and whenever it has made them. Those
that do much before they call the function (``jacrev``) are replaced where traced code refers to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fx import higher_order
from fx.capture.bodies import record
from fx.capture.patching import running_tracer
from fx.capture.result_structures import (
    differentiated,
    of_grad,
    of_grad_and_value,
    of_jacobian,
    of_jvp,
    options_of,
    sample_of,
    with_function,
)
from fx.frames import user_location


def make_vmap(original: Any) -> Any:
    """``vmap_impl``, which all that ``torch.vmap`` returns calls."""

    def vmap_impl(func: Any, in_dims: Any, out_dims: Any, randomness: Any, chunk_size: Any, *args: Any, **kw: Any):
        def inner(place: Any) -> Callable[[Any], Any]:
            dims = in_dims[place] if isinstance(in_dims, (tuple, list)) and isinstance(place, int) else in_dims
            return (lambda value: value) if isinstance(place, str) else lambda value: sample_of(value, dims)

        return record(
            lambda: original(func, in_dims, out_dims, randomness, chunk_size, *args, **kw),
            higher_order.vmap,
            [(func, args, kw)],
            lambda read: (*read, args, kw),
            options_of(
                in_dims=(in_dims, 0),
                out_dims=(out_dims, 0),
                randomness=(randomness, "error"),
                chunk_size=(chunk_size, None),
            ),
            inner=inner,
        )

    return vmap_impl


def _make_grad(target: Any, result: Callable[[Any, Any, bool], Any]) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def grad_impl(func: Any, argnums: Any, has_aux: bool, args: Any, kwargs: Any) -> Any:
            return record(
                lambda: original(func, argnums, has_aux, args, kwargs),
                target,
                [(func, args, kwargs)],
                lambda read: (*read, args, kwargs),
                options_of(argnums=(argnums, 0), has_aux=(has_aux, False)),
                lambda returned: result(returned, differentiated(args, argnums), has_aux),
            )

        return grad_impl

    return make


def _make_vjp(original: Any) -> Any:
    def vjp(func: Any, *primals: Any, argnums: Any = None, has_aux: bool = False) -> Any:
        _expect_made_here(argnums, "jacrev")
        return record(
            lambda: original(func, *primals, argnums=argnums, has_aux=has_aux),
            higher_order.vjp,
            [(func, primals, {})],
            lambda read: (*read, primals),
            options_of(has_aux=(has_aux, False)),
            lambda returned: with_function(returned, has_aux),
        )

    return vjp


def _make_jvp(original: Any) -> Any:
    def jvp(func: Any, primals: Any, tangents: Any, argnums: Any, *, strict: bool = False, has_aux: bool) -> Any:
        _expect_made_here(argnums, "jacfwd")
        return record(
            lambda: original(func, primals, tangents, argnums, strict=strict, has_aux=has_aux),
            higher_order.jvp,
            [(func, primals, {})],
            lambda read: (*read, primals, tangents),
            options_of(strict=(strict, False), has_aux=(has_aux, False)),
            lambda returned: of_jvp(returned, has_aux),
        )

    return jvp


def _expect_made_here(argnums: Any, name: str) -> None:
    """Refuse a call, in traced code, of a jacobian that was made before: it alone gives numbers of arguments."""
    if argnums is None or (tracer := running_tracer()) is None:
        return
    raise tracer._refusal(
        f"cannot capture a call of what {name} has made before the capture",
        where=user_location(sys._getframe(2), {}),
        value=f"{name}(…)(…)",
        why="it looks at its results while it makes the jacobian, and these are known only when the program runs",
        remedy=f"call {name} in the program, where its result is called: {name}(function)(x)",
    )


def _make_jacobian(original: Any) -> Any:
    target, order = getattr(higher_order, original.__name__), 2 if original.__name__ == "hessian" else 1

    def jacobian(func: Any, argnums: Any = 0, *more: Any, **options: Any) -> Any:
        made = original(func, argnums, *more, **options)
        if more:
            options = {"has_aux": more[0], **options}
        has_aux = bool(options.get("has_aux", False))

        def call(*args: Any) -> Any:
            return record(
                lambda: made(*args),
                target,
                [(func, args, {})],
                lambda read: (*read, args),
                {**options_of(argnums=(argnums, 0)), **options},
                lambda returned: of_jacobian(returned, differentiated(args, argnums), has_aux, order),
            )

        return call

    return jacobian


def _make_functionalize(original: Any) -> Any:
    def functionalize(func: Any, *, remove: str = "mutations") -> Any:
        made = original(func, remove=remove)

        def call(*args: Any, **kwargs: Any) -> Any:
            return record(
                lambda: made(*args, **kwargs),
                higher_order.functionalize,
                [(func, args, kwargs)],
                lambda read: (*read, args, kwargs),
                options_of(remove=(remove, "mutations")),
            )

        return call

    return functionalize


def _make_linearize(original: Any) -> Any:
    def linearize(func: Any, *primals: Any) -> Any:
        return record(
            lambda: original(func, *primals),
            higher_order.linearize,
            [(func, primals, {})],
            lambda read: (*read, primals),
            result=lambda returned: with_function(returned, has_aux=False),
        )

    return linearize


JACOBIANS: dict[str, Callable[[Any], Any]] = {
    "jacrev": _make_jacobian,
    "jacfwd": _make_jacobian,
    "hessian": _make_jacobian,
    "functionalize": _make_functionalize,
    "linearize": _make_linearize,
}


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad_impl": _make_grad(higher_order.grad, of_grad),
    "grad_and_value_impl": _make_grad(higher_order.grad_and_value, of_grad_and_value),
    "_vjp_with_argnums": _make_vjp,
    "_jvp_with_argnums": _make_jvp,
}
"""Functions of ``torch._functorch.eager_transforms`` that do the work, and what makes their stand-ins."""
