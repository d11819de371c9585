"""Functions that captured programs call in place of higher-order functions: ``vmap``, ``grad``, ``cond``, …

Each takes programs in place of the functions. After the arguments of the call it takes ``closed``: the outer values
that those functions used. A program is called with its arguments, followed by the closed values. Otherwise these
functions are those of torch with the same names.

>>> import torch, fx
>>> program = fx.symbolic_trace(lambda x, y: torch.vmap(lambda row: row + y)(x))
>>> print(program.code.strip())
def forward(self, x, y):
    vmap_body_0 = self.vmap_body_0
    vmap = fx_higher_order_vmap(vmap_body_0, (x,), {}, (y,));  vmap_body_0 = x = y = None
    return vmap
>>> print(program.vmap_body_0.code.strip())
def forward(self, row, y):
    add = row + y;  row = y = None
    return add
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

Body: TypeAlias = Callable[..., Any]
Values: TypeAlias = Sequence[Any]
_torch: Any = torch
_func: Any = torch.func
_operators: Any = importlib.import_module("torch._higher_order_ops")


def vmap(body: Body, args: Values, kwargs: Mapping[str, Any], closed: Values, **options: Any) -> Any:
    """Return ``torch.vmap(body, **options)(*args, **kwargs)``."""
    return _func.vmap(_function(body, closed), **options)(*args, **kwargs)


def grad(body: Body, args: Values, kwargs: Mapping[str, Any], closed: Values, **options: Any) -> Any:
    """Return ``torch.func.grad(body, **options)(*args, **kwargs)``."""
    return _func.grad(_function(body, closed), **options)(*args, **kwargs)


def grad_and_value(body: Body, args: Values, kwargs: Mapping[str, Any], closed: Values, **options: Any) -> Any:
    """Return ``torch.func.grad_and_value(body, **options)(*args, **kwargs)``."""
    return _func.grad_and_value(_function(body, closed), **options)(*args, **kwargs)


def vjp(body: Body, primals: Values, closed: Values, **options: Any) -> Any:
    """Return ``torch.func.vjp(body, *primals, **options)``."""
    return _func.vjp(_function(body, closed), *primals, **options)


def jvp(body: Body, primals: Values, tangents: Values, closed: Values, **options: Any) -> Any:
    """Return ``torch.func.jvp(body, primals, tangents, **options)``."""
    return _func.jvp(_function(body, closed), primals, tangents, **options)


def linearize(body: Body, primals: Values, closed: Values) -> Any:
    """Return ``torch.func.linearize(body, *primals)``."""
    return _func.linearize(_function(body, closed), *primals)


def jacrev(body: Body, args: Values, closed: Values, **options: Any) -> Any:
    """Return ``torch.func.jacrev(body, **options)(*args)``."""
    return _func.jacrev(_function(body, closed), **options)(*args)


def jacfwd(body: Body, args: Values, closed: Values, **options: Any) -> Any:
    """Return ``torch.func.jacfwd(body, **options)(*args)``."""
    return _func.jacfwd(_function(body, closed), **options)(*args)


def hessian(body: Body, args: Values, closed: Values, **options: Any) -> Any:
    """Return ``torch.func.hessian(body, **options)(*args)``."""
    return _func.hessian(_function(body, closed), **options)(*args)


def functionalize(body: Body, args: Values, kwargs: Mapping[str, Any], closed: Values, **options: Any) -> Any:
    """Return ``torch.func.functionalize(body, **options)(*args, **kwargs)``."""
    return _func.functionalize(_function(body, closed), **options)(*args, **kwargs)


def cond(pred: Any, true_body: Body, false_body: Body, operands: Values, closed: Values) -> Any:
    """Return ``torch.cond(pred, true_body, false_body, operands)``.

    If values are known, it is a branch of Python, which computes the same, gradients included. If torch traces the
    program, or values are examples, it is the operator.
    """
    if is_recorded():
        return torch.cond(pred, _function(true_body, closed), _function(false_body, closed), tuple(operands))
    if not isinstance(pred, torch.Tensor):
        return (true_body if pred else false_body)(*operands, *closed)
    if _is_traced(pred):
        return _cond_operator(pred, (true_body, false_body), (tuple(operands), tuple(closed)))
    operands, closed = _connected((operands, closed))
    return (true_body if pred else false_body)(*operands, *closed)


def while_loop(cond_body: Body, body: Body, carried: Values, closed: Values) -> Any:
    """Return ``torch.while_loop(cond_body, body, carried)``, computed by a loop of Python if values are known."""
    condition, step = _function(cond_body, closed), _function(body, closed)
    if _is_traced_in(carried):
        return _torch.while_loop(condition, step, tuple(carried))
    carried, closed = _connected((tuple(carried), closed))
    condition, step = _function(cond_body, closed), _function(body, closed)
    if not condition(*carried):
        return pytree.tree_map_only(torch.Tensor, torch.clone, tuple(carried))
    values = tuple(step(*carried))
    while condition(*values):
        values = tuple(step(*values))
    return values


def map(body: Body, xs: Any, args: Values, closed: Values) -> Any:
    """Return ``map(body, xs, *args)`` of PyTorch's control flow: ``body`` of each row, stacked."""
    function = _function(body, closed)
    if _is_traced_in(xs):
        return _operators.map(function, xs, *args)
    leaves, spec = pytree.tree_flatten(xs)
    rows = zip(*(leaf.unbind() for leaf in leaves), strict=True)
    return _stacked([function(pytree.tree_unflatten(row, spec), *args) for row in rows])


