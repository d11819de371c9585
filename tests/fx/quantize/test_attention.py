"""Attention is split into its parts with the same result, and its projections are in 8 bits."""

import copy

import pytest
import torch
import torch.nn.functional as F
from building import Calling, decibels
from step_check import calibrated
from torch import nn

import fx
from fx.canonical import canonical_form
from fx.quantize import convert, prepare, prepare_qat, reference, report, zero_padding
from fx.quantize.decomposition import decompose


def split(model, *inputs, training=False):
    """The program with attention split; it computes the same as the model."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases that are not zero
    model.train(training)
    program = canonical_form(fx.symbolic_trace(model)).graph_module
    reasons = decompose(program)
    program.graph.lint()
    expected = model(*inputs)
    torch.testing.assert_close(program(*inputs), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return program, reasons


class Attending(nn.Module):
    def __init__(self, attention, call):
        super().__init__()
        self.attention, self.call = attention, call

    def forward(self, x, memory, mask, padding):
        return self.call(self.attention, x, memory, mask, padding)


def both(result):
    return result[0], result[1]


CALLS = {
    "itself": lambda a, x, m, mask, pad: both(a(x, x, x)),
    "first": lambda a, x, m, mask, pad: a(x, x, x, need_weights=False)[0],
    "others": lambda a, x, m, mask, pad: both(a(x, m, m)),
    "all_others": lambda a, x, m, mask, pad: both(a(x, m, m * 2)),
    "query_is_value": lambda a, x, m, mask, pad: both(a(x, x + 1, x)),
    "each_head": lambda a, x, m, mask, pad: both(a(x, m, m, average_attn_weights=False)),
    "masked": lambda a, x, m, mask, pad: both(a(x, m, m, attn_mask=mask)),
    "masked_alone": lambda a, x, m, mask, pad: a(x, m, m, None, False, mask)[0],
    "padded": lambda a, x, m, mask, pad: both(a(x, m, m, key_padding_mask=pad)),
    "masked_and_padded": lambda a, x, m, mask, pad: a(x, m, m, pad, False, mask)[0],
}
MASKS = {
    "bool": torch.tensor([[False, True, False, True]] * 3),
    "float": torch.randn(3, 4, generator=torch.Generator().manual_seed(1)),
    "heads": torch.randn(2 * 2, 3, 4, generator=torch.Generator().manual_seed(1)),
}
PADDING = {"bool": torch.tensor([[False] * 4, [False, False, True, True]]), "float": torch.randn(2, 4)}


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CALLS)
def test_attention_computes_the_same(name, mask, batch_first):
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    if not batch_first:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    attention = nn.MultiheadAttention(8, 2, batch_first=batch_first, bias=mask != "float")
    padding = PADDING["float" if mask == "heads" else "bool"]
    program, reasons = split(Attending(attention, CALLS[name]), x, memory, MASKS[mask], padding)
    assert not reasons and not program.graph.find_nodes(op="call_module")
    wide = 1 if name in ("itself", "first") else 2 if name in ("others", "each_head") or "ed" in name else 3
    assert len(program.graph.find_nodes(op="call_function", target=F.linear)) == wide + 1


@pytest.mark.parametrize("name", ["itself", "first", "others", "each_head", "masked", "masked_alone"])
def test_attention_without_batch_computes_the_same(name):
    inputs = torch.randn(3, 8), torch.randn(4, 8), MASKS["bool"], PADDING["bool"][1]
    assert not split(Attending(nn.MultiheadAttention(8, 2), CALLS[name]), *inputs)[1]


def test_keys_and_values_of_other_sizes_have_layers_of_their_own():
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True)
    call = lambda a, x, m, mask, pad: both(a(x, m[..., :6], m[..., :4]))  # noqa: E731
    program, reasons = split(Attending(attention, call), torch.randn(2, 3, 8), torch.randn(2, 4, 8), None, None)
    assert not reasons and len(program.graph.find_nodes(op="call_function", target=F.linear)) == 4


def test_both_results_may_be_used_as_one_value():
    attention = nn.MultiheadAttention(8, 2)
    assert not split(Attending(attention, lambda a, x, m, mask, pad: a(x, x, x)), *[torch.randn(3, 8)] * 4)[1]
    call = lambda a, x, m, mask, pad: a(x, x, x, need_weights=False)  # noqa: E731
    assert not split(Attending(attention, call), *[torch.randn(3, 8)] * 4)[1]


def test_attention_that_adds_keys_of_its_own_stays_whole_and_the_report_says_why():
    model, x = Attending(nn.MultiheadAttention(8, 2, add_bias_kv=True), CALLS["itself"]), torch.randn(3, 2, 8)
    reason = "it adds its own keys to its input"
    assert list(split(model, x, x, None, None)[1].values()) == [reason]
    summary = report(convert(calibrated(model, x, x, None, None)))
    assert (
        reason in [remainder.reason for remainder in summary.remainders if remainder.bytes_of_state]
        and summary.float_layers == 1
    )


LAYER = {"d_model": 8, "nhead": 2, "dim_feedforward": 16}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:Support for mismatched")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", F.gelu, nn.SiLU()])
def test_blocks_of_transformers_compute_the_same(norm_first, activation):
    settings = {**LAYER, "norm_first": norm_first, "activation": activation, "batch_first": True}
    x, memory, mask = torch.randn(2, 3, 8), torch.randn(2, 4, 8), nn.Transformer.generate_square_subsequent_mask(3)
    padding = torch.tensor([[False] * 3, [False, False, True]])
    encoder, decoder = nn.TransformerEncoderLayer(**settings), nn.TransformerDecoderLayer(**settings)
    whole = nn.Transformer(8, 2, 1, 1, 16, batch_first=True, norm_first=norm_first, activation=activation)
    for model, call in (
        (encoder, lambda block, x, memory, mask, padding: block(x)),
        (encoder, lambda block, x, memory, mask, padding: block(x, mask)),
        (
            nn.TransformerEncoder(encoder, 2, nn.LayerNorm(8)),
            lambda block, x, memory, mask, padding: block(x, mask=mask, src_key_padding_mask=padding),
        ),
        (decoder, lambda block, x, memory, mask, padding: block(x, memory, mask)),
        (
            nn.TransformerDecoder(decoder, 2),
            lambda block, x, memory, mask, padding: block(x, memory, mask, None, padding),
        ),
        (whole, lambda block, x, memory, mask, padding: block(memory, x, tgt_mask=mask)),
    ):
        program, reasons = split(Attending(copy.deepcopy(model), call), x, memory, mask, padding)
        assert not reasons
        kinds = {type(program.get_submodule(str(node.target))) for node in program.graph.find_nodes(op="call_module")}
        assert kinds <= {nn.Linear, nn.LayerNorm, nn.Dropout, nn.SiLU}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("padding", ["last", "first", "none", "float", "alone"])
def test_encoders_leave_zeros_in_place_of_padding_as_nested_tensors_do(padding):
    mask = torch.tensor([[False] * 4, [False, False, True, True]])
    masks = {"last": mask, "first": mask.flip(1), "none": mask & False, "alone": mask[1],
             "float": torch.zeros(2, 4).masked_fill(mask, -torch.inf)}[padding]  # fmt: skip
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**LAYER, batch_first=True), 2, nn.LayerNorm(8))
    call = lambda block, x, m, mask, pad: block(x, src_key_padding_mask=pad).mean(-2)  # noqa: E731
    with torch.no_grad():
        x = torch.randn(4, 8) if padding == "alone" else torch.randn(2, 4, 8)
        program, reasons = split(Attending(encoder, call), x, x, None, masks)
    assert not reasons and program.graph.find_nodes(op="call_function", target=zero_padding)


class Encoder(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(**LAYER, dropout=dropout, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


DATA = torch.randn(8, 5, 8, generator=torch.Generator().manual_seed(0))


def test_projections_are_in_8_bits():
    model = Encoder().eval()
    prepared = calibrated(model, DATA)
    program, meaning = convert(prepared), reference(prepared)
    with torch.no_grad():
        assert torch.allclose(prepared(DATA), model(DATA), atol=1e-5)
        assert decibels(program(DATA), model(DATA)) > 25 and decibels(program(DATA), meaning(DATA)) > 30
    summary = report(program)
    assert (summary.layers, summary.float_layers) == (2 * 4 + 1, 0) and summary.share_of_operations > 0.8
    weights = sum(
        parameter.numel() for name, parameter in model.named_parameters() if "weight" in name and "norm" not in name
    )
    assert summary.bytes_in_8_bits == weights


def test_attention_is_trained_with_dropout_and_rounding(tmp_path):
    program = prepare_qat(fx.symbolic_trace(Encoder(dropout=0.5))).train()
    assert not torch.equal(program(DATA), program(DATA))
    program(DATA).sum().backward()
    assert program.get_parameter("encoder.layers.0.self_attn.in_proj_weight").grad is not None
    program.eval()
    with torch.no_grad():
        quantized = convert(program)
        assert decibels(quantized(DATA), program(DATA)) > 35
    assert report(quantized).layers == 2 * 4 + 1
    fx.save(quantized, tmp_path / "encoder.fx")
    assert torch.equal(fx.load(tmp_path / "encoder.fx")(DATA), quantized(DATA))


def test_attention_as_a_function_is_split_too():
    def attend(model, x):
        a = model.a
        return F.multi_head_attention_forward(
            x, x, x, 8, 2, a.in_proj_weight, a.in_proj_bias, None, None, False, 0.0, a.out_proj.weight,
            a.out_proj.bias, training=False,
        )[0]  # fmt: skip

    program = fx.symbolic_trace(Calling(attend, a=nn.MultiheadAttention(8, 2)))
    assert program.graph.find_nodes(op="call_function", target=F.multi_head_attention_forward)
    prepared = prepare(program)
    x = torch.randn(3, 2, 8)
    torch.testing.assert_close(prepared(x), program(x), rtol=1e-4, atol=1e-5)
    assert report(convert(prepared)).layers == 2
