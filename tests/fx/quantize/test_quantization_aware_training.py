import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from building import Calling, decibels
from step_check import calibrated
from torch import nn

import fx
from fx.errors import QuantizationError
from fx.quantize import (
    Choice,
    FakeQuantize,
    QuantizationScheme,
    convert,
    fake_quantize,
    fake_quantize_channels,
    freeze_batch_norm,
    freeze_observers,
    prepare,
    prepare_qat,
    reference,
    report,
)

COARSE = QuantizationScheme(Choice(observer="moving-average", per_channel=False, weight_bits=4, activation_bits=6))


def conv_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 2, groups=2, bias=False), nn.BatchNorm2d(4), nn.Hardswish(inplace=True), nn.Flatten(),
        nn.Linear(16, 5),
    )  # fmt: skip


def trained(program, *data, steps=4, rate=0.01):
    """The program after a few steps of training, in evaluation mode."""
    program.train()
    optimizer = torch.optim.SGD(program.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        program(*data).square().mean().backward()
        optimizer.step()
    return program.eval()


def observers(program):
    return [module for module in program.modules() if isinstance(module, FakeQuantize)]


def test_values_and_weights_are_rounded_where_they_will_be_integers():
    program = prepare_qat(fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2))))
    assert [
        node.target.__name__ if node.op == "call_function" else node.target
        for node in program.graph.nodes
        if node.op.startswith("call")
    ] == [
        "observers.input_1", "fake_quantize_channels", "linear", "relu", "observers._1", "fake_quantize_channels",
        "linear",
    ]  # fmt: skip
    assert list(dict(program.named_parameters())) == ["0.weight", "2.weight", "2.bias"]


def residual():
    def compute(model, x):
        out = model.norm(model.one(x))
        out += x
        return model.two(F.relu(out)).mean((2, 3))

    convolutions = {name: nn.Conv2d(4, 4, 3, padding=1) for name in ("one", "two")}
    return Calling(compute, **convolutions, norm=nn.BatchNorm2d(4))


def shared():
    return Calling(lambda m, x: m.fc(torch.sigmoid(m.fc(x))), fc=nn.Linear(6, 6))


def tied():
    return Calling(
        lambda m, x: F.linear(torch.tanh(F.linear(x, m.weight)), m.weight.t()), weight=nn.Parameter(torch.randn(4, 6))
    )


def conv_next_block():
    """A residual block whose branch is scaled by a parameter for each channel (layer scale)."""

    def compute(model, x):
        branch = model.norm(model.depthwise(x).permute(0, 2, 3, 1))
        return x + model.layer_scale * model.narrow(F.gelu(model.wide(branch))).permute(0, 3, 1, 2)

    depthwise, norm = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.LayerNorm(4, eps=1e-6)
    layers = {"depthwise": depthwise, "norm": norm, "wide": nn.Linear(4, 16), "narrow": nn.Linear(16, 4)}
    return Calling(compute, **layers, layer_scale=torch.full((4, 1, 1), 0.5))


