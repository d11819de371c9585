"""Makers of the inputs and layers of blocks, each called when a block is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Maker = Callable[[], Any]
"""A function that makes an input or a layer from the global random numbers."""


def deferred(make: Callable[..., Any]) -> Callable[..., Maker]:
    """Return a function that takes the arguments of ``make``, and returns a maker that calls it with them."""

    def with_arguments(*arguments: Any, **options: Any) -> Maker:
        return lambda: make(*arguments, **options)

    return with_arguments


normal, uniform, integers = map(deferred, (torch.randn, torch.rand, torch.randint))
linear, conv, batch_norm = map(deferred, (nn.Linear, nn.Conv2d, nn.BatchNorm2d))
layer_norm, embedding = map(deferred, (nn.LayerNorm, nn.Embedding))


def parameter(*shape: int) -> Maker:
    """Return a maker of a parameter."""
    return lambda: nn.Parameter(torch.randn(shape))


def conv_bn(inputs: int, outputs: int, size: int, **options: Any) -> Maker:
    """Return a maker of a convolution without bias before a batch norm."""
    return lambda: nn.Sequential(nn.Conv2d(inputs, outputs, size, bias=False, **options), nn.BatchNorm2d(outputs))


def padding_mask(*lengths: int) -> Maker:
    """Return a maker of a mask, int64 (batch, length): 1 for tokens, 0 for the padding after them."""
    return lambda: (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).to(torch.int64)
