"""Kernels for few rows, results in parts and in large pages, and the trial of kernels."""

import copy

import pytest
import torch
import torch.nn.functional as F

import fx
from fx.quantize import (
    Choice,
    QuantizationScheme,
    QuantizedConv,
    QuantizedLinear,
    convert,
    dequantize,
    fbgemm,
    layers,
    linear,
    lookup,
    pages,
    planar,
    prepare,
    quantize,
    quantize_channels,
)

needs_kernels = pytest.mark.skipif(not layers.has_kernels(), reason="this processor has no instructions for 8 bits")
needs_fbgemm = pytest.mark.skipif(
    not (fbgemm.is_available() and layers.has_kernels()), reason="torch has no kernels of FBGEMM here"
)
needs_large_pages = pytest.mark.skipif(pages._advise() is None, reason="no large pages here")


def filled(inputs, outputs, has_bias=True):
    layer = QuantizedLinear(inputs, outputs, has_bias)
    layer.fill(*quantize_channels(torch.randn(outputs, inputs)), torch.randn(outputs) if has_bias else None)
    return layer


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(pages, "LARGE", 64)
    monkeypatch.setattr(linear, "_PART", 100)
    monkeypatch.setattr(linear, "_CHANNELS", 7)


@needs_fbgemm
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(33,), (3, 33), (2, 4, 33)])
def test_few_rows_give_what_many_rows_give(shape, has_bias, everything_is_large):
    layer = filled(33, 20, has_bias)
    input = torch.randint(0, 256, shape, dtype=torch.uint8)
    few = layer(input, 0.1, 100, 0.5, 90)
    assert layer._packed is None and layer._packed_params is not None
    layer.few_rows = 0
    many = layer(input, 0.1, 100, 0.5, 90)
    assert layer._packed is not None
    assert few.shape == many.shape and (few.int() - many.int()).abs().max() <= 1


@needs_fbgemm
def test_few_rows_of_real_values_find_the_same_scale(monkeypatch):
    layer = filled(33, 20)
    input = torch.randn(2, 3, 33)
    few = layer(input)
    monkeypatch.setattr(linear, "_FEW_ROWS_OF_REAL", 0)
    assert layer._packed is None
    layer.few_rows = 0
    many = layer(input)
    assert layer._packed is not None
    assert torch.allclose(few, many, rtol=1e-4, atol=1e-4)


@needs_fbgemm
def test_few_rows_of_whole_numbers_give_real_values_too():
    layer = filled(33, 20)
    input = torch.randint(0, 256, (2, 33), dtype=torch.uint8)
    few = layer(input, 0.1, 100)
    assert layer._packed is None
    layer.few_rows = 0
    assert torch.allclose(few, layer(input, 0.1, 100), rtol=1e-4, atol=1e-4)


@needs_fbgemm
def test_more_rows_of_real_values_take_the_kernel_for_few_if_the_weight_is_small(monkeypatch):
    for large, few in ((1 << 23, True), (33 * 20, False)):
        monkeypatch.setattr(linear, "_LARGE_WEIGHT", large)
        layer = filled(33, 20)
        layer(torch.randn(100, 33))
        assert (layer._packed_params is not None, layer._packed is not None) == (few, not few)


@needs_fbgemm
def test_the_first_call_packs_where_the_number_of_rows_is_not_known_before():
    prepared = prepare(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(40, 30))))
    prepared(torch.randn(16, 40))
    program = convert(prepared)
    (layer,) = (one for one in program.modules() if isinstance(one, QuantizedLinear))
    assert layer._packed is layer._packed_params is None
    program(torch.randn(100, 40))
    assert layer._packed is not None and layer._packed_params is None


