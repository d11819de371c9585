import copy
import warnings

import pytest
import torch
from building import decibels
from step_check import calibrated, filled
from torch import nn

import fx
import model_zoo
from fx.quantize import (
    Choice,
    QuantizationScheme,
    QuantizedLayer,
    QuantizedLinear,
    convert,
    layers,
    prepare,
    prepare_qat,
    quantize,
    reference,
    report,
)
from fx.quantize.affine import narrowed
from fx.quantize.kernels import layer_kernels

DYNAMIC = QuantizationScheme(Choice(precision="dynamic"))


def converted(model, *inputs, scheme=DYNAMIC):
    prepared = prepare(fx.symbolic_trace(model.eval()), scheme, inputs or None)
    assert not [module for module in prepared.modules() if type(module).__name__.endswith("Observer")]
    return convert(prepared)


def test_layers_find_the_scale_of_their_input_without_calibration():
    model = model_zoo.get_model("deep_recommender_small")
    module, data = model.build(), model.example_inputs(64)[0]
    program = converted(module, data)
    with torch.no_grad():
        assert decibels(program(data), module(data)) > 32
        assert decibels(program(100 * data), module(100 * data)) > 32
    summary = report(program)
    assert (summary.layers, summary.float_layers, summary.share_of_operations) == (6, 0, 1.0)
    assert [node.target.__name__ for node in program.graph.find_nodes(op="call_function")] == ["selu"] * 6


@pytest.mark.parametrize("kind, shape", [(nn.Conv1d, (5,)), (nn.Conv2d, (5, 5)), (nn.Conv3d, (5, 5, 5))])
def test_convolutions_find_theirs_too(kind, shape):
    model, data = nn.Sequential(kind(3, 4, 3)), torch.randn(2, 3, *shape)
    with torch.no_grad():
        assert decibels(converted(model)(data), model(data)) > 35


@pytest.fixture(params=["kernels", "without kernels"])
def layer(request, monkeypatch):
    if request.param == "without kernels":
        monkeypatch.setattr(layer_kernels, "LINEAR", ())
    torch.manual_seed(0)
    return converted(nn.Sequential(nn.Linear(4, 3)))


def test_values_that_are_not_finite_are_passed_on(layer):
    assert layer(torch.tensor([[float("nan"), 0, 0, 0]])).isnan().all()


@pytest.mark.parametrize("value", [torch.zeros(2, 4), torch.full((2, 4), 3.0), torch.zeros(0, 4), torch.zeros(4)])
def test_any_range_will_do(layer, value):
    exact = next(module for module in layer.modules() if isinstance(module, QuantizedLayer))._reference(value)
    assert torch.allclose(layer(value), exact, atol=1e-5)


def test_a_traced_program_finds_scales_too():
    program, data = converted(nn.Sequential(nn.Linear(4, 3))), torch.randn(5, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(program, (data,))
    assert torch.allclose(traced(50 * data[:2]), program(50 * data[:2]), atol=0.2)


def test_the_reference_form_rounds_inputs_and_weights_alike():
    model, data = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(40, 8)
    meaning = reference(prepare(fx.symbolic_trace(model), DYNAMIC))
    with torch.no_grad():
        assert decibels(meaning(data), converted(model)(data)) > 60 > decibels(meaning(data), model(data))


@pytest.mark.usefixtures("layer")  # with kernels and without
@pytest.mark.parametrize("bits", [7, 4])
def test_inputs_have_as_many_bits_as_the_scheme_says(bits):
    coarse = QuantizationScheme(Choice(precision="dynamic", activation_bits=bits))
    model, data = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(40, 8)
    prepared = prepare(fx.symbolic_trace(model), coarse)
    program, meaning, fine = convert(prepared), reference(prepared), converted(model)
    with torch.no_grad():
        assert decibels(program(data), meaning(data)) > 45
        assert decibels(program(data), model(data)) < decibels(fine(data), model(data)) - (3 if bits == 7 else 15)


def test_a_program_is_trained_with_as_many_bits_as_it_will_have():
    coarse = QuantizationScheme(Choice(precision="dynamic", activation_bits=4))
    model, data = nn.Sequential(nn.Linear(8, 8)), torch.randn(40, 8)
    trained = prepare_qat(fx.symbolic_trace(model.train()), coarse)
    with torch.no_grad():
        assert decibels(convert(trained)(data), trained(data)) > 45


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(8, 8), (900, 700)])
def test_weights_alone_are_integers(bias, shape):
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(*shape, bias=bias), nn.ReLU()), torch.randn(3, 2, shape[0])
    scheme = QuantizationScheme(Choice(precision="weight-only"))
    program = converted(model, data, scheme=scheme)
    meaning = reference(prepare(fx.symbolic_trace(model), scheme))
    with torch.no_grad():
        assert decibels(program(data), model(data)) > 35
        assert torch.allclose(program(data), meaning(data), rtol=1e-4, atol=1e-4)
    assert program(data.clone().requires_grad_()).requires_grad
    summary = report(program)
    assert (summary.layers, summary.float_layers, summary.bytes_in_8_bits) == (1, 0, shape[0] * shape[1])
    assert summary.share_of_operations == 1.0
    assert [remainder.reason for remainder in summary.remainders] == ["only layers can be weight-only"]


