"""Operations on float values with 8-bit weights: embeddings and linear layers (paper, section 6.2.1)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.quantize.arithmetic import dequantize_channels, is_recorded
from fx.quantize.declaration import operation

_AT_A_TIME = 1 << 19
"""Elements of a weight dequantized at a time, so that these stay in the cache. With a weight of 4096 x 4096, a linear
layer takes a twentieth of the time for one row, a ninth for 16."""


@operation
def weight_only_linear(input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``F.linear`` with a weight of integers, dequantized part by part.

    Args:
        input: float values, of shape (..., inputs).
        weight: int8, of shape (outputs, inputs).
        scale: of each output, float32.
        bias: float values, of shape (outputs,).

    >>> weight_only_linear(torch.ones(1, 2), torch.tensor([[1, 2]], dtype=torch.int8), torch.tensor([0.5]))
    tensor([[1.5000]])
    """
    needs_gradient = torch.is_grad_enabled() and input.requires_grad
    if weight.numel() <= _AT_A_TIME or needs_gradient or is_recorded():
        return F.linear(input, dequantize_channels(weight, scale), bias)
    rows = input.reshape(-1, input.shape[-1])
    result = rows.new_empty(len(rows), len(weight))
    outputs = max(1, _AT_A_TIME // weight.shape[1])
    for part, into in zip(weight.split(outputs), result.split(outputs, 1), strict=True):
        into.copy_(rows @ part.to(rows.dtype).t())
    result.mul_(scale)
    result = result if bias is None else result.add_(bias)
    return result.view(*input.shape[:-1], len(weight))


@operation
def embedding(input: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """Return the rows of a weight of integers at the indices ``input``, as float values.

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
    """Return sums, averages or largest values of bags of rows of a weight of integers, as float values.

    Args:
        input: indices, of shape (bags, rows in each), or in one dimension with ``offsets``.
        weight: int8, of shape (rows, features).
        scale: of each row, float32.
        offsets: where in ``input`` each bag begins.
        mode: ``"sum"``, ``"mean"`` or ``"max"``.
        per_sample_weights: the factor of each row, for sums.
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
