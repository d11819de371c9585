"""Layers that get the shapes of their parameters from the first input."""

import pytest
import torch
from building import WithoutLeaves
from torch import nn

import fx


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.LazyLinear(3)
        self.norm = nn.LazyBatchNorm1d()

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


class Asking(Lazy):
    def forward(self, x):
        y = self.linear(x)
        return y * 2 if y.shape[1] == 3 else y


X = torch.ones(2, 4)


@pytest.mark.parametrize("examples", [None, (X,)])
def test_a_lazy_layer_is_one_call_and_still_takes_the_shape_of_the_first_input(examples):
    model = Lazy()
    program = fx.symbolic_trace(model, example_inputs=examples)
    assert [node.target for node in program.graph.find_nodes(op="call_module")] == ["linear", "norm"]
    assert isinstance(model.linear, nn.LazyLinear)
    output = program(X)
    assert type(model.linear) is nn.Linear
    assert torch.equal(output, model(X))


def test_a_remedy_is_named_if_the_shape_of_a_lazy_layer_decides():
    with pytest.raises(fx.TraceError, match=r"LazyLinear has no parameters yet \(call the model once before"):
        fx.symbolic_trace(Asking(), example_inputs=(X,))
    model = Asking()
    model(X)
    assert torch.equal(fx.symbolic_trace(model, example_inputs=(X,))(X), model(X))


def test_a_lazy_layer_without_parameters_is_not_looked_into():
    expected = (
        r"cannot trace through LazyLinear, which has no parameters yet\n"
        r"  where .*test_lazy_modules.py:\d+, in Lazy.forward"
    )
    with pytest.raises(fx.TraceError, match=expected):
        WithoutLeaves().trace(Lazy())
    with pytest.raises(fx.errors.CaptureError, match="call the model on an input before it is captured"):
        fx.capture(Lazy(), (X,), how="export")
