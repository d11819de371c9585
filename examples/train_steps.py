"""Test that a pass keeps training: ``pytest examples/train_steps.py --fx-model train_steps:model``.

The pass writes ``silu`` for ``x * sigmoid(x)``, which computes the same. Its neighbour detaches the gate, so that
outputs are equal and gradients are not. Loss, backward and optimizer run for five steps. Parameters and losses may be
as far off as eager's own are, through rounding and the order of the samples.
"""

import pytest
import torch
from torch import Tensor, nn

from pytest_fx import LawViolation, training_steps


class Gate(nn.Module):
    """Two linear layers with a gate between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.second(hidden * torch.sigmoid(hidden))


def model():
    return Gate().train(), torch.randn(4, 8)


def use_silu(program):
    """Replace ``x * sigmoid(x)`` by ``silu(x)``."""
    return _with_gates(program, nn.functional.silu)


def use_detached_gate(program):
    """Replace it by the same values with another gradient."""
    return _with_gates(program, detached_gate)


def detached_gate(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x).detach()


def _with_gates(program, function):
    for node in list(program.graph.nodes):
        if node.target is torch.sigmoid:
            (product,) = node.users
            with program.graph.inserting_before(product):
                product.replace_all_uses_with(program.graph.call_function(function, node.args))
            program.graph.erase_node(product)
            program.graph.erase_node(node)
    program.recompile()
    return program


def steps():
    x = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(1))
    batches = [(each, (each.sum(1) > 0).long()) for each in x]
    return training_steps(nn.functional.cross_entropy, lambda p: torch.optim.AdamW(p, lr=0.01), batches)


def test_silu_trains_alike(fx_equal):
    fx_equal.training(use_silu, steps())


def test_a_detached_gate_does_not(fx_equal):
    with pytest.raises(LawViolation, match="otherwise than eager"):
        fx_equal.training(use_detached_gate, steps(), label="detached gate")
