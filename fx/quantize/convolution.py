"""A convolution with 8-bit weights, on oneDNN's kernels (paper, section 6.2.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.errors import QuantizationError
from fx.quantize import planar
from fx.quantize.affine import Affine
from fx.quantize.arithmetic import dequantize, quantize
from fx.quantize.layers import KERNELS, QuantizedLayer, listed

_CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@listed
class QuantizedConv(QuantizedLayer):
    """Convolution in one to three dimensions with 8-bit weights."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int = 1,
        has_bias: bool = True,
    ) -> None:
        """A layer whose tensors are still to be filled in; sizes have one number for each dimension.

        Args:
            in_channels: channels of the input.
            out_channels: channels of the output.
            kernel_size: size of the window.
            stride: steps of the window.
            padding: zeros on both sides.
            dilation: steps inside the window.
            groups: into how many parts the channels are divided.
            has_bias: whether there is a bias.
        """
        super().__init__((out_channels, in_channels // groups, *kernel_size), has_bias)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = tuple(kernel_size)
        self.stride = tuple(stride)
        self.padding = tuple(padding)
        self.dilation = tuple(dilation)
        self.groups = groups

    @property
    def _sizes(self) -> tuple[list[int], list[int], list[int], int]:
        return list(self.stride), list(self.padding), list(self.dilation), self.groups

    def _reference(self, input: Tensor) -> Tensor:
        return _CONVOLUTIONS[len(self.kernel_size)](input, self.real_weight(), self.bias, *self._sizes)

    def _kernel(self, input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        dims = len(self.kernel_size)
        if input.dim() not in (dims + 1, dims + 2) or input.shape[-dims - 1] != self.in_channels:
            raise QuantizationError(
                f"a convolution of {self.in_channels} channels was given a tensor of shape {tuple(input.shape)}",
                value=str(self),
            )
        if self._has_windows_of_padding:
            result = self._reference(dequantize(input, scale, zero_point))
            return result if output is None else quantize(result, **output.settings)
        batch = input if input.dim() == dims + 2 else input[None]
        if output is not None and dims == 2 and planar.is_available():
            result = planar.convolution(batch, scale, zero_point, self._params(), output)
        else:
            weight, zero_points = self._packed_weight(batch.shape)
            target = (1.0, 0, torch.float32) if output is None else (output.scale, output.zero_point, torch.uint8)
            result = KERNELS.qconv_pointwise(
                batch, scale, zero_point, weight, self.weight_scale, zero_points, self.bias, *self._sizes, *target,
                "none", [], "",
            )  # fmt: skip
        return result if input.dim() == dims + 2 else result[0]

    @property
    def _has_windows_of_padding(self) -> bool:
        """Whether a window can lie in the padding as a whole, for which oneDNN's kernel reads memory of others."""
        sizes = zip(self.padding, self.dilation, self.kernel_size, strict=True)
        return any(padding > dilation * (size - 1) for padding, dilation, size in sizes)

    def _params(self) -> Any:
        """The weight for torch's convolution of images, packed on the first call."""
        if self._packed_params is None:
            self._check()
            self._packed_params = planar.pack(self.weight, self.weight_scale, self.bias, self._sizes)
        return self._packed_params

    def _pack(self, shape: Sequence[int] | None) -> Tensor:
        # The zero point only says that there is one. Images of another size than the first may have their weight put
        # into another order in each call; their number makes no difference.
        known = None if shape is None else list(shape)
        return KERNELS.qconv_prepack(self.weight, self.weight_scale, 1.0, 1, *self._sizes, known)

    def _shape(self) -> tuple[int, ...]:
        return self.out_channels, self.in_channels // self.groups, *self.kernel_size

    def _check(self) -> None:
        super()._check()
        dims = len(self.kernel_size)
        sizes = (self.stride, self.padding, self.dilation)
        if dims not in _CONVOLUTIONS or any(len(one) != dims for one in sizes) or math.prod(self.kernel_size) < 1:
            raise QuantizationError("the sizes of a convolution are of different lengths", value=str(self))

    def extra_repr(self) -> str:
        """Sizes."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, bias={self.has_bias}"
        )