def scan(body: Body, init: Any, xs: Any, closed: Values, dim: int = 0, reverse: bool = False) -> tuple[Any, Any]:
    """Return ``scan(body, init, xs, dim=dim, reverse=reverse)``: the last carry, and all outputs, stacked."""
    function = _function(body, closed)
    if _is_traced_in(xs):
        return _operators.scan(function, init, xs, dim=dim, reverse=reverse)
    leaves, spec = pytree.tree_flatten(xs)
    rows = list(zip(*(leaf.unbind(dim) for leaf in leaves), strict=True))
    carry, outputs = init, list[Any]()
    for row in reversed(rows) if reverse else rows:
        carry, output = function(carry, pytree.tree_unflatten(row, spec))
        outputs.append(output)
    stacked = _stacked(outputs[::-1] if reverse else outputs)
    return carry, pytree.tree_map(
        lambda output_stacked: output_stacked.movedim(0, dim) if dim < output_stacked.ndim else output_stacked, stacked
    )


def associative_scan(body: Body, xs: Any, dim: int, closed: Values, **options: Any) -> Any:
    """Return ``associative_scan(body, xs, dim, **options)``."""
    return _operators.associative_scan(_function(body, closed), xs, dim, **options)


def _stacked(values: list[Any]) -> Any:
    """Return one value of the common structure, with the tensors of each place stacked."""
    spec = pytree.tree_structure(values[0])
    columns = zip(*(pytree.tree_leaves(value) for value in values), strict=True)
    return pytree.tree_unflatten([torch.stack(column) for column in columns], spec)


def _function(body: Body, closed: Values) -> Body:
    """Return ``body`` with the values that it closes over."""

    def function(*args: Any, **kwargs: Any) -> Any:
        return body(*args, *kwargs.values(), *closed)

    if not torch.compiler.is_dynamo_compiling():
        function.body = body  # type: ignore[attr-defined]  a trace reads the names of its inputs
    return function


class _Connected(torch.autograd.Function):
    """The identity on tensors; unused ones get gradients of zeros, as operands of operators do."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return views of the tensors."""
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Pass on the gradients, which are zeros where there were none."""
        return gradients


def _connected(values: Any) -> Any:
    """Return ``values`` so that tensors which a call does not use get gradients of zeros."""
    leaves, spec = pytree.tree_flatten(values)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not places or not torch.is_grad_enabled() or _torch._C._functorch.maybe_current_level() is not None:
        return values
    connected: Any = _Connected.apply(*(leaves[place] for place in places))
    for place, tensor in zip(places, connected, strict=True):
        leaves[place] = tensor
    return pytree.tree_unflatten(leaves, spec)


def is_recorded() -> bool:
    """Return whether the running code is captured, by torch.compile or, where this is replaced, by a tracer."""
    return torch.compiler.is_dynamo_compiling()


def _is_traced_in(values: Any) -> bool:
    return is_recorded() or any(_is_traced(leaf) for leaf in pytree.tree_leaves(values))


def _is_traced(value: Any) -> bool:
    """Return whether operations on a tensor are recorded by torch, or done for many values or none."""
    if not isinstance(value, torch.Tensor):
        return False
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or _torch._C._functorch.is_batchedtensor(value):
        return True
    key = _torch._C._TorchDispatchModeKey
    return any(_torch._C._get_dispatch_mode(mode) is not None for mode in (key.PROXY, key.FAKE))


def _cond_operator(pred: torch.Tensor, bodies: Sequence[Body], arguments: tuple[Any, Any]) -> Any:
    """Call the operator, which takes and returns tensors in a tuple: all that a body uses, so that torch sees them."""
    leaves, spec = pytree.tree_flatten(arguments)
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    specs: list[Any] = []

    def flat(body: Body) -> Body:
        def run(*values: Any) -> Any:
            remaining = iter(values)
            filled = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            operands, closed = pytree.tree_unflatten(filled, spec)
            returned, returned_spec = pytree.tree_flatten(body(*operands, *closed))
            specs.append(returned_spec)
            return tuple(returned)

        return run

    returned = torch.ops.higher_order.cond(pred, *(flat(body) for body in bodies), tensors)
    return pytree.tree_unflatten(list(returned), specs[0])


BODIES: dict[Any, tuple[int, ...]] = {
    **dict.fromkeys((vmap, grad, grad_and_value, vjp, jvp, linearize, jacrev, jacfwd, hessian, functionalize), (0,)),
    **dict.fromkeys((map, scan, associative_scan), (0,)),
    cond: (1, 2),
    while_loop: (0, 1),
}
"""The positions of the arguments of each that are programs."""


def is_decided_by_values(target: Any) -> bool:
    """Return whether values decide which programs a function or operator calls, or how often."""
    return isinstance(target, torch._ops.HigherOrderOperator) or target in (cond, while_loop)
