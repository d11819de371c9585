"""Structured values: flattened inside generated code where ``concrete_args`` have a structure, and made anew."""

from __future__ import annotations

import dataclasses
import operator
import sys
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils import _pytree as pytree

from fx.errors import GraphError

_flattened_by: dict[type[Any], Callable[[Any, pytree.TreeSpec], list[Any]]] = {}


def register_pytree_flatten_spec(
    cls: type[Any],
    flatten_fn_spec: Callable[[Any, pytree.TreeSpec], list[Any]],
    flatten_fn_exact_match_spec: Callable[[Any, pytree.TreeSpec], bool] | None = None,
) -> None:
    """Tell how a container of class ``cls`` is taken apart in generated code, where a traced value may stand for it.

    ``torch.utils._pytree`` has to know the class, too. Classes registered with torch.fx are known here as well.

    Args:
        cls: the class.
        flatten_fn_spec: returns the parts of a container in the order of a spec.
        flatten_fn_exact_match_spec: nothing here asks it; clients of torch.fx may give it.
    """
    _flattened_by[cls] = flatten_fn_spec


def tree_flatten_spec(tree: Any, spec: pytree.TreeSpec) -> list[Any]:
    """Return the leaves of ``tree`` in the order of ``spec``, reached by the keys and indices that ``spec`` has.

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
    if (flatten := _flattened_by.get(spec.type)) is not None:
        return list(flatten(tree, spec))
    if spec.type is namedtuple:  # whose class is in the context
        return [tree[index] for index in range(spec.num_children)]
    if issubclass(spec.type, dict):
        keys = spec.context[1] if issubclass(spec.type, defaultdict) else spec.context
        return [tree[key] for key in keys]
    if issubclass(spec.type, (tuple, list)):
        return [tree[index] for index in range(spec.num_children)]
    of_torch = getattr(sys.modules.get("torch.fx._pytree"), "SUPPORTED_NODES", {})
    if (flatten := of_torch.get(spec.type)) is not None:
        return list(flatten(tree, spec))
    leaves_of_one_level, _ = pytree.SUPPORTED_NODES[spec.type].flatten_fn(tree)
    return list(leaves_of_one_level)


def constructor_call(container: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments from which the class of a container, none of Python's plain ones, makes an equal one.

    ``None`` where it makes another one, or none.

    >>> constructor_call(OrderedDict(a=1))
    (([['a', 1]],), {})
    """
    kind: Any = type(container)
    items: Any = dict(container) if isinstance(container, Mapping) else list(container)
    args: tuple[Any, ...] = (items,)
    kwargs: dict[str, Any] = {}
    if isinstance(container, defaultdict):
        args = (container.default_factory, items)
    elif kind is OrderedDict:
        args = ([[key, value] for key, value in items.items()],)
    elif isinstance(container, deque):
        args = (items, container.maxlen)
    elif dataclasses.is_dataclass(container) and isinstance(container, Mapping):  # as outputs of models have them
        args, kwargs = (), items
    try:
        return (args, kwargs) if _holds_the_same(container, kind(*args, **kwargs)) else None
    except Exception:  # the constructor is somebody's, which may do anything
        return None


def _holds_the_same(one: Any, other: Any) -> bool:
    """Return whether two containers hold the same objects, under the same names, and nothing else."""
    if isinstance(one, Mapping):
        if list(one) != list(other):
            return False
        one_held, other_held = list(one.values()), list(other.values())
    else:
        one_held, other_held = list(one), list(other)
    same = len(one_held) == len(other_held) and all(map(operator.is_, one_held, other_held))
    attributes = getattr(one, "__dict__", {}).keys(), getattr(other, "__dict__", {}).keys()
    return same and attributes[0] == attributes[1]
