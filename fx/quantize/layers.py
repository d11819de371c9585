"""Layers with 8-bit weights: linear and convolution, packed once for oneDNN's kernels (paper, section 6.2.1)."""

from __future__ import annotations

import functools
import itertools
import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.effects import declare_pure
from fx.errors import QuantizationError
from fx.quantize import fbgemm, pages
from fx.quantize.affine import Affine
from fx.quantize.arithmetic import dequantize, dequantize_channels, is_traced_by_jit, quantize
from fx.serialization.allow_list import allow

Kind = TypeVar("Kind", bound=type[nn.Module])

FEW_ROWS = 8
"""Up to how many rows of input FBGEMM's kernel is taken, unless a trial found another number."""
_TRIED_ROWS = (1, 4, 8, 16, 32)
_TRIAL = 0.005
"""Seconds from which on a trial of one number of rows has been long enough."""
_PART = pages.LARGE // 2
"""Bytes of results that are computed at a time where they are large."""

_CHANNELS = 1 << 14
"""Output channels of a linear layer that are packed and computed at a time; many more are packed slowly."""

_onednn: Any = torch.ops.onednn
_CONVOLUTIONS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _listed(kind: Kind) -> Kind:
    declare_pure(kind)
    return allow(kind, f"fx.quantize.{kind.__name__}")


@functools.lru_cache(maxsize=1)
def has_kernels() -> bool:
    """Whether torch has oneDNN's kernels here, and the processor the instructions with which they do not overflow."""
    operators = all(hasattr(_onednn, name) for name in ("qlinear_pointwise", "qconv_pointwise"))
    supported: Any = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return operators and torch.backends.mkldnn.is_available() and bool(supported())


