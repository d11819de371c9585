"""The report accounts for all state and work of a program, in 8 bits or not, with reasons."""

import pytest
import torch
import torch.nn.functional as F
from building import Calling
from step_check import calibrated
from torch import nn

import fx
from fx.quantize import Choice, QuantizationScheme, convert, kernels_used, prepare, reference, report


@fx.wrap
def looked_up_elsewhere(x):
    return torch.from_numpy(x.detach().numpy().copy())


@fx.wrap
def normalized_elsewhere(x):
    return x / x.norm()


def besides(function, **state):
    """A layer, and something with state of its own."""
    return Calling(lambda model, x: function(model, model.layer(x)), layer=nn.Linear(8, 8), **state)


def reported(model, *data, scheme=None):
    """The report, the same for both forms, whose remainders have all float state that is not part of a layer."""
    prepared = calibrated(model, *(data or [torch.randn(4, 8)]), scheme=scheme)
    summary, other = (report(form(prepared)) for form in (convert, reference))

    def counted(one):
        remainders = [(each.reason, each.bytes_of_state, each.operations) for each in one.remainders]
        return one.layers, one.float_layers, one.share_of_operations, remainders

    assert counted(summary) == counted(other)
    return summary


def hooked(layer):
    layer.register_forward_hook(lambda *_: None)
    return layer


