"""pytest_fx.harness.capture: programs for the calls that the example inputs make."""

import torch
from torch import nn

from pytest_fx.harness.capture import capture, capture_without_leaves
from pytest_fx.harness.evaluation import Arguments


class Shifting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x, shift=None, *rest, scale=2, **options):
        x = self.linear(x) * scale
        return x if shift is None else x + shift


X = torch.ones(1, 2)


def test_an_optional_argument_that_is_left_out_is_captured_as_its_default():
    module = Shifting()
    for how in (capture, capture_without_leaves):
        program = how(module, Arguments((X,)))
        assert torch.equal(program(X), module(X))
        assert "add" not in program.code


def test_an_optional_argument_that_is_given_stays_one():
    module = Shifting()
    for arguments in (Arguments((X, X)), Arguments((X,), {"shift": X})):
        program = capture(module, arguments)
        assert torch.equal(program(X, 5 * X), module(X, 5 * X))


def test_without_arguments_nothing_is_known_of_them():
    assert "add" in capture(Shifting()).code


def test_leaf_modules_are_kept_or_opened():
    operations = [{node.op for node in how(Shifting()).graph.nodes} for how in (capture, capture_without_leaves)]
    assert ["call_module" in kinds for kinds in operations] == [True, False]


def test_parameters_are_shared_with_the_module():
    module = Shifting()
    assert capture(module).get_parameter("linear.weight") is module.linear.weight
