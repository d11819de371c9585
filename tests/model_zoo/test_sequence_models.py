"""model_zoo.sequence_models: attention against torch's own, and the recurrent network as one call."""

import torch
from torch.nn import functional

import fx
from model_zoo import get_model
from model_zoo.sequence_models import SelfAttention


def test_attention_is_torchs_scaled_dot_product_attention():
    attention, x = SelfAttention(8, heads=2), torch.randn(3, 5, 8)
    padding = torch.zeros(3, 1, 1, 5, dtype=torch.bool)
    padding[1, ..., 3:] = True
    heads = [layer(x).view(3, 5, 2, 4).transpose(1, 2) for layer in (attention.query, attention.key, attention.value)]
    mixed = functional.scaled_dot_product_attention(*heads, attn_mask=~padding)
    expected = attention.out(mixed.transpose(1, 2).reshape(3, 5, 8))
    torch.testing.assert_close(attention(x, padding), expected)


def test_padding_does_not_change_the_output_of_the_encoder():
    model = get_model("transformer_encoder_small").build()
    tokens = torch.tensor([[3, 1, 4, 1, 5, 0, 0, 0]])
    torch.testing.assert_close(model(tokens), model(tokens[:, :5]))


def test_encoder_is_captured_for_every_batch_size_and_length():
    model = get_model("transformer_encoder_small").build()
    captured = fx.symbolic_trace(model)
    for batch, length in ((1, 12), (4, 7)):
        tokens = torch.randint(1, 50, (batch, length))
        assert torch.equal(captured(tokens), model(tokens))


def test_lstm_is_captured_as_one_call():
    captured = fx.symbolic_trace(get_model("lstm_classifier_small").build())
    calls = [node.target for node in captured.graph.nodes if node.op == "call_module"]
    assert calls == ["embedding", "lstm", "classify"]
