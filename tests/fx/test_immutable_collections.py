"""Frozen lists and dicts: equal to plain ones, and closed to every change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import fx
from fx.errors import FrozenArgumentError

LIST_CHANGES: dict[str, tuple[Any, ...]] = {
    "append": (1,), "clear": (), "extend": ([1],), "insert": (0, 1), "pop": (), "remove": (1,), "reverse": (),
    "sort": (), "__setitem__": (0, 1), "__delitem__": (0,), "__iadd__": ([1],), "__imul__": (2,),
}  # fmt: skip
DICT_CHANGES: dict[str, tuple[Any, ...]] = {
    "clear": (), "pop": ("a",), "popitem": (), "setdefault": ("b", 1), "update": ({"b": 1},), "__setitem__": ("b", 1),
    "__delitem__": ("a",), "__ior__": ({"b": 1},),
}  # fmt: skip


@pytest.mark.parametrize(
    "value, method, args",
    [
        *((fx.immutable_list([1, 2]), *change) for change in LIST_CHANGES.items()),
        *((fx.immutable_dict({"a": 1}), *change) for change in DICT_CHANGES.items()),
    ],
)
def test_lists_and_dicts_refuse_every_change(value: Any, method: str, args: tuple[Any, ...]) -> None:
    kind, before = type(value).__name__, copy.copy(value)
    with pytest.raises(FrozenArgumentError, match=f"'{kind}' object does not support mutation: {method} was called"):
        getattr(value, method)(*args)
    assert value == before


def test_no_method_of_list_and_dict_that_changes_them_is_forgotten() -> None:
    reading = {"copy", "count", "index", "get", "items", "keys", "values", "fromkeys"}
    for kind, base, changes in ((fx.immutable_list, list, LIST_CHANGES), (fx.immutable_dict, dict, DICT_CHANGES)):
        public = {name for name in vars(base) if not name.startswith("_")} - reading
        assert public == {name for name in changes if not name.startswith("_")}
        assert all(name in vars(kind) for name in changes)


def test_they_hash_only_where_their_contents_do() -> None:
    with pytest.raises(TypeError):
        hash(fx.immutable_list([torch.ones(1), {}]))


def test_they_flatten_with_paths_and_keep_their_kind() -> None:
    value = {"l": fx.immutable_list([1, fx.immutable_dict({"k": 2})])}
    leaves, spec = pytree.tree_flatten_with_path(value)
    assert [(pytree.keystr(path), leaf) for path, leaf in leaves] == [("['l'][0]", 1), ("['l'][1]['k']", 2)]
    rebuilt = pytree.tree_unflatten([3, 4], spec)
    assert type(rebuilt["l"]) is fx.immutable_list
    assert type(rebuilt["l"][1]) is fx.immutable_dict
    assert rebuilt == {"l": [3, {"k": 4}]}
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
