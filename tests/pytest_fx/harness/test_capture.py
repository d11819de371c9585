"""pytest_fx.harness.capture: programs for the calls that the example inputs make."""

import torch
from torch import nn

from pytest_fx.harness.capture import Tracing, capture, capture_without_leaves
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.subject import Subject


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


def test_without_arguments_all_defaults_are_left():
    assert "add" not in capture(Shifting()).code


def test_leaf_modules_are_kept_or_opened():
    operations = [{node.op for node in how(Shifting()).graph.nodes} for how in (capture, capture_without_leaves)]
    assert ["call_module" in kinds for kinds in operations] == [True, False]


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(4, 2)

    def forward(self, indices):
        return self.embedding(indices) + torch.ones(sum(1 for _ in range(indices.shape[1])), 2)


def test_a_model_of_indices_is_exported_for_each_dtype():
    indices = torch.tensor([[0, 1, 2], [3, 2, 1]])
    subject = Subject(
        "counted", Counted(), lambda input_set: Arguments((indices,)), tracing=Tracing(how="export"), mode="eval"
    )
    for float64, dtype in ((False, torch.float32), (True, torch.float64)):
        program = subject.capture(subject.shared_copy(float64), float64=float64)
        assert [node.kwargs.get("dtype", dtype) for node in program.graph.nodes] == [dtype] * len(program.graph.nodes)
        assert program.get_parameter("embedding.weight").dtype == dtype
        assert [node.meta["val"].dtype for node in program.graph.nodes if node.name == "ones"] == [dtype]
    assert subject.is_exported


def test_parameters_are_shared_with_the_module():
    module = Shifting()
    assert capture(module).get_parameter("linear.weight") is module.linear.weight
