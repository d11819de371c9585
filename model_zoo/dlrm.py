"""A recommender like DLRM (Naumov et al. 2019): products of embedded categories and of embedded numbers."""

# No postponed annotations here: a program that is captured from a model carries the types of its forward.

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from model_zoo.registered_models import register_sizes
from model_zoo.zoo_model import ExampleInputs, built


class DLRM(nn.Module):
    """A click predictor: a top network on products of all pairs of category embeddings and the embedded numbers."""

    pairs: Tensor

    def __init__(self, numbers: int, rows: Sequence[int], width: int, bottom: int, top: int) -> None:
        """Make the network.

        Args:
            numbers: number of numeric features.
            rows: number of values of each category.
            width: length of an embedding.
            bottom: hidden width of the network on numbers.
            top: hidden width of the network on products.
        """
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(numbers, bottom), nn.ReLU(), nn.Linear(bottom, width), nn.ReLU())
        self.embeddings = nn.ModuleList([nn.EmbeddingBag(count, width, mode="sum") for count in rows])
        count = len(rows) + 1
        self.register_buffer("pairs", torch.tril_indices(count, count, offset=-1), persistent=False)
        self.top = nn.Sequential(nn.Linear(width + self.pairs.shape[1], top), nn.ReLU(), nn.Linear(top, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """Map numbers, (batch, numbers), and categories, (batch, categories, ids) of int64, to (batch,) in 0 to 1."""
        x = self.bottom(dense)
        vectors = [x] + [bag(categories[:, index]) for index, bag in enumerate(self.embeddings)]
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        met = products[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, met], dim=1))).squeeze(1)


def clicks(numbers: int, rows: Sequence[int], ids: int = 2) -> ExampleInputs:
    """Return a maker of one batch of numbers, (batch, numbers), and ids, (batch, len(rows), ids) of int64."""

    def example_inputs(batch: int = 1, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        dense = torch.randn(batch, numbers, generator=generator)
        columns = [torch.randint(0, count, (batch, ids), generator=generator) for count in rows]
        return dense, torch.stack(columns, dim=1)

    return example_inputs


_ROWS, _FEW_ROWS = (20_000,) * 8, (30, 7, 12)

register_sizes(
    "dlrm",
    "after Naumov et al. 2019 (DLRM); random weights",
    {"recommendation"},
    (built(lambda: DLRM(13, _ROWS, 64, 512, 512)), clicks(13, _ROWS)),
    (built(lambda: DLRM(4, _FEW_ROWS, 8, 16, 16)), clicks(4, _FEW_ROWS)),
)
