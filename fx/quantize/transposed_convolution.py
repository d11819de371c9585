"""A transposed convolution with 8-bit weights, as a convolution whose channels become pixels (paper, section 6.2.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fx.operators.families import operators
from fx.quantize.convolution import QuantizedConv
from fx.quantize.declaration import listed, operation
from fx.quantize.kernels.kernel import Kernel, LayerData

_TRANSPOSED: dict[int | None, Any] = {row.dims: row.function for row in operators("transposed convolution")}


@operation
def swap_channels(weight: Tensor, groups: int) -> Tensor:
    """Return the weight of a transposed convolution with output channels first, as other layers have them.

    A second call swaps the channels back.

    >>> swap_channels(torch.zeros(4, 3, 2), groups=2).shape
    torch.Size([6, 2, 2])
    """
    return weight.unflatten(0, (groups, len(weight) // max(1, groups))).transpose(1, 2).flatten(0, 1)


@listed
class QuantizedConvTranspose(QuantizedConv):
    """Transposed convolution in one to three dimensions with 8-bit weights, output channels first.

    Kernels compute it as a convolution with a channel for each pixel that a stride skips. The pixels are put beside one
    another afterwards. So there are no products with the zeros that a transposed convolution inserts.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        output_padding: Sequence[int],
        groups: int = 1,
        dilation: Sequence[int] = (1,),
        has_bias: bool = True,
    ) -> None:
        """Create a layer whose tensors are still to be filled in; sizes have one number for each dimension.

        Args:
            in_channels: channels of the input.
            out_channels: channels of the output.
            kernel_size: size of the window.
            stride: steps of the window in the output.
            padding: elements cut off on both sides of the output.
            output_padding: additional elements at the end of the output.
            groups: the number of parts into which the channels are divided.
            dilation: steps inside the window.
            has_bias: whether there is a bias.
        """
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, has_bias)
        self.output_padding = tuple(output_padding)

    def _reference(self, input: Tensor) -> Tensor:
        weight = swap_channels(self.float_weight(), self.groups)
        return _TRANSPOSED[len(self.kernel_size)](input, weight, self.bias, *self._sizes())

    def _sizes(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.output_padding, self.groups, self.dilation

    def _check(self) -> None:
        super()._check()
        self._check_lengths(self.output_padding)

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return f"{super().extra_repr()}, output_padding={self.output_padding}"

    # The convolution. In each dimension, `stride` neighbours of the output depend only on a window of `_taps` elements
    # of the input.

    @property
    def _windows(self) -> list[int]:
        """The sizes of windows, dilation included; for a longer output, windows have zeros at their end."""
        sizes = zip(self.dilation, self.kernel_size, self.output_padding, strict=True)
        return [step * (size - 1) + 1 + more for step, size, more in sizes]

    @property
    def _taps(self) -> list[int]:
        return [-(-size // stride) for size, stride in zip(self._windows, self.stride, strict=True)]

    @property
    def _left_out(self) -> list[int]:
        """The number of elements on each side of the convolution's output that are cut off and so never computed."""
        sizes = zip(self._taps, self.padding, self.stride, strict=True)
        return [min(taps - 1, padding // stride) for taps, padding, stride in sizes]

    def _convolution(self) -> QuantizedConv:
        """Return the convolution, without its tensors."""
        taps, ones = self._taps, [1] * len(self.kernel_size)
        padding = [count - 1 - left_out for count, left_out in zip(taps, self._left_out, strict=True)]
        channels = self.out_channels * math.prod(self.stride)
        with torch.device("meta"):
            return QuantizedConv(self.in_channels, channels, taps, ones, padding, ones, self.groups, self.has_bias)

    def _kernels(self) -> Sequence[Kernel]:
        return self._convolution()._kernels()

    def _trial(self, shape: Sequence[int], largest: int) -> tuple[LayerData, Tensor]:
        return self._convolution()._trial(shape, largest)

    def _data(self) -> LayerData:
        bias = None if self.bias is None else self._for_each_pixel(self.bias)
        return LayerData(self._taps_of(self.weight), self._for_each_pixel(self.weight_scale), bias,
                         self._convolution()._sizes())  # fmt: skip

    def _for_each_pixel(self, channels: Tensor) -> Tensor:
        """Return tensors of output channels again for each pixel, in the order (group, pixels, channels)."""
        parts = channels.unflatten(0, (self.groups, 1, -1))
        return parts.expand(-1, math.prod(self.stride), -1).flatten().contiguous()

    def _taps_of(self, weight: Tensor) -> Tensor:
        dims = len(self.kernel_size)
        spread = weight.new_zeros(*weight.shape[:2], *[n * by for n, by in zip(self._taps, self.stride, strict=True)])
        inside = [slice(0, by * (size - 1) + 1, by) for by, size in zip(self.dilation, self.kernel_size, strict=True)]
        spread[(slice(None), slice(None), *inside)] = weight
        for dim, (count, stride) in enumerate(zip(self._taps, self.stride, strict=True)):
            spread = spread.unflatten(2 + 2 * dim, (count, stride))
        # later elements of the input are earlier ones of the window
        parts = spread.flip([2 + 2 * dim for dim in range(dims)]).unflatten(0, (self.groups, -1))
        pixels, taps = ([start + 2 * dim for dim in range(dims)] for start in (4, 3))
        return parts.permute(0, *pixels, 1, 2, *taps).flatten(0, dims + 1).contiguous()

    def _shaped(self, result: Tensor, input: Tensor) -> Tensor:
        """Put the channels of pixels beside one another, and cut off the padding."""
        dims = len(self.stride)
        rows = result.movedim(1, -1)  # the order in memory
        parts = rows.unflatten(-1, (self.groups, *self.stride, -1))
        order = [place for dim in range(dims) for place in (1 + dim, 2 + dims + dim)]
        together = parts.permute(0, *order, 1 + dims, 2 + 2 * dims)
        sizes = [size * by for size, by in zip(rows.shape[1:-1], self.stride, strict=True)]
        pixels = together.reshape(len(rows), *sizes, self.out_channels)
        for dim, length in enumerate(self._lengths(input)):
            first = self.padding[dim] - self._left_out[dim] * self.stride[dim]
            pixels = pixels.narrow(1 + dim, first, length)
        return super()._shaped(pixels.movedim(-1, 1), input)

    def _lengths(self, input: Tensor) -> list[int]:
        """Return the sizes of the output."""
        sizes = zip(input.shape[-len(self.stride) :], self.stride, self._windows, self.padding, strict=True)
        return [(size - 1) * stride + window - 2 * padding for size, stride, window, padding in sizes]
