"""pytest_fx.harness.structure: leaves of nested values and the paths to them."""

from collections import deque, namedtuple
from dataclasses import dataclass

import torch

from pytest_fx.harness.structure import describe, leaves, map_tensors, skeleton

Pair = namedtuple("Pair", "left right")


@dataclass
class Record:
    value: object


NESTED = {"pair": Pair(1, [2, (3,)]), "record": Record(None)}


def test_each_leaf_comes_with_the_path_that_one_would_write():
    assert list(leaves(NESTED)) == [
        ("['pair'].left", 1),
        ("['pair'].right[0]", 2),
        ("['pair'].right[1][0]", 3),
        ("['record'].value", None),
    ]


def test_containers_that_the_table_of_kinds_has_are_looked_into():
    value = deque([torch.ones(1), slice(1, torch.ones(1))], maxlen=2)
    assert [path for path, _ in leaves(value)] == ["[0]", "[1].start", "[1].stop", "[1].step"]
    assert describe(value) == "deque(tensor, slice(int, tensor, NoneType))"
    doubled = map_tensors(lambda tensor: tensor * 2, value)
    assert doubled == deque([torch.full((1,), 2.0), slice(1, torch.full((1,), 2.0))], maxlen=2)
    assert doubled.maxlen == 2


def test_a_leaf_alone_has_an_empty_path():
    assert list(leaves(3)) == [("", 3)]


def test_lists_tuples_and_dicts_are_distinguished_but_subclasses_are_not():
    class OwnList(list):
        pass

    assert skeleton([1]) == skeleton(OwnList([2]))
    assert skeleton([1]) != skeleton((1,))
    assert skeleton({"a": 1}) != skeleton({"b": 1})
    assert skeleton([1]) != skeleton([1, 2])
    assert skeleton(torch.ones(1)) != skeleton(1)
    assert skeleton(Pair(1, 2)) != skeleton((1, 2))


def test_a_structure_is_described_in_few_words():
    assert describe(NESTED) == "dict(Pair(int, list(int, tuple(int))), Record(NoneType))"


def test_tensors_are_mapped_at_any_depth_and_containers_keep_their_types():
    value = {"a": Pair(torch.ones(1), [torch.ones(1), 5]), "b": (Record(torch.ones(1)),)}
    doubled = map_tensors(lambda tensor: tensor * 2, value)
    assert doubled == {"a": Pair(torch.full((1,), 2.0), [torch.full((1,), 2.0), 5]), "b": doubled["b"]}
    assert torch.equal(doubled["b"][0].value, torch.full((1,), 2.0))
    assert torch.equal(value["a"].left, torch.ones(1))
