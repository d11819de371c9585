import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from building import Calling, decibels
from step_check import calibrated
from torch import nn
from torch.utils._pytree import tree_leaves

import fx
import model_zoo
from fx.errors import QuantizationError
from fx.quantize import (
    Choice,
    QuantizationScheme,
    QuantizedLayer,
    convert,
    dequantize,
    prepare,
    reference,
    report,
)


def quantized(model, *inputs, scheme=None):
    """The model on integers, and its reference form, both checked against the model."""
    prepared = calibrated(model, *inputs, scheme=scheme)
    program, meaning = convert(prepared), reference(prepared)
    with torch.no_grad():
        expected = model(*(tensor.clone() for tensor in inputs))
        output, intended, observed = program(*inputs), meaning(*inputs), prepared(*inputs)
    for first, other, exact, same in zip(*map(tree_leaves, (output, intended, expected, observed)), strict=True):
        assert torch.allclose(same, exact, atol=1e-4)
        assert decibels(first, exact) > 20
        assert (first - other).abs().max() < 0.02 * exact.abs().max()
    return program


def functions(program):
    return [node.target.__name__ for node in program.graph.find_nodes(op="call_function")]


def test_a_layer_becomes_one_call_between_conversions():
    program = quantized(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(32, 8))
    _, quantize, first, second, output = program.graph.nodes
    assert functions(program) == ["quantize"]
    assert (first.args, second.args, output.args) == ((quantize,), (first,), (second,))
    assert first.kwargs["low"] == 0.0 and second.kwargs.keys() == {"scale", "zero_point"}
    assert first.kwargs["output_scale"] == second.kwargs["scale"]
    tensors = [f"{n}.{name}" for n in "02" for name in ("weight", "weight_scale", "bias")]
    numbers = [f"calibration.{name}" for name in ("scales", "zero_points", "program")]
    assert list(program.state_dict()) == numbers + tensors


def test_convolution_batch_norm_and_relu_become_one_call():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))
    model(torch.randn(64, 3, 8, 8))
    program = quantized(model, torch.randn(16, 3, 8, 8))
    assert functions(program) == ["quantize"]
    assert len(program.graph.find_nodes(op="call_module")) == 2


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_of_all_dimensions(dims):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    program = quantized(
        nn.Sequential(kind(2, 4, 3, padding=1), nn.Hardtanh(), kind(4, 4, 1)), torch.randn(4, 2, *[6] * dims)
    )
    assert functions(program) == ["quantize"]


@pytest.mark.parametrize(
    "activation",
    [F.selu, F.elu, F.gelu, F.silu, F.hardswish, F.hardsigmoid, F.relu6, torch.sigmoid, torch.tanh, F.mish,
     F.leaky_relu, F.softplus, torch.neg, torch.abs, torch.square, lambda x: x * 0.5, lambda x: 3 - x,
     lambda x: x / 2 + 1],
)  # fmt: skip
def test_functions_of_one_value_are_looked_up(activation):
    model = Calling(lambda m, x: m.second(activation(m.first(x))), first=nn.Linear(16, 16), second=nn.Linear(16, 16))
    program = quantized(model, torch.randn(64, 16))
    assert set(functions(program)) <= {"quantize", "lookup"}


def test_operations_after_the_last_layer_use_its_float_values():
    program = quantized(nn.Sequential(nn.Linear(8, 8), nn.SELU(), nn.Flatten()), torch.randn(32, 8))
    assert functions(program) == ["quantize", "selu", "flatten"]
    assert "selu(input = _0, inplace = True)" in program.code
    assert {remainder.reason for remainder in report(program).remainders} == {"no operation in 8 bits uses its result"}


def test_bounds_of_the_last_layer_are_computed_with_it():
    program = quantized(nn.Sequential(nn.Linear(8, 8), nn.ReLU6()), torch.randn(32, 8))
    assert functions(program) == ["quantize"] and "low = 0.0, high = 6.0" in program.code
    assert report(program).remainders == ()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

    def forward(self, x):
        out = F.relu(self.one(x))
        out += x
        out = F.relu(out, inplace=True)
        return self.three(out) * self.two(out).flatten(1).mean(1)[:, None, None, None]