def test_convolutions_and_embeddings_may_have_quantized_weights_alone():
    model, data = nn.Sequential(nn.Embedding(9, 6), nn.Conv1d(5, 4, 3)), torch.randint(0, 9, (3, 5))
    program = converted(model, data, scheme=QuantizationScheme(Choice(precision="weight-only")))
    assert report(program).layers == 2
    with torch.no_grad():
        assert decibels(program(data), model(data)) > 35


@pytest.mark.parametrize("layer, shape", [(nn.Linear(8, 8), (4, 8)), (nn.Conv2d(2, 3, 3, bias=False), (4, 2, 8, 8))])
def test_layers_may_be_in_bfloat16(layer, shape):
    model, data = nn.Sequential(layer, nn.ReLU()), torch.randn(shape)
    scheme = QuantizationScheme(Choice(precision="float")).override(Choice(precision="bfloat16"), node="_0")
    program = converted(model, data, scheme=scheme)
    with torch.no_grad():
        assert torch.equal(program(data), copy.deepcopy(model).bfloat16()(data.bfloat16()).float())
        assert torch.equal(reference(prepare(fx.symbolic_trace(model), scheme))(data), program(data))
    assert (report(program).layers, report(program).float_layers) == (0, 1)
    assert program(data).dtype is torch.float32


@pytest.mark.parametrize("precision, layers", [("dynamic", 3), ("weight-only", 3), ("bfloat16", 2), ("float", 2)])
def test_precisions_mix_with_calibrated_layers_and_are_copied_and_saved(precision, layers, tmp_path):
    model, data = nn.Sequential(nn.Linear(8, 8), nn.SELU(), nn.Linear(8, 8), nn.Linear(8, 4)), torch.randn(40, 8)
    scheme = QuantizationScheme().override(Choice(precision=precision), node="_2")
    program = convert(calibrated(model, data, scheme=scheme))
    with torch.no_grad():
        assert decibels(program(data), model(data)) > 25
        fx.save(program, tmp_path / "program.fx")
        for same in (fx.load(tmp_path / "program.fx"), copy.deepcopy(program)):
            assert torch.equal(same(data), program(data))
    assert report(program).layers == layers


def test_a_thin_tail_of_many_values_saturates(monkeypatch):
    monkeypatch.setattr(layers, "MANY", 1 << 20)
    layer = filled(QuantizedLinear(64, 8, False))
    values = torch.randn(1 << 15, 64)  # reaches far more than 4 standard deviations
    expected = torch.nn.functional.linear(values, layer.float_weight())
    narrow = decibels(layer(values), expected)
    monkeypatch.setattr(layers, "MANY", 1 << 40)
    assert narrow > decibels(layer(values), expected) + 0.8


@pytest.mark.parametrize(
    "values",
    [torch.rand(1 << 20), torch.cat((torch.zeros(1), torch.tensor([1000.0]), torch.randn(1 << 20)))],
    ids=["values that are everywhere", "one that a sample misses"],
)
def test_ranges_stay_where_narrowing_them_would_lose_something(values):
    low, high = values.min().item(), values.max().item()
    assert narrowed(values, low, high) == (low, high)


@pytest.mark.parametrize("kernel", ["FBGEMM", "oneDNN", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_all_kernels_take_and_give_the_types_of_autocast(kernel, dtype, monkeypatch):
    kernels = tuple(
        candidate for candidate in layer_kernels.LINEAR if candidate.name == kernel and candidate.is_available()
    )
    monkeypatch.setattr(layer_kernels, "LINEAR", kernels)
    layer = filled(QuantizedLinear(33, 20))
    values = torch.randn(5, 33).to(dtype)
    integers = quantize(values, 0.03, 128)
    expected = layer(values)  # between layers, autocast may have computed in another type
    assert expected.dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        of_floats, of_integers, of_none = layer(values), layer(integers, 0.03, 128), layer(values[:0])
    assert of_floats.dtype is of_integers.dtype is of_none.dtype is torch.bfloat16
    assert torch.equal(of_floats, expected.bfloat16())
    assert torch.equal(of_integers, layer(integers, 0.03, 128).bfloat16())
