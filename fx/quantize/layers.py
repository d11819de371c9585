"""What layers with 8-bit weights have in common: weights that are packed once for kernels (paper, section 6.2.1)."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from fx.errors import QuantizationError
from fx.operators.effects import declare_pure
from fx.quantize.affine import Affine
from fx.quantize.arithmetic import dequantize, dequantize_channels, is_recorded, quantize
from fx.quantize.value_ranges import MANY, narrowed
from fx.serialization.allow_list import allow

Kind = TypeVar("Kind", bound=type[nn.Module])

KERNELS: Any = torch.ops.onednn
"""oneDNN's, as far as torch has them."""


def listed(kind: Kind) -> Kind:
    """Let a class of layers be saved with programs, and calls of it be left out where nothing uses them."""
    declare_pure(kind)
    return allow(kind, f"fx.quantize.{kind.__name__}")


@functools.lru_cache(maxsize=1)
def has_kernels() -> bool:
    """Whether torch has oneDNN's kernels here, and the processor the instructions with which they do not overflow."""
    operators = all(hasattr(KERNELS, name) for name in ("qlinear_pointwise", "qconv_pointwise"))
    supported: Any = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return operators and torch.backends.mkldnn.is_available() and bool(supported())


class QuantizedLayer(nn.Module):
    """Base of layers with 8-bit weights.

    ``weight`` has integers, ``weight_scale`` the step of each output channel, and ``bias`` real values. The scales
    of input and output are arguments of the call, so that calls of one layer may differ in them.
    """

    __slots__ = ("_packed", "_packed_params")  # made from the others, hence neither copied, pickled nor saved
    _kept_whole: ClassVar[str] = "its weight is packed"

    if TYPE_CHECKING:
        weight: Tensor
        weight_scale: Tensor
        bias: Tensor | None
        _packed: tuple[Any, Tensor] | None
        _packed_params: Any  # what torch's operations on quantized tensors take, where they are faster

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
        self._packed_params = None

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
        """Apply the layer to integers, or to real values that become some.

        Args:
            input: uint8; or real values, of which the layer finds the range itself.
            scale: step of the input; with none it is real.
            zero_point: what stands for zero in it.
            output_scale: step of the output; with none it is real, float32.
            output_zero_point: what stands for zero in the output.
            highest: largest integer in the output.
            low: smallest real value of the output, as a fused activation has it: 0 for ReLU.
            high: largest one.
        """
        if scale is None:
            return self._dynamic(input)
        output = None if output_scale is None else Affine(output_scale, output_zero_point, highest)
        if is_recorded() or not (input.device.type == "cpu" and input.numel() and has_kernels()):
            self._check()
            result = self._reference(dequantize(input, scale, zero_point))
            result = result if low is high is None else result.clamp(low, high)
            return result if output is None else quantize(result, **output.settings)
        result = self._kernel(input, scale, zero_point, output)
        if output is None:
            return result if low is high is None else result.clamp_(low, high)
        if low is high is None and highest == 255:
            return result
        # rounding keeps the order of values, so bounds can be kept after it
        least = 0 if low is None else output.quantized(low)
        most = highest if high is None else output.quantized(high)
        return result if (least, most) == (0, 255) else result.clamp_(least, most)

    def _dynamic(self, input: Tensor) -> Tensor:
        """The layer on real values, whose range is found first."""
        if input.numel() == 0:
            return self._reference(input)
        low, high = torch.aminmax(input.detach() if input.requires_grad else input)
        if is_recorded() or not has_kernels() or input.device.type != "cpu":
            low, high = low.clamp(max=0), high.clamp(min=0)
            scale = ((high - low) / 255).clamp_min(torch.finfo(torch.float32).tiny)
            zero_point = (-low / scale).round().int()
            return self._reference(torch.fake_quantize_per_tensor_affine(input, scale, zero_point, 0, 255))
        least, most = low.item(), high.item()
        if not (math.isfinite(least) and math.isfinite(most)):
            return self._reference(input)  # which passes them on, as the layer would in floating point
        if input.numel() >= MANY:
            least, most = narrowed(input, least, most)
        return self._kernel_on_real(input, Affine.of_range(least, most))

    def _kernel_on_real(self, input: Tensor, affine: Affine) -> Tensor:
        """The layer on real values that become integers as ``affine`` says."""
        return self._kernel(quantize(input, **affine.settings), affine.scale, affine.zero_point, None)

    @abstractmethod
    def _reference(self, input: Tensor) -> Tensor:
        """The layer on real values."""

    @abstractmethod
    def _kernel(self, input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
        """The layer on integers, by oneDNN."""

    @abstractmethod
    def _pack(self, shape: Sequence[int] | None) -> Any:
        """The weight in the order in which oneDNN reads it for inputs of this shape, if that is known."""

    def real_weight(self) -> Tensor:
        """The weight as real values."""
        return dequantize_channels(self.weight, self.weight_scale)

    def _packed_weight(self, shape: Sequence[int] | None = None) -> tuple[Any, Tensor]:
        """The packed weight and its zero points, made on the first call, for the shape of its input."""
        if self._packed is None:
            self._check()
            self._packed = self._pack(shape), torch.zeros(len(self.weight), dtype=torch.int64)
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
