"""Operations that stay on integers between two layers, and the operators that they become."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from building import Calling, decibels
from step_check import StepCheck, calibrated
from torch import nn

import fx
from fx.quantize import (
    QuantizationScheme,
    QuantizedLayer,
    convert,
    dequantize,
    embedding,
    embedding_bag,
    matmul,
    pooling,
    prepare_qat,
    quantize,
    reference,
    report,
)


class Between(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function, dims=2):
        super().__init__()
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        self.first, self.function, self.second = kind(3, 4, 3, padding=1), function, kind(4, 4, 1)

    def forward(self, x):
        return self.second(self.function(self.first(x)))


def converted(model, *inputs, least=25):
    """The model on integers, checked against it and against its reference form."""
    prepared = calibrated(model, *inputs)
    program, meaning = convert(prepared), reference(prepared)
    check = StepCheck(program)
    with torch.no_grad():
        expected, output = model(*inputs), check.run(*inputs)
        assert max(check.steps.values(), default=0) <= 1
        assert decibels(output, expected) > least and decibels(output, meaning(*inputs)) > least + 5
        assert torch.equal(pickle.loads(pickle.dumps(program))(*inputs), output)
    return program


def functions(program):
    return [node.target.__name__ for node in program.graph.find_nodes(op="call_function")][1:]


def swapped(one, other):
    return torch.cat((other, one), 1)


_JOINED = "{0} getitem {0} getitem rescale rescale cat"
STAY = {
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), "avg_pool"),
    "avg_pool_divisor": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), "avg_pool"),
    "avg_pool_inside": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), "avg_pool"),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (3, None)), "adaptive_avg_pool"),
    "global": (lambda x: F.adaptive_avg_pool2d(x, 1), "adaptive_avg_pool"),
    "mean": (lambda x: x.mean((2, 3), keepdim=True), "mean"),
    "largest": (lambda x: F.adaptive_max_pool2d(x, 3), "adaptive_max_pool"),
    "max_pool": (lambda x: F.max_pool2d(x, 2), "max_pool"),
    "zeros": (lambda x: F.pad(x, (1, 2)), "pad"),
    "reflected": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), "pad"),
    "upsampled": (lambda x: F.interpolate(x, scale_factor=2), "interpolate"),
    "sliced": (lambda x: x[:, :, 1:], "getitem"),
    "selected": (lambda x: x.select(3, 0).unsqueeze(3), "select unsqueeze"),
    "parts": (lambda x: swapped(*(x.chunk(2, 1)[n] for n in (0, 1))), _JOINED.format("chunk")),
    "in sections": (lambda x: swapped(*(torch.hsplit(x, 2)[n] for n in (0, 1))), _JOINED.format("hsplit")),
    "diagonal": (lambda x: x.diagonal(0, 2, 3).unsqueeze(3), "diagonal unsqueeze"),
    "windows": (lambda x: x.unfold(3, 2, 2).flatten(3), "unfold flatten"),
    "stacked": (lambda x: torch.stack((x, x), 1).flatten(0, 1), "rescale rescale stack flatten"),
    "repeated": (lambda x: x.repeat(1, 1, 2, 1).clone().detach(), "repeat clone detach"),
    "difference": (lambda x: x - torch.sigmoid(x), "lookup bitwise_not add"),
    "difference_relu": (lambda x: F.relu(x - torch.sigmoid(x)), "lookup bitwise_not add"),
    "largest_of_two": (lambda x: torch.maximum(x, x * 0.5), "lookup rescale rescale maximum"),
    "smallest_of_two": (lambda x: torch.minimum(x, x * 0.5), "lookup rescale rescale minimum"),
    "bounded": (lambda x: x.clamp_min(-0.1), ""),
    "power": (lambda x: x**3, "lookup"),
    "exponential": (torch.exp, "lookup"),
    "sine": (torch.sin, "lookup"),
    "product": (lambda x: x @ x.transpose(2, 3), "transpose matmul"),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_values_stay_quantized_between_layers(name):
    torch.manual_seed(0)
    function, expected = STAY[name]
    program = converted(Between(function), torch.randn(4, 3, 8, 8))
    summary, wanted = functions(program), expected.split()
    tables = ("lookup", "rescale")
    assert [name for name in summary if name not in tables] == [name for name in wanted if name not in tables]
    assert [summary.count(table) for table in tables] == [wanted.count(table) for table in tables]
    assert report(program).remainders == ()


LEFT = {
    "there is no operation on integers for it": lambda x: F.layer_norm(x, (8,)),
    "it computes values between those of its input": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "it pads with a number that is not zero": lambda x: F.pad(x, (1, 1), value=1.0),
    "its parts are used as a list": lambda x: torch.cat(x.chunk(2, 1), 1),
    "it returns something else than values of its input": lambda x: (
        x.mean(1, keepdim=True, dtype=torch.float32) + torch.zeros(4, 1, 1)
    ),
}


@pytest.mark.parametrize("reason", LEFT)
def test_the_rest_stays_in_float_and_the_report_says_why(reason):
    program = converted(Between(LEFT[reason]), torch.randn(4, 3, 8, 8))
    assert reason in [remainder.reason for remainder in report(program).remainders]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pools_of_all_dimensions_stay_quantized(dims):
    average = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[dims - 1]
    adaptive = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[dims - 1]
    largest = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[dims - 1]
    for function in (
        lambda x: average(x, 2),
        lambda x: adaptive(x, 3),
        lambda x: adaptive(x, 1),
        lambda x: largest(x, 3),
    ):
        program = converted(Between(function, dims), torch.randn(4, 3, *[6] * dims))
        assert len(functions(program)) == 1 and report(program).remainders == ()


def test_averages_are_of_the_represented_values():
    quantized = torch.randint(0, 256, (2, 3, 6, 6), dtype=torch.uint8)
    in_float, settings = dequantize(quantized, 0.1, 100), {"input_scale": 0.1, "input_zero_point": 100}
    target = {"scale": 0.05, "zero_point": 90, "highest": 200}
    for output, expected in (
        (pooling.mean(quantized, None, False, **settings, **target), in_float.mean()),
        (pooling.mean(quantized, (1, -1), True, **settings, **target), in_float.mean((1, -1), keepdim=True)),
        (pooling.adaptive_avg_pool(quantized, (2, 4), **settings, **target), F.adaptive_avg_pool2d(in_float, (2, 4))),
        (pooling.avg_pool(quantized, *[(n, n) for n in (3, 2, 1)], True, True, **settings, **target),
         F.avg_pool2d(in_float, 3, 2, 1, True)),
    ):  # fmt: skip
        assert output.dtype is torch.uint8 and output.shape == expected.shape
        assert (output.int() - quantize(expected, **target).int()).abs().max() <= 1


@pytest.mark.parametrize(
    "shapes",
    [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 3)), ((4,), (4, 3)), ((0, 4), (4, 3))],
)
def test_products_are_of_the_represented_values(shapes):
    left, right = (torch.randint(0, 256, shape, dtype=torch.uint8) for shape in shapes)
    expected = dequantize(left, 0.1, 200) @ dequantize(right, 0.2, 7)
    output = matmul(left, right, 0.1, 200, 0.2, 7)
    assert torch.allclose(output, expected, rtol=1e-5, atol=1e-2)
    quantized = matmul(left, right, 0.1, 200, 0.2, 7, 3.0, 30)
    assert not quantized.numel() or (quantized.int() - quantize(expected, 3.0, 30).int()).abs().max() <= 1


def test_products_of_integers_that_lead_to_a_layer_are_quantized():
    layers = {"q": nn.Linear(8, 8), "k": nn.Linear(8, 8), "out": nn.Linear(5, 8)}
    model = Calling(lambda m, x: m.out(m.q(x) @ m.k(x).transpose(-1, -2)), **layers)
    program = converted(model, torch.randn(6, 5, 8))
    assert functions(program).count("matmul") == 1
    assert report(program).remainders == ()


def test_attention_multiplies_float_values():
    def attend(model, x):
        weights = torch.softmax(model.q(x) @ model.k(x).transpose(-1, -2) / 3, -1)
        return model.out(torch.bmm(weights, model.v(x)))

    layers = {name: nn.Linear(8, 8) for name in ("q", "k", "v", "out")}
    program = converted(Calling(attend, **layers), torch.randn(6, 5, 8))
    assert not program.graph.find_nodes(op="call_function", target=matmul)
    reasons = [remainder.reason for remainder in report(program).remainders]
    assert "there is no operation on integers for it" in reasons  # softmax
    assert any("float values are multiplied faster than converted" in reason for reason in reasons)


class Embedded(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.table, self.fc = kind(20, 8, **settings), nn.Linear(8, 3)

    def forward(self, indices: torch.Tensor):
        return self.fc(self.table(indices))


class Bagged(Embedded):
    def forward(self, indices: torch.Tensor, offsets: torch.Tensor):
        return self.fc(self.table(indices, offsets))


INDICES = torch.randint(0, 20, (12, 5), generator=torch.Generator().manual_seed(0))


def test_embeddings_have_integers_and_look_up_float_values():
    for settings in ({}, {"padding_idx": 3}):
        program = converted(Embedded(nn.Embedding, **settings), INDICES, least=35)
        assert program.get_buffer("quantized.table.weight").dtype is torch.int8
        summary = report(program)
        assert (summary.layers, summary.float_layers, summary.bytes_in_8_bits) == (2, 0, 20 * 8 + 8 * 3)
        assert program.graph.find_nodes(op="call_function", target=embedding)


@pytest.mark.parametrize("mode", ["mean", "sum", "max"])
@pytest.mark.parametrize("padding", [None, 2, -3])
def test_bags_of_embeddings_have_integers(mode, padding):
    converted(Embedded(nn.EmbeddingBag, mode=mode, padding_idx=padding), INDICES, least=30)
    model = Bagged(nn.EmbeddingBag, mode=mode, padding_idx=padding)
    offsets = torch.tensor([0, 3, 3, 10])
    assert report(converted(model, INDICES.flatten(), offsets, least=30)).layers == 2
    none = INDICES.flatten()[:0]
    program = converted(Bagged(nn.EmbeddingBag, mode=mode), INDICES.flatten(), offsets)
    assert torch.isfinite(program(none, torch.tensor([0, 0]))).all()


def test_bags_are_weighted():
    class Weighted(Embedded):
        def forward(self, indices: torch.Tensor, weights: torch.Tensor):
            return F.embedding_bag(indices, self.table.weight, mode="sum", per_sample_weights=weights)

    assert functions(converted(Weighted(nn.EmbeddingBag), INDICES, torch.rand(12, 5))) == []


def test_rows_are_looked_up_in_steps_of_their_own():
    weight, scale = torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), torch.tensor([1.0, 0.5])
    assert embedding(torch.tensor([[1], [0]]), weight, scale).tolist() == [[[1.5, 2.0]], [[1.0, 2.0]]]
    assert embedding_bag(torch.tensor([[1, 0]]), weight, scale, mode="sum").tolist() == [[2.5, 4.0]]


def test_embeddings_that_write_to_their_weight_stay_in_float():
    program = converted(Embedded(nn.EmbeddingBag, max_norm=1.0), INDICES)
    assert "it writes to its weight" in [remainder.reason for remainder in report(program).remainders]


@pytest.mark.parametrize("by_name", [False, True])
def test_an_embedding_and_a_layer_that_share_a_weight_store_it_once(by_name, tmp_path):
    table, head = nn.Embedding(20, 8), nn.Linear(8, 20)
    if by_name:
        head.weight = table.weight
        model = nn.Sequential(table, head)
    else:
        model = Calling(lambda m, indices: F.linear(m.table(indices), m.table.weight), table=table)
    program = converted(model, INDICES)
    assert report(program).layers == 2
    assert [tensor.shape for tensor in program.state_dict().values() if tensor.dtype is torch.int8] == [(20, 8)]
    fx.save(program, tmp_path / "tied.fx")
    zeros = {name: torch.zeros_like(tensor) for name, tensor in program.named_buffers()}
    state = {**program.state_dict(), **zeros}
    for again in (fx.load(tmp_path / "tied.fx"), copy.deepcopy(program), program):
        assert torch.equal(again(INDICES), program(INDICES))
        again.load_state_dict(state)
        assert not again(INDICES).any()


@pytest.mark.parametrize("form", [convert, reference])
def test_layers_that_share_a_weight_store_it_once(form):
    first, other = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
    other.weight = first.weight
    prepared = calibrated(nn.Sequential(first, other, first, other), data := torch.randn(4, 8))
    program = form(prepared)
    stored = {tensor.data_ptr() for tensor in program.state_dict().values() if tensor.dtype is torch.int8}
    assert len(stored) == 1 and decibels(program(data), prepared(data).detach()) > 25


def test_without_offsets_known_to_be_tensors_the_report_says_why():
    class Unknown(Bagged):
        def forward(self, indices, offsets):
            return self.fc(self.table(indices, offsets))

    program = converted(Unknown(nn.EmbeddingBag), INDICES.flatten(), torch.tensor([0, 3]))
    assert "whether its input `offsets` is None is known only when the program runs" in [
        remainder.reason for remainder in report(program).remainders
    ]


def test_inputs_that_are_quantized_already_stay_so():
    model = Calling(lambda m, image: m.fc(dequantize(image, scale=1 / 255, zero_point=10)), fc=nn.Linear(8, 3))
    program = converted(model, torch.randint(0, 256, (16, 8), dtype=torch.uint8))
    image, layer, _ = program.graph.nodes
    assert layer.args == (image,)
    assert layer.kwargs == {"scale": 1 / 255, "zero_point": 10}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 3])
def test_padding_that_keeps_sizes_is_of_integers(dims, size, dilation):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    first = kind(3, 4, (size, 3, 1)[:dims], padding="same", dilation=dilation)
    last = kind(4, 4, size, padding="same", groups=2)
    program = converted(nn.Sequential(first, nn.Tanh(), last), torch.randn(4, 3, *[6] * dims) + 1)
    summary = report(program)
    assert (summary.layers, summary.float_layers, summary.share_of_operations) == (2, 0, 1.0)
    assert {remainder.reason for remainder in summary.remainders} <= {
        "none of its inputs is a result in 8 bits"
    }  # the inputs
    assert set(functions(program)) <= {"quantize", "pad", "lookup"}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_padding_is_trained_as_it_is_converted():
    model = nn.Sequential(nn.Conv2d(3, 4, 2, padding="same"), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 2, padding="same"))
    program = prepare_qat(fx.symbolic_trace(model)).train()
    data = torch.randn(4, 3, 6, 6) + 1
    program(data)
    program.eval()
    with torch.no_grad():
        expected = program(data)
        assert decibels(convert(program)(data), expected) > 40
    assert report(convert(program)).layers == 2


def test_names_that_modules_use_are_no_obstacle():
    converted(Between(lambda x: x.to(torch.float32)), torch.randn(4, 3, 8, 8))


def test_quantized_programs_are_captured_as_parts_of_others():
    quantized = converted(Between(F.selu), data := torch.randn(4, 3, 8, 8))

    traced = fx.symbolic_trace(Calling(lambda m, x: m.inner(x) + 1, inner=quantized))
    assert [str(node.target) for node in traced.graph.find_nodes(op="call_module")] == ["inner.first", "inner.second"]
    assert torch.equal(traced(data), quantized(data) + 1)
    assert any(isinstance(module, QuantizedLayer) for module in copy.deepcopy(traced).modules())


@pytest.mark.parametrize("name", ["global", "avg_pool", "product", "largest", "difference"])
def test_operators_are_traced_by_jit_and_saved(name, tmp_path):
    data = torch.randn(4, 3, 8, 8)
    program = converted(Between(STAY[name][0]), data)
    fx.save(program, tmp_path / "program.fx")
    assert torch.equal(fx.load(tmp_path / "program.fx")(data), program(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(program, (data,))
    assert decibels(traced(data), program(data)) > 40


def test_overrides_reach_operators_that_have_no_weight():
    scheme = QuantizationScheme().skip(operator="avg_pool2d")
    prepared = calibrated(Between(lambda x: F.avg_pool2d(x, 2)), torch.randn(4, 3, 8, 8), scheme=scheme)
    assert "the scheme says so" in [remainder.reason for remainder in report(convert(prepared)).remainders]