def test_a_sum_and_its_relu_stay_whole():
    program = quantized(Residual(), torch.randn(8, 4, 6, 6))
    assert functions(program)[:2] == ["quantize", "add"]
    assert "relu" not in functions(program)


@pytest.mark.parametrize("also_read, layers", [(False, 2), (True, 0)])
def test_a_write_to_a_part_of_a_value_without_other_readers_becomes_a_new_value(also_read, layers):
    def chomp(model, x):
        out = model.one(x)
        result = model.two(F.relu(out[..., :-2], inplace=True))
        return result + out.mean() if also_read else result

    model = Calling(chomp, one=nn.Conv1d(4, 4, 3, padding=2), two=nn.Conv1d(4, 4, 3))
    program = quantized(model, torch.randn(8, 4, 6))
    assert sum(isinstance(module, QuantizedLayer) for module in program.modules()) == layers


def test_shapes_and_joins_work_on_integers():
    def compute(model, x):
        y = F.max_pool2d(model.conv(x), 2).permute(0, 2, 3, 1).contiguous()
        return model.fc(torch.cat((y, y * 2), dim=-1).view(y.size(0), -1))

    program = quantized(Calling(compute, conv=nn.Conv2d(2, 4, 3), fc=nn.Linear(2 * 16, 3)), torch.randn(8, 2, 6, 6))
    assert set(functions(program)) <= set("quantize lookup rescale max_pool permute contiguous cat view size".split())


def shared():
    return Calling(lambda m, x: {"once": (y := m.fc(x)), "twice": m.fc(torch.sigmoid(y))}, fc=nn.Linear(6, 6))


def test_calls_of_one_layer_share_it():
    program = quantized(shared(), torch.randn(16, 6))
    assert [name for name, module in program.named_modules() if isinstance(module, QuantizedLayer)] == ["fc"]
    assert program(torch.randn(2, 6))["twice"].dtype is torch.float32


def test_keyword_and_positional_spellings_are_the_same_program():
    data, parts = torch.randn(16, 6), {"weight": torch.randn(4, 6), "bias": torch.randn(4)}
    by_keyword = Calling(lambda m, x: F.linear(bias=m.bias, input=x, weight=m.weight), **parts)
    by_position = Calling(lambda m, x: F.linear(x, m.weight, m.bias), **parts)
    assert quantized(by_keyword, data).code == quantized(by_position, data).code


def test_a_weight_that_is_computed_from_parameters_is_quantized_as_it_is():
    model = Calling(
        lambda m, x: F.linear(torch.tanh(F.linear(x, m.weight)), m.weight.t()), weight=nn.Parameter(torch.randn(4, 6))
    )
    program = quantized(model, torch.randn(16, 6))
    assert len([module for module in program.modules() if isinstance(module, QuantizedLayer)]) == 2


def test_sizes_that_are_computed_before_the_program_runs_count_for_all_dimensions():
    def compute(model, x):
        two = model.weight.size(0) // 2
        y = F.conv2d(x, model.weight, None, stride=two - 1, padding=two, dilation=two)
        return F.max_pool2d(y, two, padding=two - 1)

    program = quantized(Calling(compute, weight=nn.Parameter(torch.randn(4, 3, 3, 3))), torch.randn(2, 3, 9, 9))
    assert functions(program) == ["quantize", "max_pool2d"]


def test_a_value_that_is_written_to_stays_as_it_is():
    def write(model, x):
        y = model.fc(x)
        z = torch.relu(y)
        y.view(-1).add_(1)
        return model.fc(y) + z

    quantized(Calling(write, fc=nn.Linear(6, 6)), torch.randn(16, 6))


