"""The frozen containers that hold arguments."""

from __future__ import annotations

import copy
import pickle
from types import ModuleType

import pytest
import torch
from torch.utils import _pytree as pytree


def test_arguments_of_a_node_refuse_to_change(library: ModuleType) -> None:
    graph = library.Graph()
    node = graph.call_function(torch.cat, ([graph.placeholder("x")],), {"dim": 0})
    with pytest.raises(TypeError, match="new_args"):
        node.args[0].append(1)
    with pytest.raises(TypeError, match="new_args"):
        node.kwargs["dim"] = 1
    with pytest.raises(TypeError):
        node.args[0] = 1


def test_they_equal_hash_and_print_like_their_plain_containers(library: ModuleType) -> None:
    items, mapping = library.immutable_collections.immutable_list, library.immutable_collections.immutable_dict
    assert items([1, 2]) == [1, 2]
    assert mapping(a=1) == {"a": 1}
    assert isinstance(items(), list)
    assert isinstance(mapping(), dict)
    assert hash(items([1, 2])) == hash(items([1, 2]))
    assert hash(mapping(a=1, b=2)) == hash(mapping(b=2, a=1))
    assert repr(items([1, "a"])) == "[1, 'a']"
    assert repr(mapping(a=1)) == "{'a': 1}"
    assert len({items([1]), items([1]), mapping(a=1)}) == 2


def test_they_copy_and_pickle_to_their_own_type(library: ModuleType) -> None:
    items, mapping = library.immutable_collections.immutable_list, library.immutable_collections.immutable_dict
    value = items([1, mapping(a=items([2]))])
    for restored in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), copy.copy(value)):
        assert restored == value
        assert type(restored) is items
        assert type(restored[1]) is mapping
    assert type([*value, 1]) is list
    assert type(value[:1]) is list


def test_they_are_pytrees_that_keep_their_type(library: ModuleType) -> None:
    items, mapping = library.immutable_collections.immutable_list, library.immutable_collections.immutable_dict
    value = items([1, mapping(a=2, b=items([3]))])
    leaves, spec = pytree.tree_flatten(value)
    assert leaves == [1, 2, 3]
    restored = pytree.tree_unflatten(leaves, spec)
    assert restored == value
    assert type(restored) is items
    assert type(restored[1]) is mapping
    doubled = pytree.tree_map(lambda leaf: leaf * 2, value)
    assert doubled == [2, {"a": 4, "b": [6]}]
    assert type(doubled) is items
