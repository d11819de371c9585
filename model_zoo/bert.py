"""BERT (Devlin et al. 2019): token types, learned positions, norms after the shortcuts, a mask of padding.

The full size is that of bert-base-uncased: 12 layers of width 768, 109,482,240 parameters.
"""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

import torch
from torch import Tensor, nn
from torch.nn import functional

from model_zoo.registered_models import register_sizes
from model_zoo.zoo_model import ExampleInputs, built, vary_vectors

_EPSILON = 1e-12
"""The epsilon of the layer norms."""


class Embeddings(nn.Module):
    """The normalized sum of the embeddings of a token, its position and its type (which of two texts)."""

    places: Tensor

    def __init__(self, vocabulary: int, width: int, length: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("places", torch.arange(length).unsqueeze(0), persistent=False)
        for embedding in (self.tokens, self.positions, self.types):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, types: Tensor) -> Tensor:
        """Map tokens and their types, each (batch, length), to (batch, length, width)."""
        x = self.tokens(tokens) + self.types(types) + self.positions(self.places[:, : tokens.size(1)])
        return self.dropout(self.norm(x))


class Layer(nn.Module):
    """Attention to all tokens except padding, then a feed-forward network; each is normalized with its shortcut."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=_EPSILON)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(dropout)

    def in_heads(self, x: Tensor) -> Tensor:
        """Map (batch, length, width) to (batch, heads, length, width / heads)."""
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Map (batch, length, width) to the same; ``seen``, (batch, 1, 1, length), is false at padding."""
        query, key, value = self.in_heads(self.query(x)), self.in_heads(self.key(x)), self.in_heads(self.value(x))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        x = self.attention_norm(x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2))))
        return self.norm(x + self.dropout(self.narrow(functional.gelu(self.widen(x)))))


class BERT(nn.Module):
    """An encoder of one or two texts: a vector for each token, and one for the whole."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, hidden: int, layers: int, length: int, dropout: float = 0.1
    ) -> None:
        """Make the network; ``hidden`` is the width of the feed-forward networks, ``length`` the maximum length."""
        super().__init__()
        self.embeddings = Embeddings(vocabulary, width, length, dropout)
        self.layers = nn.ModuleList([Layer(width, heads, hidden, dropout) for _ in range(layers)])
        self.pool = nn.Linear(width, width)

    def forward(self, tokens: Tensor, types: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Map tokens, their types, 0 or 1, and a mask, 0 at padding, each (batch, length) of int64.

        Returns a vector for each token, (batch, length, width), and the pooled first one, (batch, width).
        """
        visible = (mask != 0).unsqueeze(1).unsqueeze(2)
        x = self.embeddings(tokens, types)
        for layer in self.layers:
            x = layer(x, visible)
        return x, torch.tanh(self.pool(x[:, 0]))


def pairs_of_texts(vocabulary: int, length: int) -> ExampleInputs:
    """Return a maker of one batch of tokens, types and masks, each (batch, length); token 0 pads at the end."""

    def example_inputs(batch: int = 1, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, vocabulary, (batch, length), generator=generator)
        ends = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
        middles = torch.randint(1, length // 2, (batch, 1), generator=generator)
        places = torch.arange(length)
        mask = (places < ends).long()
        return tokens * mask, (places >= middles).long() * mask, mask

    return example_inputs


_SOURCE = "Devlin et al. 2019, bert-base-uncased; random weights"

register_sizes(
    "bert",
    _SOURCE,
    {"text", "transformer"},
    (
        built(lambda: vary_vectors(BERT(30_522, width=768, heads=12, hidden=3072, layers=12, length=512))),
        pairs_of_texts(30_522, 128),
    ),
    (
        built(lambda: vary_vectors(BERT(50, width=16, heads=2, hidden=32, layers=2, length=16))),
        pairs_of_texts(50, 12),
    ),
    ", with 2 layers of 16",
)