@needs_fbgemm
def test_the_weight_is_packed_for_as_many_rows_as_the_program_was_prepared_for():
    model = torch.nn.Linear(40, 30)
    for rows, few in ((2, True), (100, False)):
        prepared = prepare(fx.symbolic_trace(torch.nn.Sequential(model)), example_inputs=(torch.randn(rows, 40),))
        prepared(torch.randn(rows, 40))
        (layer,) = (one for one in convert(prepared).modules() if isinstance(one, QuantizedLinear))
        assert (layer._packed_params is not None, layer._packed is not None) == (few, not few)


@needs_fbgemm
@pytest.mark.parametrize("faster_up_to, found", [(0, 0), (4, 4), (1000, 32)])
def test_a_trial_finds_up_to_how_many_rows_a_kernel_is_faster(faster_up_to, found, monkeypatch):
    layer = filled(16, 16)
    monkeypatch.setattr(layer, "_is_faster_with_few", lambda input: len(input) <= faster_up_to)
    layer.choose_kernel()
    assert layer.few_rows == found


@needs_fbgemm
def test_a_program_whose_kernels_were_tried_gives_the_same_answers_to_a_step(tmp_path):
    torch.manual_seed(0)
    prepared = prepare(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.SELU())))
    data = torch.randn(16, 20)
    prepared(data)
    usual, tried = convert(prepared), convert(prepared, choose_kernels=True)
    (layer,) = (one for one in tried.modules() if isinstance(one, QuantizedLinear))
    assert layer.few_rows in (0, *linear._TRIED_ROWS)
    assert torch.allclose(usual(data), tried(data), atol=0.05)
    layer.few_rows = 4
    fx.save(tried, tmp_path / "tried.fx")
    for other in (fx.load(tmp_path / "tried.fx"), copy.deepcopy(tried)):
        (layer,) = (one for one in other.modules() if isinstance(one, QuantizedLinear))
        assert layer.few_rows == 4 and layer._packed is None
        assert torch.equal(other(data), tried(data))


def rounding(layer, input, scale, zero_point):
    """How far two kernels may be from each other: sums of integers are exact, and a few steps that round follow."""
    operands = dequantize(input, scale, zero_point).double(), layer.real_weight().double(), layer.bias.double()
    return 8 * torch.finfo(torch.float32).eps * F.linear(*(one.abs() for one in operands))


@pytest.mark.parametrize("rows", [1, 9, 25])
def test_large_results_are_those_of_small_ones(rows, monkeypatch):
    layer = filled(33, 20)
    layer.few_rows = 0
    values, input = torch.randn(rows, 33), torch.randint(0, 256, (rows, 33), dtype=torch.uint8)
    table = torch.randn(256)

    def results():
        return (
            layer(input, 0.1, 100),
            layer(input, 0.1, 100, 0.5, 90),
            lookup(input, table),
            quantize(values, 0.05, 120),
            quantize(values, 0.05, 7, 15),
            dequantize(input, 0.1, 3),
            *quantize_channels(values),
        )

    real, whole, *others = results()
    layer.to("cpu")  # which lets go of the packed weight
    monkeypatch.setattr(pages, "LARGE", 64)
    monkeypatch.setattr(linear, "_PART", 100)
    monkeypatch.setattr(linear, "_CHANNELS", 7)
    monkeypatch.setattr("fx.quantize.arithmetic._PART", 50)
    real_in_parts, whole_in_parts, *others_in_parts = results()
    # oneDNN may take another kernel for a part, which rounds real values elsewhere
    apart = rounding(layer, input, 0.1, 100)
    assert ((real.double() - real_in_parts).abs() <= apart).all()
    may_round_otherwise = ((real.double() / 0.5).frac().abs() - 0.5).abs() <= apart / 0.5
    assert may_round_otherwise.float().mean() < 0.01 and (whole.int() - whole_in_parts.int()).abs().max() <= 1
    assert torch.equal(whole[~may_round_otherwise], whole_in_parts[~may_round_otherwise])
    assert all(torch.equal(*pair) for pair in zip(others, others_in_parts, strict=True))


