"""Kernels and the trial of them, results in parts and in large pages."""

import contextlib
import copy
import dataclasses
import gc
import mmap
import os
import weakref

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from step_check import calibrated, filled

import fx
from fx.errors import QuantizationError
from fx.quantize import (
    Choice,
    QuantizationScheme,
    QuantizedConv,
    QuantizedLinear,
    convert,
    dequantize,
    lookup,
    pages,
    prepare,
    quantize,
    quantize_channels,
)
from fx.quantize.kernels import kernel as kernels
from fx.quantize.kernels import layer_kernels, trials
from pytest_fx.timing.memory import peak_memory

needs_large_pages = pytest.mark.skipif(pages._advise() is None, reason="no large pages here")


def layer_and_input(kind):
    if kind == "linear":
        return filled(QuantizedLinear(33, 20)), torch.randint(0, 256, (9, 33), dtype=torch.uint8)
    dims = int(kind[-1])
    sizes = [(3,) * dims, (2,) + (1,) * (dims - 1), (1,) * (dims - 1) + (0,), (1,) * (dims - 1) + (2,)]
    return filled(QuantizedConv(6, 8, *sizes, 2)), torch.randint(0, 256, (2, 6, *[9] * dims), dtype=torch.uint8)


def make_everything_large(monkeypatch):
    monkeypatch.setattr(pages, "LARGE", 64)
    monkeypatch.setattr(layer_kernels, "_PART", 100)
    monkeypatch.setattr(layer_kernels, "_CHANNELS", 7)


def available_kernel():
    return next(kernel for kernel in layer_kernels.LINEAR if kernel.is_available())


def results(layer, input):
    """Return the results of a layer in each form of call."""
    with torch.no_grad():
        return layer(input, 0.1, 101, 0.5, 90), layer(input, 0.1, 101), layer(dequantize(input, 0.1, 101))


@pytest.mark.parametrize("kind", ["linear", "conv1", "conv2", "conv3"])
@pytest.mark.parametrize("is_exact", [True, False])
def test_each_kernel_matches_the_reference_also_in_halves(kind, is_exact, monkeypatch):
    layer, input = layer_and_input(kind)
    expected = layer._reference(dequantize(input, 0.1, 101))
    kernel_names = set()
    for kernel in layer._kernels():
        if not kernel.is_available():
            continue
        used = kernel if is_exact else kernels.in_halves(kernel) if "float" in kernel.forms else None
        if used is None:
            continue
        monkeypatch.setattr(layer, "_kernels", lambda used=used: (used,))
        layer._unpack()
        quantized, in_float, dynamic = results(layer, input)
        names = set(layer.kernels.values())
        # one that saturates here is divided, or not taken
        assert names <= {used.name, f"{used.name} in halves", "reference"}
        kernel_names |= names
        assert quantized.dtype is torch.uint8 and in_float.dtype is dynamic.dtype is torch.float32
        assert (quantized.int() - quantize(expected, 0.5, 90).int()).abs().max() <= 1
        assert torch.allclose(in_float, expected, rtol=1e-4, atol=1e-4)
        assert torch.allclose(dynamic, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))
    assert kernel_names


