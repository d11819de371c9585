"""A convolution with 8-bit weights (paper, section 6.2.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from fx.argument_types import Bounds, checked
from fx.errors import QuantizationError
from fx.operators.families import operators
from fx.quantize.affine import Size
from fx.quantize.declaration import listed
from fx.quantize.kernels import layer_kernels
from fx.quantize.kernels.kernel import Kernel, LayerData
from fx.quantize.kernels.trials import alternating, summed_channels
from fx.quantize.layers import QuantizedLayer

_CONVOLUTIONS: dict[int | None, Any] = {row.dims: row.function for row in operators("convolution")}


@listed
class QuantizedConv(QuantizedLayer):
    """Convolution in one to three dimensions with 8-bit weights."""

    @checked(QuantizationError)
    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Sequence[Size],
        stride: Sequence[Size],
        padding: Sequence[Size],
        dilation: Sequence[Size],
        groups: Annotated[int, Bounds(1)] = 1,
        has_bias: bool = True,
    ) -> None:
        """Create a layer whose tensors are still to be filled in; sizes have one number for each dimension.

        Args:
            in_channels: channels of the input.
            out_channels: channels of the output.
            kernel_size: size of the window.
            stride: steps of the window.
            padding: zeros on both sides.
            dilation: steps inside the window.
            groups: the number of parts into which the channels are divided.
            has_bias: whether there is a bias.
        """
        sizes = tuple(map(tuple, (kernel_size, stride, padding, dilation)))
        super().__init__((out_channels, in_channels // groups, *sizes[0]), has_bias)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size, self.stride, self.padding, self.dilation = sizes
        self.groups = groups

    def _reference(self, input: Tensor) -> Tensor:
        return _CONVOLUTIONS[len(self.kernel_size)](input, self.float_weight(), self.bias, *self._sizes())

    def _kernels(self) -> Sequence[Kernel]:
        # where a whole window can lie in the padding, oneDNN's kernel reads memory out of bounds
        sizes = zip(self.padding, self.dilation, self.kernel_size, strict=True)
        if any(padding > dilation * (size - 1) for padding, dilation, size in sizes):
            return ()
        return layer_kernels.CONVOLUTIONS[len(self.kernel_size)]

    def _is_safe_on(self, shape: Sequence[int]) -> bool:
        # a dilated window can lie around a smaller image, where oneDNN leaves the result unwritten
        image = shape[-len(self.kernel_size) :]
        return all(
            size <= 1 or step <= length
            for size, step, length in zip(self.kernel_size, self.dilation, image, strict=True)
        )

    def _sizes(self) -> tuple[Any, ...]:
        return self.stride, self.padding, self.dilation, self.groups

    def _rows(self, input: Tensor) -> Tensor:
        dims = len(self.kernel_size)
        if input.dim() not in (dims + 1, dims + 2) or input.shape[-dims - 1] != self.in_channels:
            raise QuantizationError(
                f"a convolution of {self.in_channels} channels was given a tensor of shape {tuple(input.shape)}",
                value=str(self),
            )
        return input if input.dim() == dims + 2 else input[None]

    def _shaped(self, result: Tensor, input: Tensor) -> Tensor:
        return result if input.dim() == len(self.kernel_size) + 2 else result[0]

    def _trial(self, shape: Sequence[int], largest: int) -> tuple[LayerData, Tensor]:
        weight = alternating(largest, self._shape())
        bias = torch.zeros(len(weight)) if self.has_bias else None
        data = LayerData(weight, torch.ones(len(weight)), bias, self._sizes())
        # the number of elements of a window, in one channel, that are inside of the image
        convolution = _CONVOLUTIONS[len(self.kernel_size)]
        image, window = torch.ones(1, 1, *shape[2:]), torch.ones(1, 1, *self.kernel_size)
        inside = convolution(image, window, None, self.stride, self.padding, self.dilation)[0].double()
        first = weight.flatten(1)[:, 0].double().view(-1, *[1] * len(self.kernel_size))
        return data, inside * first * summed_channels(weight.shape)

    def _shape(self) -> tuple[int, ...]:
        return self.out_channels, self.in_channels // self.groups, *self.kernel_size

    def _check(self) -> None:
        super()._check()
        self._check_lengths(self.stride, self.padding, self.dilation)

    def _check_lengths(self, *sizes: Sequence[int]) -> None:
        dims = len(self.kernel_size)
        if (
            dims not in _CONVOLUTIONS
            or any(len(numbers) != dims for numbers in sizes)
            or math.prod(self.kernel_size) < 1
        ):
            raise QuantizationError("the sizes of a convolution are of different lengths", value=str(self))

    def extra_repr(self) -> str:
        """Return the sizes as text."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, bias={self.has_bias}"
        )
