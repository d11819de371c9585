"""Frozen lists and dicts: the containers inside ``Node.args`` and ``Node.kwargs`` (paper, section 4.2).

They compare, hash, copy, pickle and flatten (``torch.utils._pytree``) by their contents. Changing one in place would
make use lists wrong, so every such method raises ``FrozenArgumentError`` and shows the lines to write instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from torch.utils import _pytree as pytree

from fx.errors import FrozenArgumentError

T = TypeVar("T")
Key = TypeVar("Key")

__all__ = ["immutable_dict", "immutable_list"]


def _refuse(kind: str, method: str) -> Any:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise FrozenArgumentError(
            f"'{kind}' object does not support mutation: {method} was called on an argument of a node",
            why="the use lists of the graph are kept in step with args and kwargs, so these change only as a whole",
            remedy="copy, change, assign:\n"
            "             new_args = ...  # a copy of node.args with the change\n"
            "             node.args = new_args",
        )

    refuse.__name__ = method
    return refuse


class immutable_list(list[T]):
    """A list that cannot change."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[type[immutable_list[T]], tuple[list[T]]]:
        return immutable_list, (list(self),)


class immutable_dict(dict[Key, T]):
    """A dict that cannot change."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[immutable_dict[Key, T]], tuple[dict[Key, T]]]:
        return immutable_dict, (dict(self),)


for _method in "__delitem__ __iadd__ __imul__ __setitem__ append clear extend insert pop remove reverse sort".split():
    setattr(immutable_list, _method, _refuse("immutable_list", _method))
for _method in "__delitem__ __ior__ __setitem__ clear pop popitem setdefault update".split():
    setattr(immutable_dict, _method, _refuse("immutable_dict", _method))


def _unflatten_list(values: Iterable[Any], context: pytree.Context) -> immutable_list[Any]:
    return immutable_list(values)


def _flatten_dict(value: dict[Any, Any]) -> tuple[list[Any], pytree.Context]:
    return list(value.values()), list(value)


def _unflatten_dict(values: Iterable[Any], keys: pytree.Context) -> immutable_dict[Any, Any]:
    return immutable_dict(zip(keys, values, strict=True))


def _flatten_list_with_keys(value: list[Any]) -> tuple[list[tuple[Any, Any]], pytree.Context]:
    return [(pytree.SequenceKey(index), item) for index, item in enumerate(value)], None


def _flatten_dict_with_keys(value: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], pytree.Context]:
    return [(pytree.MappingKey(key), item) for key, item in value.items()], list(value)


pytree.register_pytree_node(
    immutable_list,
    lambda value: (list(value), None),
    _unflatten_list,
    serialized_type_name="fx.immutable_list",
    flatten_with_keys_fn=_flatten_list_with_keys,
)
pytree.register_pytree_node(
    immutable_dict,
    _flatten_dict,
    _unflatten_dict,
    serialized_type_name="fx.immutable_dict",
    flatten_with_keys_fn=_flatten_dict_with_keys,
)