PROGRAMS = {
    "convolutions": (conv_net, (16, 3, 8, 8), None),
    "residual": (residual, (8, 4, 5, 5), None),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.SELU()), (8, 2, 6), None),
    "three dimensions": (lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.BatchNorm3d(3)), (8, 2, 4, 4, 4), None),
    "features": (lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU6()), (16, 6), None),
    "norm without parameters": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False)), (16, 6), None
    ),
    "shared": (shared, (16, 6), None),
    "layer scale": (conv_next_block, (4, 4, 6, 6), None),
    "computed weight": (tied, (16, 6), None),
    "dynamic": (conv_net, (16, 3, 8, 8), QuantizationScheme(Choice(precision="dynamic"))),
    "coarse": (conv_net, (16, 3, 8, 8), COARSE),
    "symmetric": (conv_net, (16, 3, 8, 8), QuantizationScheme(Choice(symmetric=True, observer="histogram"))),
    "one layer skipped": (
        conv_net, (16, 3, 8, 8), QuantizationScheme(Choice(observer="percentile")).skip(module="0")
    ),
    "nothing": (conv_net, (16, 3, 8, 8), QuantizationScheme(Choice(precision="float"))),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_converted_program_equals_the_trained_one(name):
    torch.manual_seed(0)
    make, shape, scheme = PROGRAMS[name]
    data = torch.randn(shape)
    program = trained(prepare_qat(fx.symbolic_trace(make()), scheme, (data,)), data)
    with torch.no_grad():
        output, meaning, quantized = program(data), reference(program)(data), convert(program)(data)
    # where rounding falls on the other side, one step
    assert decibels(meaning, output) > 40
    assert decibels(quantized, output) > 30
    assert (quantized - output).abs().max() < 0.03 * output.abs().max()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_is_quantized_as_after_training(name):
    make, shape, scheme = PROGRAMS[name]
    model, data = make(), torch.randn(shape)
    program = trained(prepare_qat(fx.symbolic_trace(model), scheme, (data,)), data)
    summary, expected = report(convert(program)), report(convert(calibrated(model, data, scheme=scheme)))
    assert (summary.layers, summary.bytes_in_8_bits) == (expected.layers, expected.bytes_in_8_bits)
    assert [remainder.reason for remainder in summary.remainders] == [
        remainder.reason for remainder in expected.remainders
    ]


def test_gradients_go_straight_through_rounding():
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(8, 6)
    program = prepare_qat(fx.symbolic_trace(model), QuantizationScheme(Choice(observer="min-max", weight_bits=4)))
    program.train()
    program(data)
    freeze_observers(program)
    program.zero_grad()
    wide = 2 * data  # so that a part of it saturates
    program(wide).square().sum().backward()

    first, _, second = model
    input, hidden = observers(program)

    def through(exact, rounded):
        return exact + (rounded - exact).detach()

    def value(of, x):
        low, high = ((end - of.zero_point) * of.scale for end in (0, 255))
        return through(x.clamp(low, high), fake_quantize(x.detach(), of.scale, of.zero_point))

    def layer(of, x):
        weight = of.weight
        step = weight.detach().abs().amax(1, keepdim=True) / 7
        return F.linear(x, through(weight, (weight.detach() / step).round() * step), of.bias)

    model.zero_grad()
    layer(second, value(hidden, layer(first, value(input, wide)).relu())).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(program.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-4)


def test_gradients_stop_where_values_saturate():
    value = torch.tensor([-9.0, -0.1, 0.26, 1.2, 9.0], requires_grad=True)
    fake_quantize(value, torch.tensor(0.1), torch.tensor(3, dtype=torch.int32), 15).sum().backward()
    assert value.grad.tolist() == [0, 1, 1, 1, 0]


def test_weights_are_rounded_as_batch_norm_will_scale_them():
    weight, gain = torch.randn(3, 5, requires_grad=True), torch.tensor([1.0, -0.5, 100.0], requires_grad=True)
    rounded = fake_quantize_channels(weight, gain, bits=4, per_channel=False)
    scaled = (weight * gain[:, None]).detach()
    step = scaled.abs().max() / 7
    assert torch.allclose(rounded, (scaled / step).round() * step, atol=1e-5)
    rounded.sum().backward()
    assert torch.allclose(weight.grad, gain.detach()[:, None].expand(3, 5))
    assert torch.allclose(gain.grad, weight.detach().sum(1), atol=1e-6)


def test_batch_norm_is_trained_as_without_rounding():
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), torch.randn(8, 2, 6, 6)
    scheme = QuantizationScheme(Choice(precision="dynamic"))
    program = prepare_qat(fx.symbolic_trace(model), scheme)
    for trained_module in (model, program):
        trained_module.train()
        torch.nn.functional.mse_loss(trained_module(data), torch.ones(8, 4, 4, 4)).backward()
    assert torch.allclose(getattr(program, "1").running_mean, model[1].running_mean, atol=1e-3)
    assert torch.allclose(getattr(program, "1").running_var, model[1].running_var, atol=1e-3)
    for name, parameter in model.named_parameters():
        assert torch.allclose(program.get_parameter(name).grad, parameter.grad, atol=0.02)


