"""``LayerTrial``: a layer in which everything is as large as can be, to try kernels with."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fx.quantize.affine import Affine
from fx.quantize.kernels.kernel import Form, Kernel, LayerData
from fx.quantize.kernels.trials import Way

LARGEST_WEIGHT = 127
"""The largest integer of a weight of 8 bits."""
NARROW = 64
"""Of weights up to here two products with activations have a sum that fits into 16 bits: 2 * 64 * 255 < 32768."""
_SUMMED = 1 << 15
"""Products of the largest integers of which the sum is certain to fit into 32 bits, as that of real layers does."""
_TOLERANCE = 0.02
"""Of the largest result: what saturates is half of it, and one integer of the output is a hundredth."""


def largest_weight(weight: Tensor) -> int:
    """The size of the weights that a kernel has to be right for: of 7 bits, where these have no more, or of 8."""
    is_narrow = weight.numel() == 0 or (weight.amax() <= NARROW and weight.amin() >= -NARROW)
    return NARROW if is_narrow else LARGEST_WEIGHT


def alternating(size: int, like: Sequence[int]) -> Tensor:
    """A weight of shape ``like`` of which the output channels have ``size`` and its negative by turns.

    Of very many input channels some have it, and others zero.
    """
    weight = torch.full(tuple(like), size, dtype=torch.int8)
    weight[1::2] = -size
    weight[:, summed_channels(like) :] = 0
    return weight


def summed_channels(like: Sequence[int]) -> int:
    """Return how many input channels of :func:`alternating` are not zero.

    >>> summed_channels((8, 16, 3, 3)), summed_channels((8, 100_000))
    (16, 32768)
    """
    return min(like[1], max(1, _SUMMED // math.prod(like[2:])))


@dataclass(frozen=True, slots=True, eq=False)
class LayerTrial:
    """One call of a layer, with the largest integers that a kernel has to be right for."""

    data: LayerData
    """The layer: scales are 1, and biases 0."""
    shape: tuple[int, ...]
    """Of the input, as kernels take it."""
    of_ones: Tensor
    """The exact results for the first row or image, if all integers of the input were 1."""
    form: Form
    """What the call takes and gives."""

    def way(self, kernel: Kernel) -> Way:
        """The call, by this kernel, with the largest integer that it says it is right for."""
        expected = self.of_ones * kernel.largest
        output = Affine(float(expected.abs().max()) / 100, 128) if self.form == "integers" else None
        is_right = functools.partial(_is_right, expected, output)
        return Way(kernel.name, lambda: self._prepared(kernel, output), is_right)

    def _prepared(self, kernel: Kernel, output: Affine | None) -> Callable[[], Tensor]:
        compute = kernel.pack(self.data, self.shape)
        input = torch.full(self.shape, kernel.largest, dtype=torch.float32 if self.form == "dynamic" else torch.uint8)
        return lambda: compute(input, 1.0, 0, output)


def _is_right(expected: Tensor, output: Affine | None, result: Tensor) -> bool:
    values = result[0].double()
    if output is not None:
        values = (values - output.zero_point) * output.scale
    return bool((values - expected).abs().max() <= _TOLERANCE * expected.abs().max())
