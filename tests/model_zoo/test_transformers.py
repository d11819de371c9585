"""model_zoo.bert, gpt2, vit and llama: the sizes of the originals, and the masks of their attention."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import fx
from model_zoo import get_model
from model_zoo.bert import BERT
from model_zoo.gpt2 import GPT2
from model_zoo.llama import GroupedAttention, Llama, RMSNorm, RotaryPositions
from model_zoo.vit import Attention, VisionTransformer

SMALL = ["bert_small", "gpt2_small", "llama_small", "vit_small"]


def vit(patch: int, width: int, heads: int) -> VisionTransformer:
    return VisionTransformer(224, patch, width, heads, layers=12, classes=1000)


ORIGINALS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "bert-base-uncased": (lambda: get_model("bert").build(), 109_482_240),
    "bert-large-uncased": (
        lambda: BERT(30_522, width=1024, heads=16, hidden=4096, layers=24, length=512),
        335_141_888,
    ),
    "gpt2": (lambda: get_model("gpt2").build(), 124_439_808),
    "gpt2-medium": (lambda: GPT2(50_257, width=1024, heads=16, layers=24, length=1024), 354_823_168),
    "ViT-Ti/16": (lambda: get_model("vit").build(), 5_717_416),
    "ViT-B/16": (lambda: vit(16, 768, 12), 86_567_656),
    "SmolLM2-135M": (lambda: get_model("llama").build(), 134_515_008),
    "Llama-3.2-1B": (
        lambda: Llama(128_256, width=2048, heads=32, groups=8, hidden=8192, layers=16, length=8),
        1_235_814_400,
    ),
}


@pytest.mark.parametrize("original", ORIGINALS)
def test_a_model_has_as_many_parameters_as_the_original(original: str) -> None:
    make, count = ORIGINALS[original]
    with torch.device("meta"):  # weights without elements
        model = make()
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_names_shapes_and_order_of_the_vision_transformer_are_those_of_timms() -> None:
    with torch.device("meta"):
        state = vit(16, 192, 3).state_dict()
    listing = repr([(name, tuple(tensor.shape)) for name, tensor in state.items()])
    assert (
        hashlib.sha256(listing.encode()).hexdigest()
        == "7e922d5a885139bee01be0d8dd832f731a6ef5800ae984e72f72ec94bc261adf"
    )


@pytest.mark.parametrize("name", SMALL)
def test_a_capture_takes_every_batch_size_and_length(name: str) -> None:
    zoo = get_model(name)
    model = zoo.build()
    captured = fx.capture(model, zoo.example_inputs(2), how="symbolic")
    inputs = zoo.example_inputs(3)
    torch.testing.assert_close(captured(*inputs), model(*inputs), rtol=0, atol=0)
    if name != "vit_small":
        inputs = tuple(value[:, :7] for value in inputs)
        torch.testing.assert_close(captured(*inputs), model(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["gpt2_small", "llama_small"])
def test_a_later_token_does_not_change_earlier_scores(name: str) -> None:
    model = get_model(name).build()
    (tokens,) = get_model(name).example_inputs(2)
    changed = tokens.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 50
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :8], after[:, :8])
    assert not torch.isclose(before[:, 8:], after[:, 8:]).all(-1).any()


@pytest.mark.parametrize("name", ["gpt2_small", "llama_small"])
def test_one_matrix_embeds_and_scores_in_the_program_too(name: str) -> None:
    captured = fx.symbolic_trace(get_model(name).build())
    assert captured.get_parameter("head.weight") is captured.get_parameter("tokens.weight")


def test_padding_does_not_change_the_vectors_of_a_text_but_types_and_positions_do() -> None:
    model = get_model("bert_small").build()
    tokens, types, mask = (value[:, :8] for value in get_model("bert_small").example_inputs(2))
    mask = (torch.arange(8) < 5).long().expand(2, -1)
    vectors, pooled = model(tokens, types, mask)
    padded = torch.where(mask == 1, tokens, tokens.flip(1) + 1)
    for first, other in zip(model(padded, types, mask), (vectors, pooled), strict=True):
        torch.testing.assert_close(first[:, :5], other[:, :5])
    assert not torch.isclose(model(tokens, 1 - types, mask)[1], pooled, atol=1e-3).all()
    assert not torch.isclose(model(tokens.flip(1), types, torch.ones_like(mask))[1], pooled, atol=1e-3).all()


def test_grouped_queries_are_torchs() -> None:
    attention, rotate, x = (
        GroupedAttention(16, heads=4, groups=2),
        RotaryPositions(4, 8, 10_000.0),
        torch.randn(2, 5, 16),
    )
    heads = [attention.in_heads(layer(x)) for layer in (attention.query, attention.key, attention.value)]
    turned = (rotate(heads[0]), rotate(heads[1]), heads[2])
    mixed = functional.scaled_dot_product_attention(*turned, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(attention(x, rotate), attention.out(mixed.transpose(1, 2).reshape(2, 5, 16)))


def test_turned_queries_and_keys_meet_by_their_distance() -> None:
    rotate = RotaryPositions(8, 16, 100.0)
    query, key = (rotate(torch.randn(8).expand(1, 1, 16, 8))[0, 0] for _ in range(2))
    products = query @ key.T
    for distance in (0, 3, -5):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert not torch.isclose(products[0, 0], products[0, 3], atol=1e-2)


def test_rms_norm_is_torchs() -> None:
    ours, theirs, x = RMSNorm(8), nn.RMSNorm(8, eps=1e-5), torch.randn(3, 8)
    ours.weight = theirs.weight = nn.Parameter(torch.rand(8))
    torch.testing.assert_close(ours(x), theirs(x))


def test_attention_that_is_written_out_is_torchs() -> None:
    attention, x = Attention(8, heads=2), torch.randn(3, 5, 8)
    query, key, value = (part.view(3, 5, 2, 4).transpose(1, 2) for part in attention.qkv(x).chunk(3, -1))
    mixed = functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(attention(x), attention.proj(mixed.transpose(1, 2).reshape(3, 5, 8)))
