"""A second run of a program, which records otherwise what the first one was refused for; there is no third one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from building import runs_of
from torch import nn

import fx


def captured(root: Any) -> tuple[fx.GraphModule, int]:
    """A program, and how often it was run to capture it."""
    with runs_of(root) as runs:
        program = fx.symbolic_trace(root)
    return program, len(runs)


def test_a_program_that_uses_the_flag_of_its_mode_runs_once() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            rate = 0.5 * self.training
            if self.training & True:
                x = x + 1
            for _ in range(1 + self.training):
                x = x * [2, 3][1 - self.training]
            self.layer.train(self.training)
            return torch.dropout(x, rate, self.training) + (0 if rate > 0.2 else 1)

    for training in (False, True):
        root = Mixed().train(training)
        traced, runs = captured(root)
        assert runs == 1
        torch.manual_seed(0)
        expected = root(torch.ones(2))
        torch.manual_seed(0)
        assert torch.equal(traced(torch.ones(2)), expected)
        with pytest.raises(fx.GuardError, match=r"captured in (training|evaluation) mode, and depends on it"):
            traced.train(not training)(torch.ones(2))