def test_values_of_other_types_stay_as_they_are():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x, mask):
            return self.fc(x) * mask + x.size(0)

    program = quantized(Mixed(), torch.randn(16, 6), torch.arange(6))
    assert "mul" in functions(program)
    assert any("is of type torch.int64" in remainder.reason for remainder in report(program).remainders)


def test_a_float64_model_stays_as_it_is():
    program = quantized(nn.Sequential(nn.Linear(6, 6)).double(), torch.randn(4, 6, dtype=torch.float64).double() + 1)
    assert [remainder.reason for remainder in report(program).remainders] == ["its weight is of type torch.float64"]


@pytest.mark.parametrize(
    "choice",
    [Choice(symmetric=True), Choice(observer="min-max"), Choice(observer="percentile"), Choice(per_channel=False),
     Choice(observer="moving-average"), Choice(weight_bits=7), Choice(activation_bits=7)],
)  # fmt: skip
def test_all_schemes_work(choice):
    quantized(Residual(), torch.randn(8, 4, 6, 6), scheme=QuantizationScheme(choice))


def test_coarse_schemes_are_coarse():
    model, data = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(64, 16)
    scheme = QuantizationScheme(Choice(activation_bits=4, weight_bits=4))
    program = convert(calibrated(model, data, scheme=scheme))
    with torch.no_grad():
        assert 5 < decibels(program(data), model(data)) < 25


def inputs_of_layers(program):
    """Return the largest integer declared for the input of each call of a layer, 255 if none is declared."""
    return [node.kwargs.get("input_highest", 255) for node in program.graph.find_nodes(op="call_module")]


def test_layers_know_of_activations_with_few_bits_also_when_saved_pickled_and_copied(tmp_path):
    model, data = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(64, 16)
    scheme = QuantizationScheme(Choice(activation_bits=7))
    for chosen, largest in ((scheme, [127, 127]), (QuantizationScheme(), [255, 255])):
        program = quantized(model, data, scheme=chosen)
        assert inputs_of_layers(program) == largest and ("input_highest" in program.code) == (largest != [255, 255])
        fx.save(program, tmp_path / "program.fx")
        for other in (fx.load(tmp_path / "program.fx"), pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
            assert inputs_of_layers(other) == largest
            assert torch.equal(other(data), program(data))


def test_larger_integers_than_a_program_says_that_it_is_given_are_computed_right():
    integers = torch.randint(0, 128, (8, 16), dtype=torch.uint8)
    model = Calling(lambda m, x: m.layer(dequantize(x, 0.1, 3, 127)), layer=nn.Linear(16, 4))
    prepared = prepare(fx.symbolic_trace(model), None, (integers,))
    program, meaning = convert(prepared), reference(prepared)
    assert inputs_of_layers(program) == [127]
    for value in (integers, integers + 128):
        assert torch.allclose(program(value), meaning(value), atol=1e-4)


def test_skipped_layers_work_on_float_values():
    scheme = QuantizationScheme().skip(node="_2")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    program = quantized(model, torch.randn(32, 8), scheme=scheme)
    assert "linear" in functions(program)
    summary = report(program)
    assert (summary.layers, summary.float_layers, summary.share_of_operations) == (1, 1, 0.5)
    assert ("_2", "the scheme says so") in [(remainder.node, remainder.reason) for remainder in summary.remainders]


def test_the_report_counts_operations_and_bytes():
    program = quantized(nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), torch.randn(32, 8))
    summary = report(copy.deepcopy(program))  # which has not run
    assert (summary.layers, summary.float_layers, summary.bytes_in_8_bits, summary.bytes_of_state) == (1, 0, 64, 128)
    assert summary.share_of_operations == 1.0
    assert str(summary) == (
        "1 of 1 layers in 8 bits, 100.0% of the operations; 64 of 128 bytes of state\n"
        "  %_1: there is no operation on integers for it"
    )


