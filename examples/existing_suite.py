"""Verify a pass for ``torch.fx`` in the tests that a project has already.

``pytest existing_suite.py`` in this folder runs three tests. The first is as people write it, with a guessed tolerance.
The others check that the same pass keeps its contract on a model of the project, and on random programs.
"""

import operator

import pytest
import torch
from torch import fx, nn

from pytest_fx import check_pass


class Gate(nn.Module):
    """A layer as a project has it: half of its values decide how much of the others goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, gates = self.both(x).chunk(2, dim=-1)
        return values * (gates * torch.sigmoid(gates))


def gate() -> tuple[nn.Module, torch.Tensor]:
    """Return the model and example inputs: what ``--fx-model`` takes, too."""
    torch.manual_seed(0)
    return Gate().eval(), torch.randn(4, 16)


def use_silu(program: fx.GraphModule) -> fx.GraphModule:
    """Write ``x * torch.sigmoid(x)`` as one call, which reads x once."""
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is not operator.mul:
            continue
        for value, other in (node.args, node.args[::-1]):
            if isinstance(other, fx.Node) and other.target is torch.sigmoid and other.args == (value,):
                node.target, node.args = nn.functional.silu, (value,)
                break
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def test_outputs_are_close() -> None:
    """The test that was there."""
    model, x = gate()
    torch.testing.assert_close(use_silu(fx.symbolic_trace(model))(x), model(x), rtol=1e-3, atol=1e-3)


@pytest.mark.fx(model="existing_suite:gate")
def test_the_gate_computes_the_same(fx_equal) -> None:
    """Several inputs and batch sizes, float32 and float64, gradients, and no tolerance to guess."""
    fx_equal(use_silu)


def test_random_programs_compute_the_same() -> None:
    """Programs drawn to hold products and sigmoids in every surrounding."""
    check_pass(use_silu, max_examples=50, seed=0)
