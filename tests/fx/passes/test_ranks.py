"""The number of dimensions of values, as far as the program shows it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx
from fx.passes.machinery.ranks import find_ranks


def rank_of(function: Callable[[Any], Any] | nn.Module) -> int | None:
    """Return the rank of a traced program's result."""
    program = fx.symbolic_trace(function)
    return find_ranks(program).get(program.graph.output_node().args[0])


@pytest.mark.parametrize(
    "function, rank",
    [
        (lambda x: x.flatten(1), 2),
        (lambda x: x.flatten(1, -1), 2),
        (lambda x: x.flatten(start_dim=1), 2),
        (lambda x: torch.flatten(x, 1), 2),
        (lambda x: torch.flatten(x, start_dim=1, end_dim=-1), 2),
        (nn.Sequential(nn.Flatten()), 2),
        (lambda x: x.view(-1, 4), 2),
        (lambda x: x.view(x.size(0), -1), 2),
        (lambda x: x.reshape((2, 3, -1)), 3),
        (lambda x: F.relu(F.linear(x.flatten(1), x)).tanh(), 2),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Dropout(), nn.Linear(4, 4)), 2),
    ],
)
def test_known_ranks(function: Any, rank: int) -> None:
    assert rank_of(function) == rank


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x.flatten(),
        lambda x: x.flatten(0),
        lambda x: x.flatten(1, 2),
        lambda x: torch.flatten(x, 0),
        lambda x: x.view(torch.int32),
        lambda x: x.view(x.shape),
        lambda x: x.flatten(1).sum(),
        lambda x: F.linear(x, x),
        nn.Sequential(nn.Flatten(0)),
        nn.Sequential(nn.Flatten(1, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    ],
)
def test_unknown_ranks(function: Any) -> None:
    assert rank_of(function) is None


@pytest.mark.parametrize("key", ["val", "tensor_meta"])
def test_recorded_shapes_come_first(key: str) -> None:
    program = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    x, relu, _, _ = program.graph.nodes
    x.meta[key] = SimpleNamespace(shape=(2, 3, 4))
    assert find_ranks(program) == {x: 3, relu: 3}
    relu.meta[key] = SimpleNamespace(shape=())
    assert find_ranks(program) == {x: 3, relu: 0}


def test_attention_does_not_keep_the_rank_of_its_input() -> None:

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 1)

        def forward(self, x: Any) -> Any:
            x = x.view(-1, 4)
            return self.attention(x, x, x)

    program = fx.symbolic_trace(Model())
    (call,) = program.graph.find_nodes(op="call_module")
    assert call not in find_ranks(program)
