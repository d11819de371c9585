"""Containers that a program makes of its values: each is known to capture, code, matching, pickling and files."""

from __future__ import annotations

import pickle
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import fx
from fx.serialization import allow


class Pair(NamedTuple):
    first: Tensor
    second: Any


@dataclass
class Record:
    first: Tensor
    second: Any = 2.0


class Output(OrderedDict[str, Any]):
    """What a library of models returns."""


CONTAINERS: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda x: (x, 2.0),
    "list": lambda x: [x, [x, 2.0]],
    "dict": lambda x: {"first": x, "second": 2.0},
    "slice": lambda x: slice(x, None, 2),
    "NamedTuple": lambda x: Pair(x, (x, 2.0)),
    "OrderedDict": lambda x: OrderedDict(first=x, second=2.0),
    "subclass of OrderedDict": lambda x: Output(first=x),
    "deque": lambda x: deque([x, 2.0], maxlen=3),
    "dataclass": lambda x: Record(x),
    "nested": lambda x: {"first": (Pair(x, [x]), Record(x))},
}


def parts_of(held: Any) -> list[Any]:
    """Return what is in a container, with the classes around it, as far as the rows above go."""
    if isinstance(held, Tensor):
        return [held.tolist()]
    if isinstance(held, slice):
        return [slice, *parts_of(held.start), held.stop, held.step]
    if isinstance(held, Record):
        return [Record, *parts_of(held.first), *parts_of(held.second)]
    if isinstance(held, dict):
        return [type(held), *held, *(part for value in held.values() for part in parts_of(value))]
    if isinstance(held, (tuple, list, deque)):
        return [type(held), getattr(held, "maxlen", None), *(part for value in held for part in parts_of(value))]
    return [held]


@fx.wrap
def first_tensor(held: Any) -> Tensor:
    """Return the first tensor in a container: an operation whose argument the container is."""
    return torch.tensor(next(part for part in parts_of(held) if isinstance(part, list)))


X = torch.tensor([1.0, 4.0, 9.0])


def saved_and_loaded(program: fx.GraphModule) -> fx.GraphModule:
    with tempfile.TemporaryDirectory() as folder:
        fx.save(program, f"{folder}/program")
        return fx.load(f"{folder}/program")


for _class in (Pair, Record, Output):
    allow(_class)

WAYS: dict[str, Callable[[fx.GraphModule], fx.GraphModule]] = {
    "code": lambda program: program,
    "captured again": fx.symbolic_trace,
    "pickled": lambda program: pickle.loads(pickle.dumps(program)),
    "saved": saved_and_loaded,
}


NOT_IN_FILES = {"deque"}
"""Those whose class a file names only where the user allows it."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_that_a_program_returns_is_the_one_of_eager(name: str, way: str) -> None:
    make = CONTAINERS[name]
    program = fx.symbolic_trace(lambda x: make(torch.sqrt(x)))
    program.graph.lint()
    if way == "saved" and name in NOT_IN_FILES:
        with pytest.raises(fx.SaveError, match=r"allow it\s+first"):
            saved_and_loaded(program)
        return
    assert parts_of(WAYS[way](program)(X)) == parts_of(make(X.sqrt()))


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_pattern_is_found_by_the_container_that_an_operation_is_given(name: str) -> None:
    make = CONTAINERS[name]

    def pattern(x: Tensor) -> Tensor:
        return first_tensor(make(torch.sqrt(x)))

    program = fx.symbolic_trace(pattern)
    assert torch.equal(program(X), X.sqrt())
    assert len(fx.replace_pattern(program, pattern, lambda x: -x)) == 1
    assert torch.equal(program(X), -X)
