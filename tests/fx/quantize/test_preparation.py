import pytest
import torch
import torch.nn.functional as F
from building import Calling
from torch import nn

import fx
from fx.errors import QuantizationError
from fx.quantize import Quantize, QuantizedLayer, convert, prepare, prepare_qat, report


def in_training():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4)
    ).train()


def hooked():
    model = in_training()
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize("make", [in_training, hooked])
def test_a_program_in_training_mode_is_prepared_as_it_is_in_evaluation_mode(make):
    model, data = make(), torch.randn(16, 8)
    program = fx.symbolic_trace(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    prepared = prepare(program)
    output, again = prepared(data), prepared(data)
    assert torch.equal(output, again) and not prepared.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules()) and program.training
    assert torch.allclose(output, model.eval()(data), atol=1e-5)
    assert torch.equal(convert(prepared)(data), convert(prepared)(data))


def test_a_prepared_program_in_training_mode_shares_the_tensors():
    program = fx.symbolic_trace(in_training())
    assert prepare(program).get_parameter("5.weight") is program.get_parameter("5.weight")


def functional(always=True):
    """A program, in evaluation mode, whose batch norm is a function: in training mode always, or as the program is."""

    def compute(model, x):
        return F.batch_norm(model.linear(x), model.mean, model.variance, training=always or model.training)

    model = Calling(compute, linear=nn.Linear(8, 8))
    model.register_buffer("mean", torch.zeros(8))
    model.register_buffer("variance", torch.ones(8))
    return fx.symbolic_trace(model.train()).eval()


@pytest.mark.parametrize("function", [prepare, prepare_qat])
def test_statistics_that_a_program_updates_in_every_mode_are_refused(function):
    program = functional()
    with pytest.raises(QuantizationError) as caught:
        function(program)
    assert str(caught.value).startswith("a batch norm of this program is in training mode whatever mode the program is")
    assert "%batch_norm" in str(caught.value) and "test_preparation.py" in str(caught.value)
    assert "capture the model after model.eval()" in str(caught.value)


def test_a_batch_norm_that_follows_the_mode_is_prepared_in_evaluation_mode():
    program, x = functional(always=False), torch.randn(4, 8)
    assert torch.allclose(prepare(program)(x), program(x), atol=1e-5)


def test_the_pass_leaves_a_program_that_updates_statistics_as_it_is():
    program = functional()
    assert Quantize().with_data([((torch.randn(4, 8),), {})])(program) is program


class Dense(nn.Module):
    """A dense block, as of a DenseNet: what is activated in place was normalized for that alone."""

    def __init__(self, write):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(4 + 4 * n) for n in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(4 + 4 * n, 4, 3, padding=1) for n in range(3))
        self.write = write

    def forward(self, x):
        parts = [x.clone()]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            parts.append(conv(self.write(norm(torch.cat(parts, 1)))))
        return torch.cat(parts, 1)


def halved(x):
    x *= 0.5
    return x


WRITES = {
    "module": nn.ReLU(inplace=True),
    "relu_": torch.relu_,
    "mul_": lambda x: x.mul_(0.5),
    "clamp_": lambda x: x.clamp_(min=-0.1),
    "augmented": halved,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_in_place_writes_between_layers_are_no_obstacle(name, training):
    torch.manual_seed(0)
    model = Dense(WRITES[name]).eval()
    data = torch.randn(4, 4, 6, 6)
    prepared = (prepare_qat if training else prepare)(fx.symbolic_trace(model)).train(training)
    with torch.no_grad():
        prepared(data)
        quantized = convert(prepared.eval())
        difference = quantized(data) - prepared(data)
    assert sum(isinstance(module, QuantizedLayer) for module in quantized.modules()) == 3
    assert difference.square().mean() < 1e-3 * prepared(data).square().mean()
    assert not [remainder for remainder in report(quantized).remainders if "writes" in remainder.reason]