def test_advice_is_given_on_whole_pages_of_large_results_alone(monkeypatch):
    given = []
    monkeypatch.setattr(pages, "_advise", lambda: lambda *advice: given.append(advice))
    small, large = pages.empty((3, 5), torch.float32), pages.empty((3, pages.LARGE // 4 + 1), torch.float32)
    ((start, size, _),) = given
    end = large.data_ptr() + 4 * large.numel()
    assert small.shape == (3, 5) and start % pages.mmap.PAGESIZE == size % pages.mmap.PAGESIZE == 0
    assert 0 <= start - large.data_ptr() < pages.mmap.PAGESIZE and 0 <= end - (start + size) < pages.mmap.PAGESIZE


@needs_large_pages
def test_advice_on_memory_is_taken():
    large = pages.empty((pages.LARGE,), torch.uint8).fill_(3)
    start = -(-large.data_ptr() // pages.mmap.PAGESIZE) * pages.mmap.PAGESIZE
    assert pages._advise()(start, pages.mmap.PAGESIZE, pages.mmap.MADV_HUGEPAGE) == 0
    assert large.unique().tolist() == [3]


def test_systems_without_large_pages_get_usual_ones(monkeypatch):
    monkeypatch.setattr(pages.sys, "platform", "plan9")
    pages._advise.cache_clear()
    assert pages._advise() is None and pages.empty((pages.LARGE,), torch.uint8).shape == (pages.LARGE,)
    pages._advise.cache_clear()


@pytest.mark.parametrize("per_channel", [True, False])
def test_one_scale_for_a_weight_is_that_of_its_largest_channel(per_channel, monkeypatch):
    monkeypatch.setattr("fx.quantize.affine._CHUNK", 30)
    weight = torch.randn(7, 10)
    whole, scale = quantize_channels(weight, per_channel=per_channel)
    largest = weight.abs().amax(1) if per_channel else weight.abs().max().expand(7)
    assert torch.allclose(scale, largest / 127) and whole.abs().max() == 127
    assert torch.allclose(whole * scale[:, None], weight, atol=float(largest.max()) / 253)


def test_activations_of_real_results_reuse_their_memory():
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.SELU(), torch.nn.Linear(5, 4))
    scheme = QuantizationScheme(Choice(precision="dynamic"))
    program = convert(prepare(fx.symbolic_trace(model), scheme))
    (activation,) = (node for node in program.graph.nodes if node.target is F.selu)
    assert activation.kwargs["inplace"] is True
    values = torch.randn(3, 6)
    assert torch.allclose(program(values), model(values), atol=0.1)


def test_results_that_are_used_twice_are_not_written_over():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 5)

        def forward(self, x):
            real = self.linear(x)
            return F.selu(real), real

    model = Twice()
    program = convert(prepare(fx.symbolic_trace(model), QuantizationScheme(Choice(precision="dynamic"))))
    values = torch.randn(3, 6)
    for found, expected in zip(program(values), model(values), strict=True):
        assert torch.allclose(found, expected, atol=0.1)


@pytest.mark.parametrize("seconds_of_few, faster", [(0.001, True), (0.003, False)])
def test_a_trial_compares_the_shortest_times_without_the_first_calls(seconds_of_few, faster, monkeypatch):
    layer, clock, calls = filled(16, 16), [0.0], []

    def kernel(input, *arguments):
        calls.append(layer.few_rows)
        clock[0] += 1.0 if len(calls) <= 2 else seconds_of_few if layer.few_rows else 0.002

    monkeypatch.setattr(layer, "_kernel", kernel)
    monkeypatch.setattr(linear.time, "perf_counter", lambda: clock[0])
    assert layer._is_faster_with_few(torch.zeros(1, 16, dtype=torch.uint8)) is faster
    assert calls == [1, 0] * 3


@needs_fbgemm
@pytest.mark.parametrize("shape", [(2, 6, 9, 9), (6, 9, 9)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_convolutions_of_images_agree_with_both_kernels(shape, has_bias, monkeypatch):
    layer = QuantizedConv(6, 8, (3, 3), (2, 1), (1, 0), (1, 2), 2, has_bias)
    layer.fill(*quantize_channels(torch.randn(8, 3, 3, 3)), torch.randn(8) if has_bias else None)
    input = torch.randint(0, 256, shape, dtype=torch.uint8)
    kept = layer(input, 0.1, 100, 0.5, 90)
    assert layer._packed is None and layer._packed_params is not None
    monkeypatch.setattr(planar, "is_available", lambda: False)
    prepared_each_time = layer(input, 0.1, 100, 0.5, 90)
    assert layer._packed is not None
    assert kept.shape == prepared_each_time.shape
    assert (kept.int() - prepared_each_time.int()).abs().max() <= 1


@needs_fbgemm
def test_a_convolution_is_packed_for_its_first_images_and_takes_others():
    layer = QuantizedConv(6, 8, (3, 3), (1, 1), (1, 1), (1, 1))
    layer.fill(*quantize_channels(torch.randn(8, 6, 3, 3)), torch.randn(8))
    for size in (9, 20):
        for number in (1, 3):
            input = torch.randint(0, 256, (number, 6, size, size), dtype=torch.uint8)
            expected = layer._reference(dequantize(input, 0.1, 100))
            assert torch.allclose(layer(input, 0.1, 100), expected, rtol=1e-4, atol=1e-3)
            whole = layer(input, 0.1, 100, 0.5, 90)
            assert (whole.int() - quantize(expected, 0.5, 90).int()).abs().max() <= 1


def test_kept_memory_is_used_again_only_when_nothing_refers_to_it(monkeypatch):
    monkeypatch.setattr(pages, "LARGE", 64)
    memory = pages.KeptMemory()
    with memory.used():
        first = pages.empty((4, 8), torch.float32)
        address, part = first.data_ptr(), first[1:3]
        del first
        second = pages.empty((8, 4), torch.float32)
        assert second.data_ptr() != address  # a part of the first is still there
        del part
        third = pages.empty((32, 4), torch.uint8)
        assert third.data_ptr() == address and third.shape == (32, 4)
        with pages.KeptMemory().used():
            assert pages.empty((4, 8), torch.float32).data_ptr() not in (address, second.data_ptr())
        assert pages.empty((3,), torch.float32).shape == (3,)  # small ones as ever
    del third
    assert pages.empty((4, 8), torch.float32).data_ptr() != address
    del memory
    assert second.fill_(3).sum() == 96  # which outlives what kept it


@needs_kernels
def test_programs_give_the_same_answers_in_kept_memory(everything_is_large):
    prepared = prepare(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.SELU())))
    data = torch.randn(2 * linear.FEW_ROWS, 20)  # few rows are computed without kept memory
    prepared(data)
    program, memory = convert(prepared), pages.KeptMemory()
    expected = program(data)
    with memory.used():
        results = [program(data) for _ in range(3)]
        addresses = {one.data_ptr() for one in results}
        del results[1:]
        again = program(data)
    assert len(addresses) == 3 and again.data_ptr() in addresses - {results[0].data_ptr()}
    assert torch.equal(results[0], expected) and torch.equal(again, expected)


def test_a_convolution_whose_windows_can_lie_in_the_padding_as_a_whole_is_computed_without_the_kernel():
    torch.manual_seed(0)
    layer = QuantizedConv(1, 2, (2, 3, 1), stride=(2, 1, 2), padding=(0, 0, 1), dilation=(1, 1, 2))
    layer.fill(*quantize_channels(torch.randn(2, 1, 2, 3, 1)), torch.randn(2))
    input = torch.randint(0, 256, (3, 1, 8, 4, 1), dtype=torch.uint8)
    expected = layer._reference(dequantize(input, 0.1, 3))
    for _ in range(8):  # the kernel, which reads memory of others, would end the process
        assert torch.equal(layer(input, 0.1, 3), expected)
    assert torch.equal(layer(input, 0.1, 3, 0.2, 128), quantize(expected, 0.2, 128))
