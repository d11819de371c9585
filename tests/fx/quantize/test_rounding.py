"""In training, values are rounded only for readers that will read integers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from building import Calling, decibels
from torch import nn

import fx
from fx.quantize import Choice, QuantizationScheme, convert, prepare, prepare_qat, reference

SCHEME = QuantizationScheme(Choice(observer="moving-average"))


class Stream(nn.Module):
    """Layers that add to a stream of values, which is normalized for each of them, and dropped from now and then."""

    def __init__(self, rate=0.0, layers=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.norm, self.drop = nn.LayerNorm(16), nn.Dropout(rate)

    def forward(self, x):
        for layer in self.layers:
            x = self.drop(x)
            x = self.norm(layer(x)) * 0.1 + x
        return x


def calibrated(model, data, scheme=SCHEME):
    """Return the model prepared, and prepared for training, with ranges of the same data, and its output."""
    program = fx.symbolic_trace(model.eval())
    prepared, training = prepare(program, scheme), prepare_qat(program, scheme).train()
    with torch.no_grad():
        prepared(data), training(data)
        return prepared, training.eval(), model(data)


def test_a_residual_stream_is_rounded_for_layers_alone():
    torch.manual_seed(0)
    data = torch.randn(256, 16)
    prepared, training, expected = calibrated(Stream(), data)
    with torch.no_grad():
        least = decibels(convert(prepared)(data), expected)
        assert least > 38
        assert decibels(training(data), expected) > least - 0.5
        assert decibels(convert(training)(data), expected) > least - 0.5
        assert torch.allclose(convert(training)(data), training(data), atol=1e-4)
        assert torch.equal(reference(training)(data), training(data))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_behind_dropout_only_layers_read_rounded_values(rate):
    program = prepare_qat(fx.symbolic_trace(Stream(rate, layers=1)))
    rounded, add = (
        next(node for node in program.graph.nodes if node.name.startswith(name)) for name in ("observers", "add")
    )
    dropped = program.graph.find_nodes(op="call_module", target="drop")[0]
    assert rounded.all_input_nodes == [dropped] and [user.name for user in rounded.users] == ["layers_0"]
    assert dropped in add.all_input_nodes
    torch.manual_seed(0)
    data = torch.randn(64, 16)
    training = program.train()
    training(data)
    training.eval()
    assert torch.allclose(convert(training)(data), training(data), atol=1e-4)


def test_in_front_of_dropout_values_are_rounded_where_only_layers_read_them():
    program = prepare_qat(fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))))
    (dropped,) = program.graph.find_nodes(op="call_module", target="1")
    assert str(dropped.args[0].target).startswith("observers")


def test_results_that_are_stored_as_integers_are_rounded_for_all():
    torch.manual_seed(0)
    layers = {"one": nn.Linear(8, 8), "two": nn.Linear(8, 8), "norm": nn.LayerNorm(8)}
    model = Calling(lambda m, x: (m.two(value := F.relu(m.one(x))), m.norm(value)), **layers)
    _, training, _ = calibrated(model, data := torch.randn(64, 8))
    (norm,) = training.graph.find_nodes(op="call_function", target=F.layer_norm)
    assert str(norm.kwargs["input"].target) == "observers.relu"
    for first, other in zip(convert(training)(data), training(data), strict=True):
        assert torch.allclose(first, other, atol=1e-4)


@pytest.mark.parametrize("precision", ["dynamic", "weight-only", "bfloat16"])
@pytest.mark.parametrize("from_training", [False, True])
def test_layers_that_read_float_values_read_them_before_they_are_rounded(precision, from_training):
    scheme = SCHEME.override(Choice(precision=precision), module="two").skip(operator="add")
    model = Calling(lambda m, x: m.one(x) + m.two(x), one=nn.Linear(8, 8), two=nn.Linear(8, 8))
    prepared, training, _ = calibrated(model, torch.randn(4, 8), scheme)
    for form in (convert, reference):
        program = form(training if from_training else prepared)
        x = program.graph.find_nodes(op="placeholder")[0]
        assert len(x.users) == 2 and len(program.graph.find_nodes(op="call_function", target=fx.quantize.quantize)) == 1


def test_reshaped_parameters_are_trained_and_rounded_in_their_folded_form():
    def scale(model, x):  # as a ConvNeXt scales the output of a block
        x = model.one(x)
        return model.two(F.gelu(model.one(x)).mul(model.gamma.reshape(1, -1, 1, 1)) + x)

    torch.manual_seed(0)
    convolutions = {"one": nn.Conv2d(4, 4, 3, padding=1), "two": nn.Conv2d(4, 4, 1)}
    model = Calling(scale, **convolutions, gamma=nn.Parameter(torch.full((4,), 0.1)))
    data = torch.randn(8, 4, 6, 6)
    prepared, training, expected = calibrated(copy.deepcopy(model), data)
    training.train()(data).square().mean().backward()
    assert training.get_parameter("gamma").grad is not None
    training.eval()
    with torch.no_grad():
        assert decibels(convert(training)(data), expected) > decibels(convert(prepared)(data), expected) - 1.5
        assert torch.allclose(convert(training)(data), training(data), atol=0.03)
