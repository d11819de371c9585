"""Structured values, flattened inside generated code where ``concrete_args`` have a structure."""

from __future__ import annotations

import sys
from collections import defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree

from fx.errors import GraphError

_flattened_by: dict[type[Any], Callable[[Any, pytree.TreeSpec], list[Any]]] = {}


def register_pytree_flatten_spec(
    cls: type[Any],
    flatten_fn_spec: Callable[[Any, pytree.TreeSpec], list[Any]],
    flatten_fn_exact_match_spec: Callable[[Any, pytree.TreeSpec], bool] | None = None,
) -> None:
    """Register how generated code takes apart a container of class ``cls``, which may be a traced value.

    ``torch.utils._pytree`` has to know the class too. Classes registered with torch.fx are known here as well.

    Args:
        cls: the class.
        flatten_fn_spec: returns the parts of a container in the order of a spec.
        flatten_fn_exact_match_spec: not used here; clients of torch.fx may pass it.
    """
    _flattened_by[cls] = flatten_fn_spec


def tree_flatten_spec(tree: Any, spec: pytree.TreeSpec) -> list[Any]:
    """Return the leaves of ``tree`` in the order of ``spec``, reached by the keys and indices of ``spec``.

    Unlike ``tree_flatten`` this does not look at the class of ``tree``, so that it may be a traced value.

    Raises:
        GraphError: ``tree`` has no such part.
    """
    if spec.is_leaf():
        return [tree]
    try:
        parts = _parts(tree, spec)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GraphError(
            "an input is not structured like the one the program was captured with",
            value=f"{type(tree).__name__} where {spec} was captured",
            why=f"{type(error).__name__}: {error}",
            remedy="pass inputs with the same keys and lengths, or capture again without concrete_args",
        ) from error
    return [leaf for part, child in zip(parts, spec.children(), strict=True) for leaf in tree_flatten_spec(part, child)]


def _parts(tree: Any, spec: pytree.TreeSpec) -> list[Any]:
    if (flatten := _flattened_by.get(spec.type)) is not None:
        return list(flatten(tree, spec))
    if spec.type is namedtuple or issubclass(spec.type, (tuple, list)):  # the class of a named tuple is in the context
        return [tree[index] for index in range(spec.num_children)]
    if issubclass(spec.type, dict):
        keys = spec.context[1] if issubclass(spec.type, defaultdict) else spec.context
        return [tree[key] for key in keys]
    of_torch = getattr(sys.modules.get("torch.fx._pytree"), "SUPPORTED_NODES", {})
    if (flatten := of_torch.get(spec.type)) is not None:
        return list(flatten(tree, spec))
    leaves_of_one_level, _ = pytree.SUPPORTED_NODES[spec.type].flatten_fn(tree)
    return list(leaves_of_one_level)
