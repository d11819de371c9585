"""A linear layer with 8-bit weights (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.errors import QuantizationError
from fx.quantize.declaration import listed
from fx.quantize.kernels import layer_kernels
from fx.quantize.kernels.kernel import Kernel, LayerData
from fx.quantize.kernels.trials import alternating, summed_channels
from fx.quantize.layers import QuantizedLayer

_TRIED = 1 << 26
"""The bytes of weight in a trial of kernels: more than a cache holds."""


@listed
class QuantizedLinear(QuantizedLayer):
    """``F.linear`` with 8-bit weights."""

    def __init__(self, in_features: int, out_features: int, has_bias: bool = True) -> None:
        """Create a layer whose tensors are still to be filled in.

        Args:
            in_features: length of the last dimension of the input.
            out_features: length of the last dimension of the output.
            has_bias: whether there is a bias.
        """
        super().__init__((out_features, in_features), has_bias)
        self.in_features = in_features
        self.out_features = out_features

    def _reference(self, input: Tensor) -> Tensor:
        return F.linear(input, self.float_weight(), self.bias)

    def _kernels(self) -> Sequence[Kernel]:
        return layer_kernels.LINEAR

    def _rows(self, input: Tensor) -> Tensor:
        if input.shape[-1] != self.in_features:
            raise QuantizationError(
                f"a linear layer of {self.in_features} inputs was given {input.shape[-1]}", value=str(self)
            )
        return input if input.dim() == 2 else input.reshape(-1, self.in_features)

    def _shaped(self, result: Tensor, input: Tensor) -> Tensor:
        return result if input.dim() == 2 else result.view(*input.shape[:-1], self.out_features)

    def _trial(self, shape: Sequence[int], largest: int) -> tuple[LayerData, Tensor]:
        channels = min(self.out_features, max(1, _TRIED // self.in_features))
        weight = alternating(largest, (channels, self.in_features))
        bias = torch.zeros(channels) if self.has_bias else None
        return LayerData(weight, torch.ones(channels), bias), weight[:, 0].double() * summed_channels(weight.shape)

    def _shape(self) -> tuple[int, ...]:
        return self.out_features, self.in_features

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.has_bias}"
