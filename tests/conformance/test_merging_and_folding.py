"""Common subexpressions and constants against the passes of torch.fx: with the places where those are wrong."""

from __future__ import annotations

import operator
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx.experimental.const_fold import split_const_subgraphs
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops

import fx
from fx.passes import EliminateCommonSubexpressions, FoldConstants, RemoveDeadCode

aten: Any = torch.ops.aten


def merged(library: ModuleType, function: Any) -> Any:
    program = library.symbolic_trace(function)
    if library is fx:
        return EliminateCommonSubexpressions()(program)
    return CSEPass(banned_ops=get_CSE_banned_ops())(program).graph_module


def count(program: Any) -> int:
    return sum(node.op not in ("placeholder", "output", "get_attr") for node in program.graph.nodes)


MERGED = [
    lambda x: aten.relu(x) + aten.relu(x),
    lambda x: aten.add(aten.relu(x), 1) * aten.add(aten.relu(x), 1),
    lambda x: aten.relu(x) + aten.neg(x),
    lambda x: aten.cat([x, x]) + aten.cat([x, x]),
    lambda x: aten.rand_like(x) + aten.rand_like(x),
    lambda x: aten.sum(x, dim=[0]) + aten.sum(x, dim=[0]) + aten.sum(x, dim=[1]),
]


@pytest.mark.parametrize("function", MERGED)
def test_both_merge_the_same_calls(function: Any) -> None:
    ours, theirs = merged(fx, function), merged(torch.fx, function)
    assert ours.code == theirs.code
    x = torch.ones(2, 2)
    torch.manual_seed(0)
    expected = theirs(x)
    torch.manual_seed(0)
    assert torch.equal(ours(x), expected)


TOLD_APART = [
    lambda x: (x * 1).sum() + (x * 1.0).sum(),
    lambda x: torch.copysign(x, 0.0) + torch.copysign(x, -0.0),
    lambda x: torch.relu(x) + x.add_(1) + torch.relu(x),
    lambda x: torch.relu(x) + torch.relu(x).clamp_(max=0.5),
    lambda x: x.bernoulli() + x.bernoulli(),
]


@pytest.mark.parametrize("function", TOLD_APART)
def test_torch_fx_merges_different_values(function: Any) -> None:
    assert count(merged(torch.fx, function)) < count(torch.fx.symbolic_trace(function))
    program = merged(fx, function)
    assert count(program) == count(fx.symbolic_trace(function))
    torch.manual_seed(0)
    expected = function(torch.full((2,), 0.75))
    torch.manual_seed(0)
    assert torch.equal(program(torch.full((2,), 0.75)), expected)


def test_torch_fx_returns_one_tensor_twice() -> None:
    def function(x: Any) -> Any:
        return torch.relu(x), torch.relu(x)

    theirs, ours = (merged(library, function)(torch.ones(1)) for library in (torch.fx, fx))
    assert theirs[0] is theirs[1] and ours[0] is not ours[1]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((2,), 3.0), requires_grad=False)

    def forward(self, x: Any) -> Any:
        return x * (self.scale + 1)


class Counting(Scaled):
    def forward(self, x: Any) -> Any:
        self.scale.add_(x.sum())
        return x * (self.scale + 1)


class Drawing(Scaled):
    def forward(self, x: Any) -> Any:
        return x * torch.dropout(self.scale, 0.5, True)


def folded(library: ModuleType, model: nn.Module) -> Any:
    program = library.symbolic_trace(model)
    if library is fx:
        return FoldConstants()(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about attributes that it adds later
        return split_const_subgraphs(program)


def test_both_fold_an_operation_on_a_parameter() -> None:
    theirs, ours = folded(torch.fx, Scaled()), folded(fx, Scaled())
    x = torch.ones(2)
    assert torch.equal(theirs(x), ours(x)) and torch.equal(ours(x), Scaled()(x))
    assert count(ours) == count(theirs) == 1


def test_torch_fx_folds_random_numbers() -> None:
    theirs, ours = folded(torch.fx, Drawing()), folded(fx, Drawing())
    assert count(theirs) == 1 and count(ours) == 2


def test_torch_fx_folds_written_values() -> None:
    theirs, ours, model = folded(torch.fx, Counting()), folded(fx, Counting()), Counting()
    results = [[program(torch.ones(2)) for _ in range(2)] for program in (theirs, ours, model)]
    assert all(map(torch.equal, results[1], results[2]))
    assert not all(map(torch.equal, results[0], results[2]))


def test_torch_fx_folds_parameters_that_are_trained() -> None:
    model = Scaled().requires_grad_()
    assert count(folded(torch.fx, model)) == 1 and count(folded(fx, model)) == 2


DEAD = [
    lambda x: (torch.relu(x), x + 1)[1],
    lambda x: (x.sum().exp(), x + 1)[1],
    lambda x: (operator.getitem(torch.max(x, 0), 1), x + 1)[1],
    lambda x: x + 1,
]


@pytest.mark.parametrize("function", DEAD)
def test_both_drop_the_same_pure_operations(function: Any) -> None:
    theirs = torch.fx.symbolic_trace(function)
    theirs.graph.eliminate_dead_code()
    ours = RemoveDeadCode()(fx.symbolic_trace(function))
    assert [node.name for node in ours.graph.nodes] == [node.name for node in theirs.graph.nodes]


def test_torch_fx_keeps_dead_writes_or_drops_live_ones() -> None:
    def dead(x: Any) -> Any:
        y = x * 2
        torch.ops.aten.add_.Tensor(y, 1)
        return x

    def live(x: Any) -> Any:
        x.add_(1)
        return x.sum()

    counts = {}
    for function in (dead, live):
        theirs = torch.fx.symbolic_trace(function)
        theirs.graph.eliminate_dead_code()
        counts[function] = (count(theirs), count(RemoveDeadCode()(fx.symbolic_trace(function))))
    assert counts == {dead: (2, 0), live: (1, 2)}