MATRIX = torch.randn(8, 8)
LEFT = {
    "hooked": (besides(lambda m, x: m.one(x.exp()), one=hooked(nn.Linear(8, 8))), "it has hooks", 72),
    "addmm": (besides(lambda m, x: torch.addmm(x, x, m.one), one=MATRIX), "no operation on integers", 64),
    "einsum": (besides(lambda m, x: torch.einsum("bi,ij->bj", x, m.one), one=MATRIX), "no operation on integers", 64),
    "recurrent": (besides(lambda m, x: m.one(x.exp())[0], one=hooked(nn.RNN(8, 4))), "it has hooks", 32 + 16 + 8),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_an_unquantized_product_with_own_matrices_is_a_float_layer(name):
    model, reason, elements = LEFT[name]
    summary = reported(model)
    assert (summary.layers, summary.float_layers) == (1, 1)
    (remainder,) = [remainder for remainder in summary.remainders if remainder.bytes_of_state]
    assert reason in remainder.reason and remainder.bytes_of_state == 4 * elements
    assert remainder.operations and summary.share_of_operations == 4 * 128 / (4 * 128 + remainder.operations)
    assert f"({4 * elements:,} bytes of state, {remainder.operations:,} operations)" in str(summary)


COUNTED = {
    "transposed convolution": (nn.ConvTranspose2d(3, 4, 3, 2), lambda m, x: m(x), (2, 3, 5, 5), 1, 2 * 50 * 3 * 4 * 9),
    "unevenly padded": (nn.Conv2d(3, 4, 2, padding="same"), lambda m, x: m(x), (2, 3, 5, 5), 1, 2 * 50 * 3 * 4 * 4),
    "attention": (
        nn.MultiheadAttention(8, 2), lambda m, x: m(x, x, x)[0], (5, 3, 8), 2, 2 * 15 * 64 * 4 + 2 * 2 * 15 * 5 * 8,
    ),
    "attention without weights": (
        nn.MultiheadAttention(8, 2), lambda m, x: m(x, x, x, need_weights=False)[0], (5, 3, 8), 2,
        2 * 15 * 64 * 4 + 2 * 2 * 15 * 5 * 8,
    ),
    "lstm": (nn.LSTM(8, 6), lambda m, x: m(x)[0], (5, 3, 8), 1, 2 * 15 * 24 * (8 + 6)),
    "gru": (nn.GRU(8, 6, 2), lambda m, x: m(x)[0], (5, 3, 8), 1, 2 * 15 * 18 * (8 + 6 + 6 + 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_all_state_and_work_of_layers_in_8_bits_is_counted(name):
    module, call, shape, layers, operations = COUNTED[name]
    summary = reported(Calling(lambda m, x: call(m.module, x), module=module), torch.randn(shape))
    assert (summary.layers, summary.float_layers) == (layers, 0)
    total_operations = sum(remainder.operations for remainder in summary.remainders)
    assert total_operations == (2 * 2 * 15 * 5 * 8 if "attention" in name else 0)
    assert summary.share_of_operations == (operations - total_operations) / operations
    assert not sum(remainder.bytes_of_state for remainder in summary.remainders)
    assert summary.bytes_in_8_bits == sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)


def test_operators_with_parts_of_longer_names_in_theirs_are_counted():
    summary = reported(
        besides(lambda m, x: torch.rsqrt(x.square()) + torch._weight_norm(x, x.norm(dim=1, keepdim=True)))
    )
    assert summary.share_of_operations == 1.0  # neither "qr" of rsqrt nor "eig" of weight is a decomposition
    summary = reported(besides(lambda m, x: torch.linalg.qr(x)[0]))
    assert summary.share_of_operations is None


SMALL = {
    "normalization": (lambda m, x: m.one(x), nn.LayerNorm(8), 16),
    "sum": (lambda m, x: x + m.one, torch.randn(4, 8), 32),
    "returned": (lambda m, x: (x, m.one), torch.randn(8), 8),
}


@pytest.mark.parametrize("name", SMALL)
def test_operations_that_only_read_state_are_no_layers_but_reported(name):
    function, layer, elements = SMALL[name]
    summary = reported(besides(function, one=layer))
    assert (summary.layers, summary.float_layers, summary.share_of_operations) == (1, 0, 1.0)
    assert [remainder.bytes_of_state for remainder in summary.remainders if remainder.bytes_of_state] == [4 * elements]


def test_constants_that_become_integers_in_each_call_are_reported():
    parts = {"one": nn.Linear(8, 8), "two": nn.Linear(8, 8), "shift": torch.randn(8)}
    summary = reported(Calling(lambda m, x: m.two(m.one(x) + m.shift), **parts))
    (remainder,) = summary.remainders
    assert (remainder.bytes_of_state, remainder.operations) == (32, 0)
    assert remainder.reason == "what it reads is stored as float values, and becomes integers in each call"


def test_state_that_two_operations_read_counts_once():
    summary = reported(besides(lambda m, x: (x @ m.one) + (x.softmax(0) @ m.one), one=MATRIX))
    assert sum(remainder.bytes_of_state for remainder in summary.remainders) == 256 and summary.float_layers == 2


def test_work_that_cannot_be_counted_is_unknown():
    summary = reported(besides(lambda m, x: looked_up_elsewhere(x)))
    assert summary.share_of_operations is None
    (remainder,) = [remainder for remainder in summary.remainders if remainder.operations is None]
    assert "looked_up_elsewhere" in remainder.node
    assert ", operations not counted; " in str(summary) and "(operations not counted)" in str(summary)


def test_work_without_a_formula_is_unknown():
    summary = reported(besides(lambda m, x: m.one(x, x), one=nn.Bilinear(8, 8, 2)))
    (remainder,) = summary.remainders
    assert (summary.float_layers, summary.share_of_operations) == (1, None)
    assert (remainder.bytes_of_state, remainder.operations) == (4 * (8 * 8 * 2 + 2), None)


def test_work_of_own_functions_is_counted_inside_them():
    summary = reported(besides(lambda m, x: normalized_elsewhere(x)))
    assert [remainder.operations for remainder in summary.remainders if "elsewhere" in remainder.node] == [0]
    assert summary.share_of_operations is not None


def test_products_with_vectors_count_as_work():
    summary = reported(besides(lambda m, x: x @ m.one, one=torch.randn(8)))
    assert [remainder.operations for remainder in summary.remainders] == [2 * 4 * 8]


def test_attention_and_products_count_as_work():
    summary = reported(besides(lambda m, x: F.scaled_dot_product_attention(x, x, x).sum()), torch.randn(2, 4, 8))
    (remainder,) = [remainder for remainder in summary.remainders if remainder.operations]
    assert remainder.operations == 2 * (2 * 4 * 4 * 8) * 2 and "scaled_dot_product" in remainder.node
    assert summary.share_of_operations == 1024 / (1024 + remainder.operations)


def test_without_example_inputs_nothing_is_known_of_the_work():
    prepared = prepare(fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval()))
    prepared(torch.randn(4, 8))
    assert report(convert(prepared)).share_of_operations is None
    assert str(report(convert(prepared))).startswith("1 of 1 layers in 8 bits, operations not counted; ")


def test_layers_whose_weights_alone_are_in_8_bits_are_reported():
    summary = reported(nn.Sequential(nn.Linear(8, 8)), scheme=QuantizationScheme(Choice(precision="weight-only")))
    assert (summary.layers, summary.weights_alone) == (1, 1)
    assert str(summary).startswith(
        "1 of 1 layers in 8 bits (1 of them in their weights alone), 100.0% of the operations"
    )


def test_layers_in_bfloat16_are_reported():
    scheme = QuantizationScheme(Choice(precision="bfloat16"))
    summary = reported(nn.Sequential(nn.Linear(8, 8)), scheme=scheme)
    (remainder,) = summary.remainders
    assert (summary.float_layers, remainder.reason, remainder.bytes_of_state) == (1, "the scheme says bfloat16", 2 * 72)


def test_the_report_of_a_program_that_ran_names_its_kernels():
    data = torch.randn(4, 8)
    program = convert(calibrated(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), data))
    assert report(program).kernels == {} and " on " not in str(report(program))
    program(data)
    summary = report(program)
    assert summary.kernels == kernels_used(program) and sum(summary.kernels.values()) >= 2
    name, count = next(iter(summary.kernels.items()))
    assert f"\n  on {name} ({count})" in str(summary)


def test_a_convolution_that_no_kernel_computes_counts_as_float():
    """Its padding is wider than its window, so it computes on float values, before it ran and after."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=4))
    images = torch.randn(1, 3, 16, 16)
    program = convert(calibrated(model, images))
    before = report(program)
    program(images)
    after = report(program)
    for summary in (before, after):
        (remainder,) = summary.remainders
        assert (summary.layers, summary.float_layers) == (1, 1)
        assert summary.share_of_operations is not None and summary.share_of_operations < 0.2
        assert remainder.node == "_2" and remainder.reason.startswith("no kernel on integers computes it")
    assert after.kernels["reference"] == 1


def test_a_convolution_padded_within_its_window_counts_as_8_bits():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2))
    summary = report(convert(calibrated(model, torch.randn(1, 3, 16, 16))))
    assert (summary.layers, summary.float_layers, summary.share_of_operations) == (2, 0, 1.0)