class QuantizedLayer(nn.Module):
    """Base of layers with 8-bit weights.

    ``weight`` has whole numbers, ``weight_scale`` the step of each output channel, and ``bias`` real values. The scales
    of input and output are arguments of the call, so that calls of one layer may differ in them.
    """

    __slots__ = ("_packed", "_packed_for_few")  # made from the others, hence neither copied, pickled nor saved
    _kept_whole: ClassVar[str] = "its weight is packed"

    if TYPE_CHECKING:
        weight: Tensor
        weight_scale: Tensor
        bias: Tensor | None
        _packed: tuple[Any, Tensor] | None
        _packed_for_few: tuple[Any, ...] | None

    def __init__(self, shape: Sequence[int], has_bias: bool) -> None:
        super().__init__()
        self.has_bias = has_bias
        self.register_buffer("weight", torch.zeros(tuple(shape), dtype=torch.int8))
        self.register_buffer("weight_scale", torch.ones(shape[0]))
        self.register_buffer("bias", torch.zeros(shape[0]) if has_bias else None)
        self._unpack()

    def fill(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """Take these tensors, of the types and shapes that the layer has."""
        self.weight, self.weight_scale, self.bias = weight, scale, bias
        self._unpack()

    def pack(self, rows: int | None = None) -> None:
        """Pack the weight now, rather than on the first call.

        Args:
            rows: for inputs of how many rows, if that is known; others make it pack again, on the first call.
        """
        if has_kernels() and self.weight.device.type == "cpu":
            self._packed_weight()

    def _unpack(self) -> None:
        """Forget the packed weight, since what it was made from has changed."""
        self._packed = None
        self._packed_for_few = None

    def forward(
        self,
        input: Tensor,
        scale: float | None = None,
        zero_point: int = 0,
        output_scale: float | None = None,
        output_zero_point: int = 0,
        highest: int = 255,
        low: float | None = None,
        high: float | None = None,
    ) -> Tensor:
        """Apply the layer to whole numbers, or to real values that become some.

        Args:
            input: uint8; or real values, of which the layer finds the range itself.
            scale: step of the input; with none it is real.
            zero_point: what stands for zero in it.
            output_scale: step of the output; with none it is real, float32.
            output_zero_point: what stands for zero in the output.
            highest: largest whole number in the output.
            low: smallest real value of the output, as a fused activation has it: 0 for ReLU.
            high: largest one.
        """
        if scale is None:
            return self._dynamic(input)
        output = None if output_scale is None else Affine(output_scale, output_zero_point, highest)
        if not (input.device.type == "cpu" and input.numel() and has_kernels()) or is_traced_by_jit():
            result = self._reference(dequantize(input, scale, zero_point))
            result = result if low is high is None else result.clamp(low, high)
            return result if output is None else quantize(result, **output.settings)
        result = self._kernel(input, scale, zero_point, output)
        if output is None:
            return result if low is high is None else result.clamp_(low, high)
        # rounding keeps the order of values, so bounds can be kept after it
        least = 0 if low is None else output.quantized(low)
        most = highest if high is None else output.quantized(high)
        return result if (least, most) == (0, 255) else result.clamp_(least, most)

    def _dynamic(self, input: Tensor) -> Tensor:
        """The layer on real values, whose range is found first."""
        if input.numel() == 0:
            return self._reference(input)
        low, high = torch.aminmax(input.detach())
        if is_traced_by_jit() or not has_kernels() or input.device.type != "cpu":
            low, high = low.clamp(max=0), high.clamp(min=0)
            scale = ((high - low) / 255).clamp_min(torch.finfo(torch.float32).tiny)
            zero_point = (-low / scale).round().int()
            return self._reference(torch.fake_quantize_per_tensor_affine(input, scale, zero_point, 0, 255))
        bounds = low.item(), high.item()
        if not all(map(math.isfinite, bounds)):
            return self._reference(input)  # which passes them on, as the layer would in floating point
        return self._kernel_on_real(input, Affine.of_range(*bounds))

    def _kernel_on_real(self, input: Tensor, affine: Affine) -> Tensor:
        """The layer on real values that become whole numbers as ``affine`` says."""
        return self._kernel(quantize(input, **affine.settings), affine.scale, affine.zero_point, None)

    @abstractmethod
    def _reference(self, input: Tensor) -> Tensor:
        """The layer on real values."""

    @abstractmethod
    def _kernel(self, input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        """The layer on whole numbers, by oneDNN."""

    @abstractmethod
    def _pack(self) -> Any:
        """The weight in the order in which oneDNN reads it."""

    def real_weight(self) -> Tensor:
        """The weight as real values."""
        return dequantize_channels(self.weight, self.weight_scale)

    def _packed_weight(self) -> tuple[Any, Tensor]:
        """The packed weight and its zero points, made on the first call."""
        if self._packed is None:
            self._check()
            self._packed = self._pack(), torch.zeros(len(self.weight), dtype=torch.int64)
        return self._packed

    def _check(self) -> None:
        """Refuse tensors that a kernel, which trusts them, would read or write out of bounds with."""
        channels = len(self.weight)
        good = self.weight.dtype is torch.int8 and self.weight_scale.shape == (channels,)
        good = good and self.weight_scale.dtype is torch.float32
        good = good and (self.bias is None or (self.bias.shape == (channels,) and self.bias.dtype is torch.float32))
        if not good or self.weight.shape != self._shape():
            held = {name: (tuple(one.shape), one.dtype) for name, one in self.named_buffers()}
            raise QuantizationError(
                f"a {type(self).__name__} holds tensors of other shapes or types than it was made for",
                value=f"{self} with {held}",
                remedy="weights are int8, and scales and biases float32 with one element for each output channel",
            )

    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """The shape that the weight must have."""

    # The packed weight goes when the others change.

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._unpack()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._unpack()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._unpack()
        super()._load_from_state_dict(*args, **kwargs)


@_listed
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
            self._weight_for_few()
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

    def _takes_few(self, rows: int) -> bool:
        return 0 < rows <= self.few_rows and fbgemm.is_available()

    def _weight_for_few(self) -> tuple[Any, ...]:
        if self._packed_for_few is None:
            self._check()
            self._packed_for_few = fbgemm.pack(self.weight, self.weight_scale, self.bias)
        return self._packed_for_few

    def _kernel_on_real(self, input: Tensor, affine: Affine) -> Tensor:
        if input.shape[-1] == self.in_features and self._takes_few(input.numel() // self.in_features):
            return fbgemm.linear_of_real(input.float(), affine.scale, affine.zero_point, self._weight_for_few())
        return super()._kernel_on_real(input, affine)

    def _kernel(self, input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        if input.shape[-1] != self.in_features:
            raise QuantizationError(
                f"a linear layer of {self.in_features} inputs was given {input.shape[-1]}", value=str(self)
            )
        rows = input.numel() // self.in_features
        if output is not None and self._takes_few(rows):
            return fbgemm.linear(input, scale, zero_point, self._weight_for_few(), output)
        weights, zero_points = self._packed_weight()
        target = (1.0, 0, torch.float32) if output is None else (output.scale, output.zero_point, torch.uint8)

        def kernel(part: Tensor, weight: Tensor, *channels: Tensor | None) -> Tensor:
            return _onednn.qlinear_pointwise(part, scale, zero_point, weight, *channels, *target, "none", [], "")

        shape, size = (*input.shape[:-1], self.out_features), target[-1].itemsize
        if len(weights) == 1 and rows * self.out_features * size < pages.LARGE:
            return kernel(input, weights[0], self.weight_scale, zero_points, self.bias)
        result = pages.empty(shape, target[-1])
        flat, into = input.reshape(rows, self.in_features), result.view(rows, self.out_features)
        step = max(1, _PART // (min(self.out_features, _CHANNELS) * size))
        for number, weight in enumerate(weights):
            some = slice(number * _CHANNELS, (number + 1) * _CHANNELS)
            channels = self.weight_scale[some], zero_points[some], None if self.bias is None else self.bias[some]
            for start in range(0, rows, step):
                into[start : start + step, some] = kernel(flat[start : start + step], weight, *channels)
        return result

    def _pack(self) -> tuple[Tensor, ...]:
        return tuple(_onednn.qlinear_prepack(part, None) for part in self.weight.split(_CHANNELS))

    def _shape(self) -> tuple[int, ...]:
        return self.out_features, self.in_features

    def extra_repr(self) -> str:
        """Sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.has_bias}"


@_listed
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
        weight, zero_points = self._packed_weight()
        dims = len(self.kernel_size)
        if input.dim() not in (dims + 1, dims + 2) or input.shape[-dims - 1] != self.in_channels:
            raise QuantizationError(
                f"a convolution of {self.in_channels} channels was given a tensor of shape {tuple(input.shape)}",
                value=str(self),
            )
        batch = input if input.dim() == dims + 2 else input[None]
        target = (1.0, 0, torch.float32) if output is None else (output.scale, output.zero_point, torch.uint8)
        result = _onednn.qconv_pointwise(
            batch, scale, zero_point, weight, self.weight_scale, zero_points, self.bias, *self._sizes, *target,
            "none", [], "",
        )  # fmt: skip
        return result if input.dim() == dims + 2 else result[0]

    def _pack(self) -> Tensor:
        # the zero point only says that there is one
        return _onednn.qconv_prepack(self.weight, self.weight_scale, 1.0, 1, *self._sizes, None)

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


__all__ = ["FEW_ROWS", "QuantizedConv", "QuantizedLayer", "QuantizedLinear", "has_kernels"]
