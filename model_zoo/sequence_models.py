"""Sequence models: a transformer encoder, and a classifier on a recurrent network kept as one call (section 2.3)."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_zoo.registered_models import register_sizes
from model_zoo.zoo_model import ExampleInputs, built


class SelfAttention(nn.Module):
    """Multi-head scaled dot-product attention, written out: three projections of one input, two products."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Map (batch, length, width) to the same; ``padding``, (batch, 1, 1, length), is true at masked tokens."""
        batch, length, width = x.size(0), x.size(1), x.size(2)
        query = self.query(x).view(batch, length, self.heads, -1).transpose(1, 2)
        key = self.key(x).view(batch, length, self.heads, -1).transpose(1, 2)
        value = self.value(x).view(batch, length, self.heads, -1).transpose(1, 2)
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(self.query.out_features / self.heads)
        weights = torch.softmax(scores.masked_fill(padding, float("-inf")), dim=-1)
        mixed = torch.matmul(weights, value).transpose(1, 2).reshape(batch, length, width)
        return self.out(mixed)


class EncoderLayer(nn.Module):
    """Attention and a feed-forward network, each after a layer norm and with a shortcut."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, hidden)
        self.linear2 = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        x = x + self.dropout(self.attention(self.norm1(x), padding))
        return x + self.dropout(self.linear2(functional.gelu(self.linear1(self.norm2(x)))))


class TransformerEncoder(nn.Module):
    """Vaswani et al. 2017, norms first: embedded tokens and positions, encoder layers, a mean over tokens."""

    def __init__(self, vocabulary: int, width: int, heads: int, hidden: int, layers: int, length: int) -> None:
        """Make the network for sequences of at most ``length`` tokens; token 0 is padding."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList([EncoderLayer(width, heads, hidden) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, (batch, length) of int64, to class scores, (batch, 10)."""
        padding = (tokens == 0).unsqueeze(1).unsqueeze(2)
        x = self.tokens(tokens) + self.positions[: tokens.size(1)]
        for layer in self.layers:
            x = layer(x, padding)
        mask = (tokens != 0).unsqueeze(-1).to(x.dtype)
        return self.classify((self.norm(x) * mask).sum(1) / mask.sum(1))


class LSTMClassifier(nn.Module):
    """A classifier on the two last states of a bidirectional LSTM, which capture keeps as one call."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=layers, batch_first=True, bidirectional=True)
        self.classify = nn.Linear(2 * width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, (batch, length) of int64, to class scores, (batch, 10)."""
        _, (hidden, _) = self.lstm(self.embedding(tokens))
        return self.classify(torch.cat([hidden[-2], hidden[-1]], dim=1))


def token_sequences(vocabulary: int, length: int) -> ExampleInputs:
    """Return a maker of one batch of token sequences, (batch, length) of int64, each padded with zeros at its end."""

    def example_inputs(batch: int = 1, seed: int = 0) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, vocabulary, (batch, length), generator=generator)
        lengths = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
        return (tokens * (torch.arange(length) < lengths),)

    return example_inputs


_ATTENTION = "Vaswani et al. 2017, with norms first; random weights"
_RECURRENT = "Hochreiter and Schmidhuber 1997, through torch.nn.LSTM; random weights"

register_sizes(
    "transformer_encoder",
    _ATTENTION,
    {"text", "transformer"},
    (
        built(lambda: TransformerEncoder(10_000, width=256, heads=8, hidden=1024, layers=6, length=128)),
        token_sequences(10_000, 128),
    ),
    (
        built(lambda: TransformerEncoder(50, width=16, heads=2, hidden=32, layers=2, length=12)),
        token_sequences(50, 12),
    ),
)
register_sizes(
    "lstm_classifier",
    _RECURRENT,
    {"text"},
    (built(lambda: LSTMClassifier(10_000, width=256, layers=2)), token_sequences(10_000, 64)),
    (built(lambda: LSTMClassifier(50, width=16, layers=1)), token_sequences(50, 12)),
    needs_leaves=True,
)