@pytest.mark.parametrize("affine", [False, True])
def test_a_batch_norm_that_is_called_as_a_function_is_rounded_and_converted_like_a_module(affine):
    def compute(model, x):
        norm = model.norm
        return F.batch_norm(model.conv(x), norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=1e-3)

    torch.manual_seed(0)
    model = Calling(compute, conv=nn.Conv2d(2, 4, 3), norm=nn.BatchNorm2d(4, affine=affine))
    data = torch.randn(8, 2, 6, 6)
    model.norm(model.conv(data))
    program = prepare_qat(fx.symbolic_trace(model.eval()))
    with torch.no_grad():
        assert decibels(program.train()(data), model(data)) > 20
    program = trained(program, data)
    with torch.no_grad():
        assert decibels(convert(program)(data), program(data)) > 30
    assert "gain" in program.code and "batch_norm" not in convert(program).code


def test_a_gain_of_zero_is_no_division_by_zero():
    model, data = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), torch.randn(8, 2, 6, 6)
    nn.init.zeros_(model[1].weight)
    program = prepare_qat(fx.symbolic_trace(model))
    program.train()
    program(data).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in program.parameters())
    program.eval()
    assert torch.allclose(convert(program)(data), program(data), atol=1e-4)


def test_the_model_stays_as_it_is():
    model = conv_net()
    before = copy.deepcopy(model.state_dict())
    trained(prepare_qat(fx.symbolic_trace(model)), torch.randn(4, 3, 8, 8))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_converted_program_stays_as_it_is_while_training_goes_on():
    data = torch.randn(16, 3, 8, 8)
    program = trained(prepare_qat(fx.symbolic_trace(conv_net())), data)
    quantized = convert(program)
    before = quantized(data)
    trained(program, data, rate=0.5)
    assert torch.equal(quantized(data), before)
    assert not torch.equal(convert(program)(data), before)


def test_modes_reach_dropout_and_ranges():
    data = torch.randn(4, 3, 8, 8)
    program = prepare_qat(fx.symbolic_trace(conv_net().eval()))
    assert not program.training
    program.train()
    assert not torch.equal(program(data), program(data))
    program.eval()
    before = copy.deepcopy(program.state_dict())
    assert torch.equal(program(data), program(data))
    program(100 * data)
    assert all(torch.equal(value, before[name]) for name, value in program.state_dict().items())


def test_ranges_are_frozen():
    data = torch.randn(16, 3, 8, 8)
    program = trained(prepare_qat(fx.symbolic_trace(conv_net())), data)
    freeze_observers(program)
    before = copy.deepcopy(observers(program)[0].state_dict())
    trained(program, 100 * data)
    assert all(torch.equal(value, before[name]) for name, value in observers(program)[0].state_dict().items())


def test_statistics_are_frozen_and_parameters_are_not():
    data = torch.randn(16, 3, 8, 8)
    program = trained(prepare_qat(fx.symbolic_trace(conv_net())), data)
    before, parameters = copy.deepcopy(program.state_dict()), dict(program.named_parameters())
    output = program(data)
    freeze_batch_norm(program)
    assert torch.equal(program(data), output)
    assert list(program.state_dict()) == list(before)
    assert all(parameters[name] is parameter for name, parameter in program.named_parameters())
    trained(program, data)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(program.state_dict()[f"1.{name}"], before[f"1.{name}"])
    assert not torch.equal(program.state_dict()["1.weight"], before["1.weight"])
    assert (convert(program)(data) - program(data)).abs().max() < 0.03 * program(data).abs().max()


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda program: pickle.loads(pickle.dumps(program)), "save"])
def test_training_goes_on_in_a_copy(copied, is_frozen, tmp_path):
    data = torch.randn(16, 3, 8, 8)
    model = conv_net()
    model[3].p = 0.0
    program = trained(prepare_qat(fx.symbolic_trace(model)), data)
    if is_frozen:
        freeze_observers(program)
        freeze_batch_norm(program)
    if copied == "save":
        fx.save(program, tmp_path / "program.fx")
        other = fx.load(tmp_path / "program.fx")
    else:
        other = copied(program)
    for trained_module in (program, other):
        trained(trained_module, data)
    assert torch.equal(other(data), program(data))
    assert torch.equal(convert(other)(data), convert(program)(data))


