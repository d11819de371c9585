"""Structures of the arguments and results of higher-order functions, with traced values in place of tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from fx.proxy import IMMEDIATE_TYPES, Proxy

LEAF = object()
"""A value of unknown structure, in the structure of a result."""


def parts(like: Any, whole: Proxy, tracer: Any, varying: bool = False) -> Any:
    """Return the value that traced code gets for a structured value: elements of ``whole`` in place of the tensors.

    Args:
        like: the structure.
        whole: the value.
        tracer: records how elements are taken.
        varying: true if numbers in the value may differ when the program runs.
    """

    def part(element: Any, key: Any) -> Any:
        return parts(element, tracer._state.real.element(whole, key), tracer, varying)

    if isinstance(like, (Proxy, torch.Tensor)) or like is LEAF:
        return whole
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*(part(element, place) for place, element in enumerate(like)))
    if type(like) in (tuple, list):
        return type(like)(part(element, place) for place, element in enumerate(like))
    if type(like) in (dict, OrderedDict):
        entries = cast("Mapping[Any, Any]", like)
        return type(like)((key, part(element, key)) for key, element in entries.items())
    # The counter of a while_loop may start as the number 0, and changes in each round.
    if varying and isinstance(like, (int, float, complex)):
        return whole
    return like if type(like) in IMMEDIATE_TYPES or not holds_values(like) else whole


def holds_values(value: Any) -> bool:
    """Return whether a container, of any kind that torch takes apart, holds a tensor or traced value."""
    return any(isinstance(leaf, (Proxy, torch.Tensor)) for leaf in pytree.tree_leaves(value))


def sample_of(value: Any, dims: Any) -> Any:
    """Return the slice of a value that a single call by ``vmap`` gets."""
    flat, spec = pytree.tree_flatten(value)
    along = pytree._broadcast_to_and_flatten(dims, spec)
    assert along is not None
    sample = [leaf if dim is None else leaf.select(dim, 0) for leaf, dim in zip(flat, along, strict=True)]
    return pytree.tree_unflatten(sample, spec)


def same(returned: Any) -> Any:
    """Return the result of ``vmap`` and ``functionalize``: that of the function."""
    return returned


def options_of(**values: tuple[Any, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    return {name: value for name, (value, default) in values.items() if value != default}


def differentiated(args: Sequence[Any], argnums: Any) -> Any:
    """Return the arguments that ``argnums`` selects."""
    if isinstance(argnums, int):
        return args[argnums] if -len(args) <= argnums < len(args) else LEAF
    return tuple(args[number] for number in argnums)


def of_grad(returned: Any, inputs: Any, has_aux: bool) -> Any:
    """Return the structure of ``grad``'s result: the differentiated arguments, and the auxiliary result."""
    return (inputs, auxiliary(returned)) if has_aux else inputs


def of_grad_and_value(returned: Any, inputs: Any, has_aux: bool) -> Any:
    """Return the structure of a result of ``grad_and_value``: that of ``grad``, and the value."""
    return (inputs, (LEAF, auxiliary(returned)) if has_aux else LEAF)


def with_function(returned: Any, has_aux: bool) -> Any:
    """Return the structure of a result of ``vjp`` and ``linearize``, whose second element is a function."""
    if not has_aux:
        return (returned, LEAF)
    return (_main(returned), LEAF, auxiliary(returned))


def of_jvp(returned: Any, has_aux: bool) -> Any:
    """Return the structure of a result of ``jvp``: the function's result twice, and its auxiliary result."""
    if not has_aux:
        return (returned, returned)
    return (_main(returned), _main(returned), auxiliary(returned))


def of_jacobian(returned: Any, inputs: Any, has_aux: bool, order: int) -> Any:
    """Return the structure of a jacobian: the differentiated arguments for each tensor returned, ``order`` times."""
    jacobians = _main(returned) if has_aux else returned
    for _ in range(order):
        jacobians = _product(jacobians, inputs)
    return (jacobians, auxiliary(returned)) if has_aux else jacobians


def _main(returned: Any) -> Any:
    return returned[0] if type(returned) is tuple and len(returned) == 2 else LEAF


def auxiliary(returned: Any) -> Any:
    """Return the second of two results, if the function returns two."""
    return returned[1] if type(returned) is tuple and len(returned) == 2 else LEAF


def _product(output: Any, inputs: Any) -> Any:
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return type(output)(_product(element, inputs) for element in output)
    if isinstance(output, dict):
        return {key: _product(element, inputs) for key, element in output.items()}
    return LEAF if output is LEAF else inputs
