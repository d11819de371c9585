"""The first intermediate value in which a wrong candidate differs: a submodule, or a node of a captured program."""

import operator

import pytest
import torch
from torch import fx as torch_fx
from torch import nn

import fx
from pytest_fx import judge

X = torch.linspace(-2.0, 2.0, 24).reshape(3, 8)


@pytest.fixture(autouse=True)
def _one_thread(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8), middle, nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.middle(self.first(x)) + 1)


def without_one(program):
    """Let the program add 2 in place of 1."""
    (node,) = program.graph.find_nodes(op="call_function", target=operator.add)
    node.args = (node.args[0], 2)
    program.recompile()
    return program


def wrong(reference, candidate, **options):
    verdict = judge(reference, candidate, X, forward_only=True, timing=False, folder=None, **options)
    assert verdict.verdict == "wrong", str(verdict)
    return verdict


def test_the_first_wrong_submodule_is_named():
    verdict = wrong(Net(nn.GELU()), Net(nn.GELU(approximate="tanh")))
    assert verdict.intermediate.startswith("middle: ")
    assert "first wrong intermediate value  middle: " in str(verdict)


@pytest.mark.parametrize("capture", [fx.symbolic_trace, torch_fx.symbolic_trace])
def test_the_first_wrong_node_of_a_captured_program_is_named(capture):
    net = Net(nn.ReLU())
    assert wrong(net, without_one(capture(Net(nn.ReLU())))).intermediate.startswith("add: ")


def test_parts_that_the_reference_lacks_are_left_out():
    class Other(Net):
        def __init__(self):
            super().__init__(nn.Identity())
            self.extra = nn.Identity()

        def forward(self, x):
            return self.extra(super().forward(x) * 2)

    assert wrong(Net(nn.Identity()), Other()).intermediate == ""


def test_functions_have_no_parts():
    assert wrong(torch.relu, lambda x: x.abs()).intermediate == ""