def test_training_goes_on_from_a_state():
    data, model = torch.randn(16, 3, 8, 8), conv_net()
    program = trained(prepare_qat(fx.symbolic_trace(model)), data)
    other = prepare_qat(fx.symbolic_trace(model)).eval()
    other.load_state_dict(program.state_dict())
    assert torch.equal(other(data), program(data))
    assert torch.equal(convert(other)(data), convert(program)(data))


def test_a_trained_model_is_loaded_by_its_own_names():
    model = conv_net()
    loading = prepare_qat(fx.symbolic_trace(conv_net())).load_state_dict(model.state_dict(), strict=False)
    assert not loading.unexpected_keys
    assert all(name.startswith("observers.") for name in loading.missing_keys)


def test_training_recovers_the_loss_of_a_coarse_scheme():
    torch.manual_seed(0)
    data = torch.randn(256, 8)
    wanted = (data[:, :4].prod(1) + data[:, 4:].prod(1) > 0).long()
    model = nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    )
    with torch.no_grad():
        model[0].weight[0] *= 30  # whose range then is that of the whole weight

    def train(program, steps, rate):
        optimizer = torch.optim.Adam(program.parameters(), rate)
        losses = []
        for _ in range(steps):
            loss = F.cross_entropy(program(data), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def loss_of(program):
        with torch.no_grad():
            return F.cross_entropy(program(data), wanted).item()

    scheme = QuantizationScheme(Choice(observer="moving-average", per_channel=False, weight_bits=3))
    train(model.train(), 150, 0.01)
    untrained = convert(calibrated(model, data, scheme=scheme))
    program = prepare_qat(fx.symbolic_trace(model), scheme).train()
    losses = train(program, 150, 0.003)
    after_training = loss_of(convert(program.eval()))
    assert losses[-1] < losses[0] / 2
    assert after_training < loss_of(untrained) / 2
    assert after_training == pytest.approx(loss_of(program), rel=0.02, abs=0.01)


def test_before_any_training_there_are_no_ranges():
    program = prepare_qat(fx.symbolic_trace(nn.Linear(2, 2)))
    with pytest.raises(QuantizationError, match=r"no range yet\n  where  %input_1(.|\n)*after program.train\(\)"):
        program.eval()(torch.ones(1, 2))
    with pytest.raises(QuantizationError, match="1 of 1 values were never calibrated"):
        convert(program)


@pytest.mark.parametrize("function", [freeze_observers, freeze_batch_norm])
def test_freezing_refuses_programs_that_are_not_in_training(function):
    with pytest.raises(QuantizationError, match=r"not in quantization-aware training(.|\n)*prepare_qat"):
        function(prepare(fx.symbolic_trace(nn.Linear(2, 2))))


def test_a_prepared_program_is_not_prepared_again():
    with pytest.raises(QuantizationError, match="prepared for quantization already"):
        prepare_qat(prepare(fx.symbolic_trace(nn.Linear(2, 2))))


def test_a_program_that_was_edited_meanwhile_is_refused():
    program = prepare_qat(fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))).train()
    program(torch.ones(1, 2))
    relu = program.graph.find_nodes(op="call_function", target=F.relu)[0]
    relu.replace_all_uses_with(relu.kwargs["input"])
    program.graph.erase_node(relu)
    program.recompile()
    with pytest.raises(QuantizationError, match=r"other operations than when it was prepared(.|\n)*observers._"):
        convert(program)


def test_norms_of_other_dimensions_than_the_features_are_refused():
    program = prepare_qat(fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))).train()
    with pytest.raises(QuantizationError, match=r"result has 3 dimensions(.|\n)*skip the layer"):
        program(torch.randn(2, 3, 3))


class UsesSomeOfItsState(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.unused, self.first = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.first(x))


def test_a_prepared_program_has_all_parameters_of_the_model_in_its_order():
    model = UsesSomeOfItsState()
    prepared = prepare_qat(fx.symbolic_trace(model))
    assert [name for name, _ in prepared.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert prepared.unused.weight is not model.unused.weight
