"""A linear layer with 8-bit weights, on oneDNN's kernels and for few rows on FBGEMM's (paper, section 6.2.1)."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.errors import QuantizationError
from fx.quantize import fbgemm, pages
from fx.quantize.affine import Affine
from fx.quantize.arithmetic import dequantize
from fx.quantize.layers import KERNELS, QuantizedLayer, has_kernels, listed

FEW_ROWS = 16
"""Up to how many rows of input FBGEMM's kernel is taken, unless a trial found another number."""
_LARGE_WEIGHT = 1 << 23
"""Bytes from which on a weight does not stay in the cache, and reading it is what takes the time."""
_FEW_ROWS_OF_REAL = 128
"""The same for real values and weights that stay in the cache: FBGEMM's kernel also converts them."""
_TRIED_ROWS = (1, 4, 8, 16, 32)
_TRIAL = 0.005
"""Seconds from which on a trial of one number of rows has been long enough."""
_PART = pages.LARGE // 2
"""Bytes of results that are computed at a time where they are large."""
_CHANNELS = 1 << 14
"""Output channels of a linear layer that are packed and computed at a time; many more are packed slowly."""


@listed
class QuantizedLinear(QuantizedLayer):
    """``F.linear`` with 8-bit weights."""

    def __init__(self, in_features: int, out_features: int, has_bias: bool = True, few_rows: int = FEW_ROWS) -> None:
        """A layer whose tensors are still to be filled in.

        Args:
            in_features: length of the last dimension of the input.
            out_features: length of the last dimension of the output.
            has_bias: whether there is a bias.
            few_rows: up to how many rows of input FBGEMM's kernel is taken, where torch has it.
        """
        super().__init__((out_features, in_features), has_bias)
        self.in_features = in_features
        self.out_features = out_features
        self.few_rows = few_rows

    def _reference(self, input: Tensor) -> Tensor:
        return F.linear(input, self.real_weight(), self.bias)

    def pack(self, rows: int | None = None) -> None:
        """Pack the weight now, rather than on the first call; see :meth:`QuantizedLayer.pack`."""
        if rows is not None and self._takes_few(rows) and has_kernels() and self.weight.device.type == "cpu":
            self._params_for_few()
        else:
            super().pack(rows)

    def choose_kernel(self) -> None:
        """Find by a trial up to how many rows of input FBGEMM's kernel is the faster one here, and let it have those.

        Both are packed for it. The answers of the two differ by one step at most, where they round otherwise.
        """
        if not (has_kernels() and fbgemm.is_available() and self.weight.device.type == "cpu"):
            return
        found = 0
        for rows in _TRIED_ROWS:
            input = torch.zeros(rows, self.in_features, dtype=torch.uint8)
            if not self._is_faster_with_few(input):
                break
            found = rows
        self.few_rows = found

    def _is_faster_with_few(self, input: Tensor) -> bool:
        best = {len(input): math.inf, 0: math.inf}
        until = time.perf_counter() + _TRIAL
        for turn in itertools.count():
            for few, shortest in best.items():
                self.few_rows = few
                start = time.perf_counter()
                self._kernel(input, 1.0, 0, Affine(1.0, 0))
                if turn:  # the first call packs
                    best[few] = min(shortest, time.perf_counter() - start)
            if turn > 1 and time.perf_counter() > until:
                break
        return best[len(input)] < best[0]

    def _takes_few(self, rows: int, of_real: bool = False) -> bool:
        is_large = self.in_features * self.out_features >= _LARGE_WEIGHT
        few = _FEW_ROWS_OF_REAL if of_real and not is_large else self.few_rows
        return 0 < rows <= few and fbgemm.is_available()

    def _params_for_few(self) -> Any:
        if self._packed_params is None:
            self._check()
            self._packed_params = fbgemm.pack(self.weight, self.weight_scale, self.bias)
        return self._packed_params

    def _kernel_on_real(self, input: Tensor, affine: Affine) -> Tensor:
        if input.shape[-1] == self.in_features and self._takes_few(input.numel() // self.in_features, True):
            return fbgemm.linear_of_real(input, affine.scale, affine.zero_point, self._params_for_few())
        return super()._kernel_on_real(input, affine)

    def _kernel(self, input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        if input.shape[-1] != self.in_features:
            raise QuantizationError(
                f"a linear layer of {self.in_features} inputs was given {input.shape[-1]}", value=str(self)
            )
        rows = input.numel() // self.in_features
        if self._takes_few(rows):
            if output is not None:
                return fbgemm.linear(input, scale, zero_point, self._params_for_few(), output)
            return fbgemm.linear_of_real(
                dequantize(input, scale, zero_point), scale, zero_point, self._params_for_few()
            )
        weights, zero_points = self._packed_weight()
        target = (1.0, 0, torch.float32) if output is None else (output.scale, output.zero_point, torch.uint8)

        size = target[-1].itemsize
        if len(weights) == 1 and rows * self.out_features * size < pages.LARGE:
            return KERNELS.qlinear_pointwise(
                input, scale, zero_point, weights[0], self.weight_scale, zero_points, self.bias, *target, "none", [], ""
            )

        def kernel(part: Tensor, weight: Tensor, *channels: Tensor | None) -> Tensor:
            return KERNELS.qlinear_pointwise(part, scale, zero_point, weight, *channels, *target, "none", [], "")

        result = pages.empty((*input.shape[:-1], self.out_features), target[-1])
        flat, into = input.reshape(rows, self.in_features), result.view(rows, self.out_features)
        step = max(1, _PART // (min(self.out_features, _CHANNELS) * size))
        for number, weight in enumerate(weights):
            some = slice(number * _CHANNELS, (number + 1) * _CHANNELS)
            channels = self.weight_scale[some], zero_points[some], None if self.bias is None else self.bias[some]
            for start in range(0, rows, step):
                into[start : start + step, some] = kernel(flat[start : start + step], weight, *channels)
        return result

    def _pack(self, shape: Sequence[int] | None) -> tuple[Tensor, ...]:
        return tuple(KERNELS.qlinear_prepack(part, None) for part in self.weight.split(_CHANNELS))

    def _shape(self) -> tuple[int, ...]:
        return self.out_features, self.in_features

    def extra_repr(self) -> str:
        """Sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.has_bias}"