@pytest.mark.parametrize("kind", ["linear", "conv1", "conv2", "conv3"])
def test_the_largest_integers_do_not_saturate(kind):
    layer, input = layer_and_input(kind)
    sign = torch.tensor([1, -1] * (len(layer.weight) // 2)).view(-1, *[1] * (layer.weight.dim() - 1))
    layer.fill((sign * 127).expand(layer.weight.shape).to(torch.int8).contiguous(), layer.weight_scale, None)
    input.fill_(255)
    for zero_point in (0, 1, 128):
        expected = layer._reference(dequantize(input, 1.0, zero_point))
        assert torch.allclose(layer(input, 1.0, zero_point), expected, rtol=1e-5)
        scale = float(expected.abs().max()) / 100
        quantized = layer(input, 1.0, zero_point, scale, 128)
        assert (quantized.int() - quantize(expected, scale, 128).int()).abs().max() <= 1


def test_a_layer_of_very_many_inputs_is_not_taken_for_one_that_saturates():
    layer = filled(QuantizedLinear(100_000, 3))
    input = torch.randint(0, 256, (2, 100_000), dtype=torch.uint8)
    expected = layer._reference(dequantize(input, 0.1, 100))
    assert torch.allclose(layer(input, 0.1, 100), expected, rtol=1e-3, atol=1e-2)
    assert "reference" not in layer.kernels.values()


def saturating(kernel):
    """A kernel as processors without VNNI have it: two products are added in 16 bits."""

    def pack(data, shape):
        inner = kernel.pack(data, shape)

        def compute(input, scale, zero_point, output):
            too_large = (input.float().max() - zero_point) * data.weight.float().abs().max() * 2 > 2**15 - 1
            result = inner(input, scale, zero_point, output)
            return result.div(2).to(result.dtype) if too_large else result

        return compute

    return dataclasses.replace(kernel, name="saturating", pack=pack)


@pytest.mark.parametrize("bits, used", [(8, "saturating in halves"), (7, "saturating")])
def test_a_kernel_that_saturates_computes_halves_unless_weights_have_seven_bits(bits, used, monkeypatch):
    monkeypatch.setattr(layer_kernels, "LINEAR", (saturating(available_kernel()),))
    layer = QuantizedLinear(33, 20, False)
    layer.fill(*quantize_channels(torch.randn(20, 33), bits=bits), None)
    input = torch.randint(0, 256, (9, 33), dtype=torch.uint8)
    expected = layer._reference(dequantize(input, 0.1, 3))
    assert torch.allclose(layer(input, 0.1, 3), expected, rtol=1e-4, atol=1e-4)
    assert set(layer.kernels.values()) == {used}


@pytest.mark.parametrize("zero_point, used", [(3, "saturating in 7 bits"), (200, "saturating in halves")])
def test_a_kernel_that_saturates_computes_activations_of_seven_bits_undivided(zero_point, used, monkeypatch):
    monkeypatch.setattr(layer_kernels, "LINEAR", (saturating(available_kernel()),))
    layer = filled(QuantizedLinear(33, 20))
    input = torch.randint(0, 128, (9, 33), dtype=torch.uint8)
    input[0] = 127
    expected = layer._reference(dequantize(input, 0.1, zero_point))
    assert torch.allclose(layer(input, 0.1, zero_point, input_highest=127), expected, rtol=1e-4, atol=1e-4)
    assert set(layer.kernels.values()) == {used}


def test_an_input_with_larger_integers_than_it_should_have_is_computed_right(monkeypatch):
    monkeypatch.setattr(layer_kernels, "LINEAR", (saturating(available_kernel()),))
    layer = filled(QuantizedLinear(33, 20))
    small = torch.randint(0, 128, (9, 33), dtype=torch.uint8)
    larger = small.clone()
    larger[-1, -1] = 255
    for input in (small, larger, small):
        expected = layer._reference(dequantize(input, 0.1, 3))
        assert torch.allclose(layer(input, 0.1, 3, input_highest=127), expected, rtol=1e-4, atol=1e-4)
    assert sorted(layer.kernels.values()) == ["saturating in 7 bits", "saturating in halves"]


def test_a_kernel_that_is_right_for_all_integers_is_used_for_seven_bits_too():
    layer, input = layer_and_input("linear")
    layer(input, 0.1, 3)
    name = next(iter(layer.kernels.values()))
    if " in " not in name:
        layer(input // 2, 0.1, 3, input_highest=127)
        assert not [kernel for kernel in layer.kernels.values() if " in " in kernel]


def test_an_input_highest_that_is_no_integer_is_refused():
    layer, input = layer_and_input("linear")
    with pytest.raises(QuantizationError, match="takes an integer for input_highest"):
        layer(input, 0.1, 3, input_highest="127")


def test_a_layer_without_a_correct_kernel_runs_on_the_reference(monkeypatch):
    kernel = available_kernel()

    def pack(data, shape):
        return lambda input, scale, zero_point, output: torch.zeros(len(input), len(data.weight))

    wrong = dataclasses.replace(kernel, name="wrong", pack=pack)
    monkeypatch.setattr(layer_kernels, "LINEAR", (wrong,))
    layer, input = layer_and_input("linear")
    assert torch.equal(layer(input, 0.1, 3), layer._reference(dequantize(input, 0.1, 3)))
    assert set(layer.kernels.values()) == {"reference"}


def test_a_kernel_that_does_not_take_a_size_is_left_out(monkeypatch):
    def refuses(data, shape):
        raise RuntimeError("no such size")

    kernel = available_kernel()
    refusing = dataclasses.replace(kernel, name="refusing", pack=refuses)
    monkeypatch.setattr(layer_kernels, "LINEAR", (refusing, kernel))
    layer, input = layer_and_input("linear")
    layer(input, 0.1, 3)
    assert kernel.name in next(iter(layer.kernels.values()))


def test_halves_add_up_and_have_the_zero_point_of_both():
    integers = torch.arange(256).to(torch.uint8)[None]
    for zero_point in range(256):
        both, _, half = kernels.halves(integers, 1.0, zero_point)
        assert both.max() <= 128 and half <= 128
        assert torch.equal((both[0].int() - half) + (both[1].int() - half), torch.arange(256) - zero_point)


def test_the_fastest_way_that_is_right_is_taken_and_remembered(monkeypatch):
    clock, tried = [0.0], []
    monkeypatch.setattr(trials.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(trials.time, "thread_time", lambda: clock[0])

    def way(name, seconds, result=1.0):
        def prepare():
            tried.append(name)

            def run():
                clock[0] += seconds
                return torch.tensor(result)

            return run

        return trials.Way(name, prepare, lambda value: float(value) == 1.0)

    choices = trials.KernelChoices()
    ways = [[way("slow", 0.003)], [way("wrong", 0.001, 2.0), way("halved", 0.002)], [way("slowest", 1.0)]]
    assert [choices.fastest("problem", lambda: ways) for _ in range(2)] == ["halved"] * 2
    assert tried == ["slow", "wrong", "halved", "slowest"]
    assert choices.fastest("other", lambda: [[way("wrong", 0.1, 2.0)]]) is None
    assert trials.KernelChoices().fastest("problem", lambda: ways[:1]) == "slow"


def test_a_fast_path_with_a_slow_first_call_is_tried_again(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(trials, "_seconds", lambda run: run())

    def way(name, first, later):
        times = iter([0.0, first, *[later] * 100])  # of the call that shows whether it is right, and of others

        def run():
            clock[0] = next(times)
            return clock[0]

        return trials.Way(name, lambda: run, lambda _: True)

    ways = [[way("short", 0.0004, 0.00001)], [way("long", 0.00002, 0.00002)]]
    assert trials.KernelChoices().fastest("problem", lambda: ways) == "short"


def test_a_layer_chooses_for_each_form_size_and_number_of_threads():
    layer, input = layer_and_input("linear")
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 1):
            torch.set_num_threads(number)
            layer(input, 0.1, 100)
            layer(input[:8], 0.1, 100, 0.5, 90)
    finally:
        torch.set_num_threads(threads)
    uses = {(use.form, use.size, use.threads) for use in layer.kernels}
    assert uses == {(form, size, number) for form, size in (("float", 512), ("integers", 512)) for number in (1, 2)}


def test_few_orders_of_a_weight_are_kept():
    layer = filled(QuantizedConv(6, 8, (3, 3), (1, 1), (1, 1), (1, 1)))
    threads = torch.get_num_threads()
    try:
        for number in (1, 2, 3, 4, 1):
            torch.set_num_threads(number)
            for size in (9, 20):
                layer(torch.randint(0, 256, (1, 6, size, size), dtype=torch.uint8), 0.1, 100, 0.5, 90)
                assert len(layer._packed) <= 3
    finally:
        torch.set_num_threads(threads)


def test_choices_are_made_where_a_program_runs_and_saved_with_none(tmp_path):
    torch.manual_seed(0)
    data = torch.randn(16, 20)
    program = convert(calibrated(torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.SELU()), data))
    expected = program(data)
    fx.save(program, tmp_path / "program.fx")
    for other in (fx.load(tmp_path / "program.fx"), copy.deepcopy(program)):
        (layer,) = (module for module in other.modules() if isinstance(module, QuantizedLinear))
        assert layer.kernels == layer._packed == {}
        assert torch.equal(other(data), expected)
        assert layer.kernels


@pytest.mark.parametrize("shape", [(33,), (3, 33), (2, 4, 33)])
def test_an_input_may_have_any_number_of_dimensions(shape):
    layer, input = filled(QuantizedLinear(33, 20)), torch.randint(0, 256, shape, dtype=torch.uint8)
    expected = layer._reference(dequantize(input, 0.1, 100))
    for result, like in zip(results(layer, input), (quantize(expected, 0.5, 90), expected, expected), strict=True):
        assert result.shape == like.shape


def rounding(layer, input, scale, zero_point):
    """Return how far two kernels may be from each other: sums of integers are exact, and a few steps that round
    follow.
    """
    operands = dequantize(input, scale, zero_point).double(), layer.float_weight().double(), layer.bias.double()
    return 8 * torch.finfo(torch.float32).eps * F.linear(*(operand.abs() for operand in operands))


@pytest.mark.parametrize("rows", [1, 9, 25])
def test_large_results_are_those_of_small_ones(rows, monkeypatch):
    layer = filled(QuantizedLinear(33, 20))
    monkeypatch.setattr(layer_kernels, "LINEAR", layer_kernels.LINEAR[-1:])  # oneDNN, which has parts
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

    in_float, quantized, *others = results()
    layer.to("cpu")  # which frees the packed weight
    make_everything_large(monkeypatch)
    monkeypatch.setattr("fx.quantize.arithmetic._PART", 50)
    float_in_parts, quantized_in_parts, *others_in_parts = results()
    # oneDNN may take another kernel for a part, which rounds float values elsewhere
    apart = rounding(layer, input, 0.1, 100)
    assert ((in_float.double() - float_in_parts).abs() <= apart).all()
    may_round_otherwise = ((in_float.double() / 0.5).frac().abs() - 0.5).abs() <= apart / 0.5
    assert may_round_otherwise.float().mean() < 0.01 and (quantized.int() - quantized_in_parts.int()).abs().max() <= 1
    assert torch.equal(quantized[~may_round_otherwise], quantized_in_parts[~may_round_otherwise])
    assert all(torch.equal(*pair) for pair in zip(others, others_in_parts, strict=True))


def test_advice_is_given_on_whole_pages_of_large_results_alone(monkeypatch):
    recorded = []
    monkeypatch.setattr(pages, "_advise", lambda: lambda *advice: recorded.append(advice))
    small, large = pages.empty((3, 5), torch.float32), pages.empty((3, pages.LARGE // 4 + 1), torch.float32)
    ((start, size, _),) = recorded
    end = large.data_ptr() + 4 * large.numel()
    assert small.shape == (3, 5) and start % pages.mmap.PAGESIZE == size % pages.mmap.PAGESIZE == 0
    assert 0 <= start - large.data_ptr() < pages.mmap.PAGESIZE and 0 <= end - (start + size) < pages.mmap.PAGESIZE


@needs_large_pages
def test_advice_on_memory_is_taken():
    large = pages.empty((pages.LARGE,), torch.uint8).fill_(3)
    start = -(-large.data_ptr() // pages.mmap.PAGESIZE) * pages.mmap.PAGESIZE
    assert pages._advise()(start, pages.mmap.PAGESIZE, pages.mmap.MADV_HUGEPAGE) == 0
    assert large.unique().tolist() == [3]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="no table of what is mapped here")
def test_memory_that_a_library_maps_is_moved_into_large_pages(monkeypatch):
    recorded = []
    monkeypatch.setattr(pages, "_advise", lambda: lambda *advice: recorded.append(advice))

    def mapped(size):  # as an allocator without free memory of that kind
        return torch.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)

    before = mapped(2 * pages.LARGE)
    with pages.mapped_in_large_pages():
        large, small = mapped(2 * pages.LARGE), torch.ones(3)
    first, last = large.data_ptr(), large.data_ptr() + large.numel()
    kinds = {kind for start, size, kind in recorded if start <= first and last <= start + size}
    assert kinds == {pages.mmap.MADV_HUGEPAGE, pages._COLLAPSE}
    assert not [1 for start, size, _ in recorded if start <= before.data_ptr() < start + size]
    assert all(size >= pages.LARGE for _, size, _ in recorded) and small.sum() == 3


def test_a_large_weight_is_packed_into_large_pages(monkeypatch):
    blocks = []

    @contextlib.contextmanager
    def block():
        blocks.append("entered")
        yield

    monkeypatch.setattr(pages, "mapped_in_large_pages", block)
    layer, input = layer_and_input("linear")
    layer(input, 0.1, 3)
    assert blocks == []
    layer._unpack()
    monkeypatch.setattr(pages, "LARGE", layer.weight.numel())
    layer(input, 0.1, 3)
    layer(input, 0.1, 3)
    assert blocks == ["entered"]


def test_systems_without_large_pages_get_usual_ones(monkeypatch):
    monkeypatch.setattr(pages.sys, "platform", "plan9")
    pages._advise.cache_clear()
    assert pages._advise() is None and pages.empty((pages.LARGE,), torch.uint8).shape == (pages.LARGE,)
    pages._advise.cache_clear()


@pytest.mark.parametrize("per_channel", [True, False])
def test_one_scale_for_a_weight_is_that_of_its_largest_channel(per_channel, monkeypatch):
    monkeypatch.setattr("fx.quantize.affine._CHUNK", 30)
    weight = torch.randn(7, 10)
    quantized, scale = quantize_channels(weight, per_channel=per_channel)
    largest = weight.abs().amax(1) if per_channel else weight.abs().max().expand(7)
    assert torch.allclose(scale, largest / 127) and quantized.abs().max() == 127
    assert torch.allclose(quantized * scale[:, None], weight, atol=float(largest.max()) / 253)


def test_activations_of_float_results_reuse_their_memory():
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.SELU(), torch.nn.Linear(5, 4))
    scheme = QuantizationScheme(Choice(precision="dynamic"))
    program = convert(prepare(fx.symbolic_trace(model), scheme))
    (activation,) = (node for node in program.graph.nodes if node.target is F.selu)
    assert activation.kwargs["inplace"] is True
    values = torch.randn(3, 6)
    assert torch.allclose(program(values), model(values), atol=0.1)


def test_results_that_are_used_twice_are_not_written_over():
    model = Calling(lambda self, x: (F.selu(x := self.linear(x)), x), linear=torch.nn.Linear(6, 5))
    program = convert(prepare(fx.symbolic_trace(model), QuantizationScheme(Choice(precision="dynamic"))))
    values = torch.randn(3, 6)
    for actual, expected in zip(program(values), model(values), strict=True):
        assert torch.allclose(actual, expected, atol=0.1)


def test_a_convolution_is_packed_for_its_first_images_and_takes_others():
    layer = filled(QuantizedConv(6, 8, (3, 3), (1, 1), (1, 1), (1, 1)))
    for size in (9, 20):
        for number in (1, 3):
            input = torch.randint(0, 256, (number, 6, size, size), dtype=torch.uint8)
            expected = layer._reference(dequantize(input, 0.1, 100))
            assert torch.allclose(layer(input, 0.1, 100), expected, rtol=1e-4, atol=1e-3)
            quantized = layer(input, 0.1, 100, 0.5, 90)
            assert (quantized.int() - quantize(expected, 0.5, 90).int()).abs().max() <= 1


def linear_program(monkeypatch, width=30):
    make_everything_large(monkeypatch)
    data = torch.randn(32, 20)
    return convert(calibrated(torch.nn.Sequential(torch.nn.Linear(20, width), torch.nn.SELU()), data)), data


def test_a_large_result_gets_the_memory_of_an_earlier_one_that_nothing_refers_to(monkeypatch):
    program, data = linear_program(monkeypatch)
    results = [program(data) for _ in range(4)]
    expected, part, addresses = results[0].clone(), results[1][1:3], {result.data_ptr() for result in results}
    free = {result.data_ptr() for result in results[2:]}
    del results[1:]
    again = [program(data) for _ in range(3)]
    assert len(addresses) == 4 and free <= {result.data_ptr() for result in again}
    assert addresses.isdisjoint({result.data_ptr() for result in again} - free)
    assert torch.equal(part, expected[1:3]) and all(torch.equal(result, expected) for result in (*results, *again))


def test_a_result_outlives_the_program_whose_memory_is_freed(monkeypatch):
    program, data = linear_program(monkeypatch)
    result = program(data)
    expected, memory = result.clone(), weakref.ref(pages.shared_memory())
    assert memory() is pages.shared_memory()
    del program
    gc.collect()
    assert memory() is None and torch.equal(result, expected)


def test_unused_memory_is_freed_before_it_is_larger_than_twice_the_results_in_use(monkeypatch):
    monkeypatch.setattr(pages, "LARGE", 64)
    fresh, blocks = pages._fresh, []
    monkeypatch.setattr(pages, "_fresh", lambda size: blocks.append(weakref.ref(block := fresh(size))) or block)
    memory = pages.ResultMemory()
    for size in range(100, 120):
        memory.empty((size,), torch.uint8)
    living = [block for block in (ref() for ref in blocks) if block is not None]
    assert len(blocks) == 20 and [len(block) for block in living] == [118, 119]


def test_a_call_that_is_observed_gets_fresh_memory(monkeypatch):
    program, data = linear_program(monkeypatch)
    program(data)
    assert peak_memory(lambda: program(data)) >= program(data).nbytes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_process_does_not_write_into_results_of_its_parent(monkeypatch):
    program, data = linear_program(monkeypatch)
    result = program(data)
    expected = result.clone()
    if (child := os.fork()) == 0:
        result.fill_(7)
        os._exit(0)
    os.waitpid(child, 0)
    assert torch.equal(result, expected)


def test_a_convolution_whose_windows_can_lie_in_the_padding_as_a_whole_is_computed_without_the_kernel():
    torch.manual_seed(0)
    layer = filled(QuantizedConv(1, 2, (2, 3, 1), stride=(2, 1, 2), padding=(0, 0, 1), dilation=(1, 1, 2)))
    input = torch.randint(0, 256, (3, 1, 8, 4, 1), dtype=torch.uint8)
    expected = layer._reference(dequantize(input, 0.1, 3))
    for _ in range(8):  # the kernel reads foreign memory and would end the process
        assert torch.equal(layer(input, 0.1, 3), expected)
    assert torch.equal(layer(input, 0.1, 3, 0.2, 128), quantize(expected, 0.2, 128))


def test_a_convolution_whose_dilated_windows_can_lie_around_the_image_is_computed_without_the_kernel():
    torch.manual_seed(0)
    layer = filled(QuantizedConv(5, 5, (2, 2), stride=(1, 1), padding=(1, 1), dilation=(2, 2)))
    small, large = (torch.randint(0, 256, (2, 5, *size), dtype=torch.uint8) for size in ((3, 1), (3, 4)))
    for input in (large, small):
        expected = layer._reference(dequantize(input, 0.1, 3))
        for _ in range(20):  # the kernel leaves the old contents of memory
            junk = [torch.full((expected.numel(),), 1e4) for _ in range(20)]
            del junk
            assert torch.allclose(layer(input, 0.1, 3), expected, rtol=1e-4, atol=1e-4)
    assert "reference" not in layer.kernels.values()


def test_a_convolution_whose_windows_reach_one_element_of_the_image_at_least_runs_on_a_kernel():
    layer = filled(QuantizedConv(4, 8, (3, 2), stride=(1, 1), padding=(4, 1), dilation=(2, 1)))
    input = torch.randint(0, 256, (2, 4, 7, 6), dtype=torch.uint8)
    assert torch.allclose(layer(input, 0.1, 3), layer._reference(dequantize(input, 0.1, 3)), rtol=1e-4, atol=1e-4)
    assert "reference" not in layer.kernels.values()
