"""Flattening structured inputs inside generated code, for programs captured with structured ``concrete_args``."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from fx.errors import GraphError


def tree_flatten_spec(tree: Any, spec: pytree.TreeSpec) -> list[Any]:
    """The leaves of ``tree`` in the order of ``spec``, reached by the keys and indices that ``spec`` has.

    Unlike ``tree_flatten`` this never asks what ``tree`` is made of, so a traced value may stand in for a container.

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
    if issubclass(spec.type, dict):
        keys = spec.context[1] if isinstance(spec.context, tuple) else spec.context
        return [tree[key] for key in keys]
    if issubclass(spec.type, (tuple, list)):
        return [tree[index] for index in range(spec.num_children)]
    leaves_of_one_level, _ = pytree.SUPPORTED_NODES[spec.type].flatten_fn(tree)
    return list(leaves_of_one_level)
