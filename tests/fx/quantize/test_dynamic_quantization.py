import copy
import warnings

import pytest
import torch
from torch import nn

import fx
import model_zoo
from fx.quantize import Choice, QuantizationScheme, QuantizedLayer, convert, layers, prepare, reference, report

DYNAMIC = QuantizationScheme(Choice(precision="dynamic"))


def decibels(value, expected):
    return float(10 * torch.log10(expected.square().sum() / (value - expected).square().sum()))


def converted(model, *inputs, scheme=DYNAMIC):
    prepared = prepare(fx.symbolic_trace(model.eval()), scheme, inputs or None)
    assert not [one for one in prepared.modules() if type(one).__name__.endswith("Observer")]
    return convert(prepared)


def test_layers_find_the_scale_of_their_input_without_calibration():
    model = model_zoo.get_model("deep_recommender_small")
    module, data = model.build(), model.example_inputs(64)[0]
    program = converted(module, data)
    with torch.no_grad():
        assert decibels(program(data), module(data)) > 32
        assert decibels(program(100 * data), module(100 * data)) > 32
    told = report(program)
    assert (told.layers, told.float_layers, told.share_of_operations) == (6, 0, 1.0)
    assert [node.target.__name__ for node in program.graph.find_nodes(op="call_function")] == ["selu"] * 6


@pytest.mark.parametrize("kind, shape", [(nn.Conv1d, (5,)), (nn.Conv2d, (5, 5)), (nn.Conv3d, (5, 5, 5))])
def test_convolutions_find_theirs_too(kind, shape):
    model, data = nn.Sequential(kind(3, 4, 3)), torch.randn(2, 3, *shape)
    with torch.no_grad():
        assert decibels(converted(model)(data), model(data)) > 35


@pytest.fixture(params=["kernels", "without kernels"])
def layer(request, monkeypatch):
    if request.param == "without kernels":
        monkeypatch.setattr(layers, "has_kernels", lambda: False)
    torch.manual_seed(0)
    return converted(nn.Sequential(nn.Linear(4, 3)))


def test_values_that_are_not_finite_are_passed_on(layer):
    assert layer(torch.tensor([[float("nan"), 0, 0, 0]])).isnan().all()


@pytest.mark.parametrize("value", [torch.zeros(2, 4), torch.full((2, 4), 3.0), torch.zeros(0, 4), torch.zeros(4)])
def test_any_range_will_do(layer, value):
    exact = next(one for one in layer.modules() if isinstance(one, QuantizedLayer))._reference(value)
    assert torch.allclose(layer(value), exact, atol=1e-5)


def test_a_traced_program_finds_scales_too():
    program, data = converted(nn.Sequential(nn.Linear(4, 3))), torch.randn(5, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(program, (data,))
    assert torch.allclose(traced(50 * data[:2]), program(50 * data[:2]), atol=0.2)


def test_dynamic_and_calibrated_layers_mix():
    model, data = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(32, 8)
    prepared = prepare(fx.symbolic_trace(model), QuantizationScheme().override(Choice(precision="dynamic"), node="_2"))
    with torch.no_grad():
        prepared(data)
        program = convert(prepared)
        assert decibels(program(data), model(data)) > 30
        assert torch.equal(copy.deepcopy(program)(data), program(data))
    assert report(program).layers == 2


def test_programs_are_saved_as_data(tmp_path):
    program, data = converted(nn.Sequential(nn.Linear(8, 8))), torch.randn(4, 8)
    fx.save(program, tmp_path / "program.fx")
    assert torch.equal(fx.load(tmp_path / "program.fx")(data), program(data))


def test_the_reference_form_rounds_inputs_and_weights_alike():
    model, data = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(40, 8)
    meaning = reference(prepare(fx.symbolic_trace(model), DYNAMIC))
    with torch.no_grad():
        assert decibels(meaning(data), converted(model)(data)) > 60 > decibels(meaning(data), model(data))