def test_a_program_that_was_not_prepared_is_refused():
    with pytest.raises(QuantizationError, match=r"only a prepared program(.|\n)*prepared = prepare"):
        convert(fx.symbolic_trace(nn.Linear(2, 2)))


def test_the_given_program_and_its_tensors_stay_as_they_are():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True)).eval()
    traced = fx.symbolic_trace(model)
    before, code = copy.deepcopy(model.state_dict()), traced.code
    prepared = prepare(traced)
    prepared(torch.randn(2, 2, 5, 5))
    prepared_code = prepared.code
    convert(prepared)
    assert traced.code == code and prepared.code == prepared_code
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


@pytest.fixture(scope="module")
def recommender():
    model = model_zoo.get_model("deep_recommender_small")
    data = model.example_inputs(64)[0]
    module = model.build()
    prepared = calibrated(module, data)
    return module, prepared, convert(prepared), data


def test_deep_recommender_is_integers_up_to_its_last_layer_and_near(recommender):
    module, prepared, program, data = recommender
    with torch.no_grad():
        assert decibels(program(data), module(data)) > 29
        assert torch.allclose(program(data), reference(prepared)(data), atol=1e-5)
    assert functions(program) == ["quantize"] + ["lookup"] * 5 + ["selu"]
    assert [remainder.reason for remainder in report(program).remainders] == ["no operation in 8 bits uses its result"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda program: pickle.loads(pickle.dumps(program))])
def test_quantized_programs_copy_and_pickle(recommender, copied):
    _, prepared, program, data = recommender
    assert torch.equal(copied(program)(data), program(data))
    assert torch.equal(convert(copied(prepared))(data), program(data))


def test_quantized_and_prepared_programs_are_saved_as_data(recommender, tmp_path):
    _, prepared, program, data = recommender
    fx.save(program, tmp_path / "program.fx")
    fx.save(prepared, tmp_path / "prepared.fx")
    assert torch.equal(fx.load(tmp_path / "program.fx")(data), program(data))
    assert torch.equal(convert(fx.load(tmp_path / "prepared.fx"))(data), program(data))


def test_states_are_loaded_into_quantized_programs(recommender):
    _, _, program, data = recommender
    other = copy.deepcopy(program)
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(program.state_dict())
    assert torch.equal(other(data), program(data))


def test_quantized_programs_are_traced_by_jit_for_all_batches(recommender):
    _, _, program, data = recommender
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(program, (data,))
    assert torch.allclose(traced(data[:3]), program(data[:3]), atol=1e-5)


@pytest.mark.parametrize("precision", ["int8", "dynamic", "weight-only", "bfloat16"])
def test_quantized_programs_are_compiled_as_one_graph_and_exported(precision):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Hardswish(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    data = torch.rand(2, 3, 6, 6)
    prepared = calibrated(model, data, scheme=QuantizationScheme(Choice(precision)))
    expected = convert(prepared)(data)
    torch.compiler.reset()
    with torch.no_grad():
        compiled = torch.compile(convert(prepared), backend="eager", fullgraph=True)
        assert decibels(compiled(data), expected) > 40
        for strict in (False, True):
            exported = torch.export.export(convert(prepared), (data,), strict=strict)
            assert decibels(exported.module()(data), expected) > 40


def test_quantized_programs_are_captured_again(recommender):
    _, _, program, data = recommender
    assert torch.equal(fx.Interpreter(program).run(data), program(data))


def test_calls_of_one_weight_with_different_schemes_have_weights_of_their_own():
    scheme = QuantizationScheme().override(Choice(weight_bits=4), node="fc_1")
    data = torch.randn(16, 6)
    prepared = calibrated(shared(), data, scheme=scheme)
    program, meaning = convert(prepared), reference(prepared)
    assert torch.allclose(program(data)["twice"], meaning(data)["twice"], atol=1e-5)
    most = [int(module.weight.abs().max()) for module in program.modules() if isinstance(module, QuantizedLayer)]
    assert sorted(most) == [7, 127]
