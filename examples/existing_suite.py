"""Verify a pass for ``torch.fx`` in the existing tests of a project.

``pytest existing_suite.py`` in this folder runs three tests. The first is a typical one, with a guessed tolerance. The
others check that the same pass keeps its contract on a model of the project, and on random programs.
"""

import operator

import pytest
import torch
from torch import fx, nn

from pytest_fx import check_pass


class Gate(nn.Module):
    """A layer of the project: one half of its values gates the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, gates = self.both(x).chunk(2, dim=-1)
        return values * (gates * torch.sigmoid(gates))


def gate() -> tuple[nn.Module, torch.Tensor]:
    """Return the model and example inputs; ``--fx-model`` accepts this function, too."""
    torch.manual_seed(0)
    return Gate().eval(), torch.randn(4, 16)


def use_silu(program: fx.GraphModule) -> fx.GraphModule:
    """Rewrite ``x * torch.sigmoid(x)`` as one call, which reads x once."""
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
    """The existing test."""
    model, x = gate()
    torch.testing.assert_close(use_silu(fx.symbolic_trace(model))(x), model(x), rtol=1e-3, atol=1e-3)


@pytest.mark.fx(model="existing_suite:gate")
def test_the_gate_computes_the_same(fx_equal) -> None:
    """Checks several inputs and batch sizes, float32 and float64, and gradients, without a guessed tolerance."""
    fx_equal(use_silu)


def test_random_programs_compute_the_same() -> None:
    """Checks random programs that contain products and sigmoids in many contexts."""
    check_pass(use_silu, max_examples=50, seed=0)
