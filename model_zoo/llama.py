"""Llama (Touvron et al. 2023): rotary positions, grouped queries, RMS norms, gated feed-forward networks.

The full size is that of SmolLM2-135M, the smallest public model for practical use with this architecture and grouped
queries: 30 layers of width 576, 9 heads of queries on 3 of keys and values, 134,515,008 parameters.
"""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_zoo.gpt2 import texts
from model_zoo.registered_models import register_sizes
from model_zoo.zoo_model import built, vary_vectors


class RMSNorm(nn.Module):
    """Normalization by the root of the mean square, with a learned scale."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


class RotaryPositions(nn.Module):
    """Rotation of pairs of features by angles that grow with the position (Su et al. 2021)."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, features: int, length: int, base: float) -> None:
        """Take the base of the rotation rates: per position, pair k turns by ``base ** (-2 * k / features)``."""
        super().__init__()
        speeds = base ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), torch.cat([speeds, speeds]))
        self.register_buffer("cosines", angles.cos().float(), persistent=False)
        self.register_buffer("sines", angles.sin().float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, heads, length, features) to the same."""
        first, second = x.chunk(2, dim=-1)
        length = x.size(2)
        return x * self.cosines[:length] + torch.cat([-second, first], dim=-1) * self.sines[:length]


class GroupedAttention(nn.Module):
    """Causal attention in which several heads of queries share one of keys and values (Ainslie et al. 2023)."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.features, self.shared = width // heads, heads // groups
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.features, bias=False)
        self.value = nn.Linear(width, groups * self.features, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def in_heads(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to (batch, heads, length, features)."""
        return x.view(x.size(0), x.size(1), -1, self.features).transpose(1, 2)

    def forward(self, x: Tensor, rotate: RotaryPositions) -> Tensor:
        """Map (batch, length, width) to the same."""
        query, key = rotate(self.in_heads(self.query(x))), rotate(self.in_heads(self.key(x)))
        key = key.repeat_interleave(self.shared, dim=1)
        value = self.in_heads(self.value(x)).repeat_interleave(self.shared, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class GatedNetwork(nn.Module):
    """A feed-forward network whose hidden layer is one projection times another through SiLU (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.widen = nn.Linear(width, hidden, bias=False)
        self.narrow = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to the same."""
        return self.narrow(functional.silu(self.gate(x)) * self.widen(x))


class DecoderLayer(nn.Module):
    """Attention and a feed-forward network, each after a norm and with a shortcut."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(width)
        self.attention = GroupedAttention(width, heads, groups)
        self.norm = RMSNorm(width)
        self.feed_forward = GatedNetwork(width, hidden)

    def forward(self, x: Tensor, rotate: RotaryPositions) -> Tensor:
        """Map (batch, length, width) to the same."""
        x = x + self.attention(self.attention_norm(x), rotate)
        return x + self.feed_forward(self.norm(x))


class Llama(nn.Module):
    """A decoder that returns scores for the token after each token."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        groups: int,
        hidden: int,
        layers: int,
        length: int,
        base: float = 10_000.0,
        is_tied: bool = True,
    ) -> None:
        """Make the network.

        Args:
            vocabulary: number of tokens.
            width: features of a token.
            heads: number of query heads.
            groups: number of key and value heads.
            hidden: width of the feed-forward networks.
            layers: number of layers.
            length: maximum length of a text.
            base: base of the rotary positions.
            is_tied: whether the embedding and the output layer share one matrix.
        """
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.rotate = RotaryPositions(width // heads, length, base)
        self.layers = nn.ModuleList([DecoderLayer(width, heads, groups, hidden) for _ in range(layers)])
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if is_tied:
            self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.04)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, (batch, length) of int64, to scores, (batch, length, vocabulary)."""
        x = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.rotate)
        return self.head(self.norm(x))


_SOURCE = "Touvron et al. 2023, as SmolLM2-135M (Ben Allal et al. 2025); random weights"


def _llama(vocabulary: int, base: float = 10_000.0, **sizes: Any) -> Callable[[], nn.Module]:
    return built(lambda: vary_vectors(Llama(vocabulary, base=base, **sizes)))


register_sizes(
    "llama",
    _SOURCE,
    {"text", "transformer"},
    (_llama(49_152, 100_000.0, width=576, heads=9, groups=3, hidden=1536, layers=30, length=8192), texts(49_152, 64)),
    (_llama(50, width=16, heads=4, groups=2, hidden=32, layers=2, length=16), texts(50, 12)),
    ", cut to 2 layers of 16",
)
