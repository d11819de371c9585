"""Embeddings with 8-bit weights: only the rows that are looked up become float values (paper, section 6.2.1)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.quantize.declaration import operation


@operation
def embedding(input: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The rows of a weight of integers at the indices ``input``, as float values.

    Args:
        input: integers of any shape.
        weight: int8, of shape (rows, features).
        scale: of each row, float32.

    >>> embedding(torch.tensor([1]), torch.tensor([[1, 2], [3, 4]], dtype=torch.int8), torch.tensor([1.0, 0.5]))
    tensor([[1.5000, 2.0000]])
    """
    return F.embedding(input, weight).float() * F.embedding(input, scale.unsqueeze(1))


@operation
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    scale: Tensor,
    offsets: Tensor | None = None,
    mode: str = "mean",
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, averages or largest values of bags of rows of a weight of integers, as float values.

    Args:
        input: indices, of shape (bags, rows in each), or in one dimension with ``offsets``.
        weight: int8, of shape (rows, features).
        scale: of each row, float32.
        offsets: where in ``input`` each bag begins.
        mode: ``"sum"``, ``"mean"`` or ``"max"``.
        per_sample_weights: what each row is multiplied by, for sums.
        include_last_offset: whether ``offsets`` ends with the end of the last bag.
        padding_idx: a row that does not count.
    """
    rows = embedding(input.reshape(-1), weight, scale)
    place = torch.arange(len(rows), device=input.device).view(input.shape)
    if padding_idx is not None or len(rows) == 0:
        nothing = len(rows)
        place = place if padding_idx is None else torch.where(input == padding_idx % len(weight), nothing, place)
        padding_idx = None if padding_idx is None else nothing
        rows = torch.cat((rows, rows.new_zeros(1, rows.shape[1])))
    settings: dict[str, Any] = {"mode": mode, "include_last_offset": include_last_offset, "padding_idx": padding_idx}
    return F.embedding_bag(place, rows, offsets, per_sample_weights=per_sample_weights, **settings)
