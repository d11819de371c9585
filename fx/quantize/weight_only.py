"""Linear layers on float values with 8-bit weights, for where reading the weight takes the time (section 6.2.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.quantize.arithmetic import dequantize_channels, is_recorded
from fx.quantize.declaration import operation

_AT_A_TIME = 1 << 19
"""Elements of a weight that are float values at a time, so that these stay in the cache."""


@operation
def weight_only_linear(input: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear`` with a weight of integers, parts of which become float values as they are needed.

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
