"""GPT-2 (Radford et al. 2019): learned positions, norms before the layers, a causal mask, one matrix for words.

The full size is that of the smallest version, gpt2: 12 layers of width 768, 124,439,808 parameters.
"""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_zoo.registered_models import register_sizes
from model_zoo.zoo_model import ExampleInputs, built, vary_vectors


class CausalAttention(nn.Module):
    """Causal multi-head attention, written out: one projection, a mask, two products."""

    earlier: Tensor

    def __init__(self, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("earlier", torch.ones(length, length, dtype=torch.bool).tril(), persistent=False)

    def in_heads(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to (batch, heads, length, width / heads)."""
        return x.view(x.size(0), x.size(1), self.heads, self.width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        query, key, value = self.project(x).split(self.width, dim=2)
        query, key, value = self.in_heads(query), self.in_heads(key), self.in_heads(value)
        length = x.size(1)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.width // self.heads)
        scores = scores.masked_fill(~self.earlier[:length, :length], float("-inf"))
        mixed = self.dropout(functional.softmax(scores, dim=-1)) @ value
        return self.out(mixed.transpose(1, 2).contiguous().view(x.size(0), length, self.width))


class Block(nn.Module):
    """Attention and a feed-forward network, each after a layer norm and with a shortcut."""

    def __init__(self, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, length, dropout)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.activation = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.narrow(self.activation(self.widen(self.norm(x)))))


class GPT2(nn.Module):
    """A decoder that returns scores for the token after each token."""

    places: Tensor

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int, dropout: float = 0.1) -> None:
        """Make the network for texts of at most ``length`` tokens."""
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, length, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("places", torch.arange(length), persistent=False)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, (batch, length) of int64, to scores, (batch, length, vocabulary)."""
        x = self.dropout(self.tokens(tokens) + self.positions(self.places[: tokens.size(1)]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def texts(vocabulary: int, length: int) -> ExampleInputs:
    """Return a maker of one batch of tokens, (batch, length) of int64, without padding."""

    def example_inputs(batch: int = 1, seed: int = 0) -> tuple[Tensor]:
        return (torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed)),)

    return example_inputs


_SOURCE = "Radford et al. 2019, the smallest GPT-2; random weights"

register_sizes(
    "gpt2",
    _SOURCE,
    {"text", "transformer"},
    (built(lambda: vary_vectors(GPT2(50_257, width=768, heads=12, layers=12, length=1024))), texts(50_257, 64)),
    (built(lambda: vary_vectors(GPT2(50, width=16, heads=2, layers=2, length=16))), texts(50, 12)),
    ", cut to 2 layers of 16",
)
