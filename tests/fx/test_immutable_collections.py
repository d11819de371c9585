"""Frozen lists and dicts: equal to what they hold, and closed to every change."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import fx
from fx.errors import FrozenArgumentError

LIST_MUTATIONS: dict[str, Callable[[Any], Any]] = {
    "append": lambda value: value.append(1),
    "clear": lambda value: value.clear(),
    "extend": lambda value: value.extend([1]),
    "insert": lambda value: value.insert(0, 1),
    "pop": lambda value: value.pop(),
    "remove": lambda value: value.remove(1),
    "reverse": lambda value: value.reverse(),
    "sort": lambda value: value.sort(),
    "__setitem__": lambda value: value.__setitem__(0, 1),
    "__delitem__": lambda value: value.__delitem__(0),
    "__iadd__": lambda value: value.__iadd__([1]),
    "__imul__": lambda value: value.__imul__(2),
}
DICT_MUTATIONS: dict[str, Callable[[Any], Any]] = {
    "clear": lambda value: value.clear(),
    "pop": lambda value: value.pop("a"),
    "popitem": lambda value: value.popitem(),
    "setdefault": lambda value: value.setdefault("b", 1),
    "update": lambda value: value.update(b=1),
    "__setitem__": lambda value: value.__setitem__("b", 1),
    "__delitem__": lambda value: value.__delitem__("a"),
    "__ior__": lambda value: value.__ior__({"b": 1}),
}


@pytest.mark.parametrize(
    "value, method, mutate",
    [
        *((fx.immutable_list([1, 2]), *mutation) for mutation in LIST_MUTATIONS.items()),
        *((fx.immutable_dict({"a": 1}), *mutation) for mutation in DICT_MUTATIONS.items()),
    ],
)
def test_lists_and_dicts_refuse_every_change(value: Any, method: str, mutate: Callable[[Any], Any]) -> None:
    kind, before = type(value).__name__, copy.copy(value)
    with pytest.raises(FrozenArgumentError, match=f"'{kind}' object does not support mutation: {method} was called"):
        mutate(value)
    assert value == before


def test_no_method_of_list_and_dict_that_changes_them_is_forgotten() -> None:
    reading = {"copy", "count", "index", "get", "items", "keys", "values", "fromkeys"}
    for kind, base, mutations in ((fx.immutable_list, list, LIST_MUTATIONS), (fx.immutable_dict, dict, DICT_MUTATIONS)):
        public = {name for name in vars(base) if not name.startswith("_")} - reading
        assert public == {name for name in mutations if not name.startswith("_")}
        assert all(name in vars(kind) for name in mutations)


@pytest.mark.parametrize(
    "value", [fx.immutable_list([1, fx.immutable_list([2])]), fx.immutable_dict({"a": fx.immutable_list([1])})]
)
def test_they_equal_hash_copy_and_pickle_like_what_they_hold(value: Any) -> None:
    plain = pytree.tree_map(lambda leaf: leaf, value)
    for twin in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)), plain):
        assert twin == value
        assert type(twin) is type(value)
        assert hash(twin) == hash(value)


def test_they_hash_only_where_their_contents_do() -> None:
    with pytest.raises(TypeError):
        hash(fx.immutable_list([torch.ones(1), {}]))


def test_copies_of_a_plain_kind_can_change() -> None:
    changed = [*fx.immutable_list([1]), 2]
    merged = {**fx.immutable_dict({"a": 1}), "b": 2}
    assert (changed, merged) == ([1, 2], {"a": 1, "b": 2})
    assert type(fx.immutable_list([1])[:]) is list


def test_they_flatten_with_paths_and_keep_their_kind() -> None:
    value = {"l": fx.immutable_list([1, fx.immutable_dict({"k": 2})])}
    leaves, spec = pytree.tree_flatten_with_path(value)
    assert [(pytree.keystr(path), leaf) for path, leaf in leaves] == [("['l'][0]", 1), ("['l'][1]['k']", 2)]
    rebuilt = pytree.tree_unflatten([3, 4], spec)
    assert type(rebuilt["l"]) is fx.immutable_list
    assert type(rebuilt["l"][1]) is fx.immutable_dict
    assert rebuilt == {"l": [3, {"k": 4}]}
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
