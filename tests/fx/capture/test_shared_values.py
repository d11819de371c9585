"""Augmented assignments write in place if that is visible, and make a new tensor otherwise."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn

import fx


def _fresh(x: Any) -> Any:
    y = x * 2
    y += 1
    return y


def _input(x: Any) -> Any:
    x += 1
    return x


def _view(x: Any) -> Any:
    y = x * 2
    v = y[1:]
    v += 1
    return y


def _held(x: Any) -> Any:
    y = x * 2
    held_values = [y]
    y += 1
    return held_values[0] * y


@pytest.mark.parametrize(
    "program, target", [(_fresh, operator.add), (_input, operator.iadd), (_view, operator.iadd), (_held, operator.iadd)]
)
def test_an_augmented_assignment_writes_where_it_shows(program: Any, target: Any) -> None:
    captured = fx.symbolic_trace(program)
    assert captured.graph.find_nodes(op="call_function", target=target)
    ours, eager = torch.ones(3), torch.ones(3)
    assert torch.equal(captured(ours), program(eager))
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("inner, target", [(nn.Linear(2, 2), operator.add), (nn.Identity(), operator.iadd)])
def test_it_depends_on_the_module_whether_its_result_is_its_input(inner: nn.Module, target: Any) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.inner(x)
            out += x
            return out

    assert fx.symbolic_trace(Residual()).graph.find_nodes(op="call_function", target=target)
