"""Structures of values that functions of functions take and give, as what stands for them is handed on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from fx.proxy import IMMEDIATE_TYPES, Proxy

LEAF = object()
"""Stands, in the structure of a result, for a value whose own structure is not known."""


def parts(like: Any, whole: Proxy, tracer: Any, varying: bool = False) -> Any:
    """Return what traced code gets for a value of a structure: elements of the value in the place of tensors.

    Args:
        like: the structure.
        whole: the value.
        tracer: records that elements are taken.
        varying: whether numbers in the value may be others when the program runs.
    """

    def part(one: Any, key: Any) -> Any:
        return parts(one, tracer._state.real.element(whole, key), tracer, varying)

    if isinstance(like, (Proxy, torch.Tensor)) or like is LEAF:
        return whole
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*(part(one, place) for place, one in enumerate(like)))
    if type(like) in (tuple, list):
        return type(like)(part(one, place) for place, one in enumerate(like))
    if type(like) in (dict, OrderedDict):
        entries = cast("Mapping[Any, Any]", like)
        return type(like)((key, part(one, key)) for key, one in entries.items())
    # The counter of a while_loop may start as the number 0, and is another one in each round.
    if varying and isinstance(like, (int, float, complex)):
        return whole
    return like if type(like) in IMMEDIATE_TYPES or not holds_values(like) else whole


def holds_values(value: Any) -> bool:
    """Return whether there is a tensor or traced value in a container, of whatever kind torch takes apart."""
    return any(isinstance(leaf, (Proxy, torch.Tensor)) for leaf in pytree.tree_leaves(value))


def sample_of(value: Any, dims: Any) -> Any:
    """Return what one of the calls that ``vmap`` makes gets for a value."""
    flat, spec = pytree.tree_flatten(value)
    along = pytree._broadcast_to_and_flatten(dims, spec)
    assert along is not None
    one = [leaf if dim is None else leaf.select(dim, 0) for leaf, dim in zip(flat, along, strict=True)]
    return pytree.tree_unflatten(one, spec)


def same(returned: Any) -> Any:
    """Of ``vmap`` and ``functionalize``: what the function returns."""
    return returned


def options_of(**values: tuple[Any, Any]) -> dict[str, Any]:
    """Those of the options that are not the defaults."""
    return {name: value for name, (value, default) in values.items() if value != default}


def differentiated(args: Sequence[Any], argnums: Any) -> Any:
    """The arguments that ``argnums`` says."""
    if isinstance(argnums, int):
        return args[argnums] if -len(args) <= argnums < len(args) else LEAF
    return tuple(args[number] for number in argnums)


def of_grad(returned: Any, inputs: Any, has_aux: bool) -> Any:
    """Of ``grad``: what is differentiated, and what else the function returns."""
    return (inputs, auxiliary(returned)) if has_aux else inputs


def of_grad_and_value(returned: Any, inputs: Any, has_aux: bool) -> Any:
    """Of ``grad_and_value``: beside the gradients, the value."""
    return (inputs, (LEAF, auxiliary(returned)) if has_aux else LEAF)


def with_function(returned: Any, has_aux: bool) -> Any:
    """Of ``vjp`` and ``linearize``, whose second result is a function."""
    if not has_aux:
        return (returned, LEAF)
    return (_main(returned), LEAF, auxiliary(returned))


def of_jvp(returned: Any, has_aux: bool) -> Any:
    """Of ``jvp``: what the function returns, twice, and what else it does."""
    if not has_aux:
        return (returned, returned)
    return (_main(returned), _main(returned), auxiliary(returned))


def of_jacobian(returned: Any, inputs: Any, has_aux: bool, order: int) -> Any:
    """Of jacobians: what is differentiated, in the place of each tensor that the function returns; ``order`` times."""
    jacobians = _main(returned) if has_aux else returned
    for _ in range(order):
        jacobians = _product(jacobians, inputs)
    return (jacobians, auxiliary(returned)) if has_aux else jacobians


def _main(returned: Any) -> Any:
    return returned[0] if type(returned) is tuple and len(returned) == 2 else LEAF


def auxiliary(returned: Any) -> Any:
    """The second of two results, where the function returns two."""
    return returned[1] if type(returned) is tuple and len(returned) == 2 else LEAF


def _product(output: Any, inputs: Any) -> Any:
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return type(output)(_product(one, inputs) for one in output)
    if isinstance(output, dict):
        return {key: _product(one, inputs) for key, one in output.items()}
    return LEAF if output is LEAF else inputs
