"""Convolutions and linear layers fused with the operations behind them: one oneDNN kernel with a packed weight."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx.lowering.onednn.packed_weights import PackedWeights

LEAST_WORK = 1 << 21
"""Multiplications below which oneDNN's convolution is no faster than PyTorch's own: it takes 30 µs to start. With a
quarter of them it takes 1.3 to 2 times as long, in every layout, with AVX-512 and with AVX2."""
LEAST_LINEAR_WORK = 1 << 22
"""Multiplications below which oneDNN's linear kernel may be slower than PyTorch's own. At 1 to 4 million it takes 0.4
to 0.9 times as long as PyTorch's with AVX-512, and 0.6 to 1.2 times limited to AVX2."""

_kernels: Any = torch.ops.mkldnn
_PLAIN: dict[str, Callable[..., Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "swish": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@functools.lru_cache(maxsize=1)
def why_missing() -> str | None:
    """Return why this PyTorch lacks oneDNN's fused kernels; ``None`` if it has them."""
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch is built without oneDNN"
    if not hasattr(_kernels, "_convolution_pointwise_"):
        return "this PyTorch has no fused kernels of oneDNN"
    return None


@dataclass(frozen=True, slots=True)
class Activation:
    """The activation that a kernel applies to its result."""

    name: str = "none"
    """oneDNN's name for it."""
    scalars: tuple[float, ...] = ()
    """Its numbers, such as the slope of ``leaky_relu``."""
    algorithm: str = ""
    """The formula, for activations with several: ``gelu`` has ``"none"`` and ``"tanh"``."""

    def __call__(self, value: Tensor) -> Tensor:
        """Apply it without oneDNN."""
        if self.name == "none":
            return value
        if self.name == "gelu":
            return F.gelu(value, approximate=self.algorithm)
        return _PLAIN[self.name](value, *self.scalars)

    def __str__(self) -> str:
        options = ", ".join(map(repr, (*self.scalars, *([self.algorithm] if self.algorithm else []))))
        return f"{self.name}({options})" if options else self.name


class FusedLayer(nn.Module):
    """A layer with constant weights, and the activation behind it.

    ``weight`` and ``bias`` are buffers that share memory with the tensors of the captured module. The kernel reads a
    packed copy of the weight, which is made in the first run, or earlier if the size of the input is already known.
    Another number of threads, or a size that comes again, gets another copy if oneDNN prefers another layout for it.
    Copies are made again after the weight is written to or replaced, and are not part of the state.

    The layer falls back to PyTorch's own functions for inputs that oneDNN cannot take: of another dtype, empty,
    requiring gradients, or under autocast. It does the same if oneDNN is missing where the program is loaded.
    """

    _is_impure: ClassVar[bool | None] = False
    _leaf_reason: ClassVar[str] = "it runs a kernel of oneDNN"

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", None if bias is None else bias.detach())
        self.activation = Activation()
        """The activation that is applied to the result."""
        self._scalars: list[float] = []
        self._packed: PackedWeights | None = None

    def append(self, activation: Activation) -> None:
        """Apply ``activation`` to the result; there must be none yet."""
        self.activation = activation
        self._scalars = list(activation.scalars)

    def pack(self, weight: Tensor, size: torch.Size) -> Tensor:
        """Return the weight in the layout that the kernel prefers for inputs of ``size``; it accepts others too."""
        raise NotImplementedError(f"{type(self).__name__} must define pack")

    def prepare(self, size: torch.Size) -> None:
        """Pack the weight for inputs of about ``size`` now, instead of in the first run.

        Raises:
            RuntimeError: oneDNN cannot pack it.
        """
        self._packed_weight(size)

    def _packed_weight(self, size: torch.Size) -> Tensor | None:
        """Return the packed weight, or ``None`` if the weight cannot be packed."""
        weight = self._buffers["weight"]
        if type(weight) is not Tensor or weight.dtype is not torch.float32 or not weight.is_cpu or why_missing():
            return None
        packed = self._packed
        if packed is None or not packed.are_of(weight):
            packed = self._packed = PackedWeights(weight)
        return packed.find(size, self.pack)

    def _is_fast(self, value: Tensor) -> bool:
        """Return whether the kernel takes ``value``, its shape aside, and no gradient or autocast is asked for."""
        return (
            type(value) is Tensor
            and value.dtype is torch.float32
            and value.layout is torch.strided
            and value.is_cpu
            and not (value.requires_grad and torch.is_grad_enabled())
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_packed": None})


class FusedConvolution(FusedLayer):
    """``conv2d`` with bias, perhaps another tensor added to the result, and an activation."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
    ) -> None:
        """Make a convolution.

        Args:
            weight: of shape (outputs, inputs per group, height, width).
            bias: of shape (outputs,), or none.
            stride: for each dimension.
            padding: for each dimension, on both sides.
            dilation: for each dimension.
            groups: the number of groups of channels.
        """
        super().__init__(weight, bias)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.channels = weight.shape[1] * groups
        """Channels of the input."""
        # Multiplications for each element of the input.
        self._work = weight.numel() / max(1, self.channels * stride[0] * stride[1])

    def pack(self, weight: Tensor, size: torch.Size) -> Tensor:
        """Return the weight in the layout that the kernel prefers for inputs of ``size``; it accepts others too."""
        # With a layout that is chosen without a size, stages of ResNet-50 take 1.0 to 4.6 times as long.
        return _kernels._reorder_convolution_weight(weight, self.padding, self.stride, self.dilation, self.groups, size)

    def forward(self, input: Tensor, summand: Tensor | None = None) -> Tensor:
        """Return the convolution of ``input``, plus ``summand`` if there is one, after the activation."""
        if not (self._is_fast(input) and self._takes(input)):
            return self._plain(input, summand)
        packed = self._packed_weight(input.shape)
        if packed is None or (summand is not None and not self._fits(summand, input)):
            return self._plain(input, summand)
        kind, bias = self.activation, self._buffers["bias"]
        settings = (self.padding, self.stride, self.dilation, self.groups)
        if summand is None:
            return _kernels._convolution_pointwise(
                input, packed, bias, *settings, kind.name, self._scalars, kind.algorithm
            )
        name = None if kind.name == "none" else kind.name
        return _kernels._convolution_pointwise.binary(
            input, summand, packed, bias, *settings, "add", 1.0, name, self._scalars, kind.algorithm
        )

    def _takes(self, input: Tensor) -> bool:
        """Return whether ``input`` is a batch of images that is large enough for oneDNN to be faster."""
        size = input.numel()
        return input.dim() == 4 and input.shape[1] == self.channels and size > 0 and size * self._work >= LEAST_WORK

    def _fits(self, summand: Tensor, input: Tensor) -> bool:
        """Return whether the kernel takes ``summand``: it has the shape of the result, so that nothing is broadcast.

        Images of one pixel or one channel are both contiguous and channels last. Up to torch 2.11, the kernel for sums
        raises "could not create a memory" for them.
        """
        if summand.is_contiguous() and summand.is_contiguous(memory_format=torch.channels_last):
            return False
        weight = self._buffers["weight"]
        assert weight is not None
        sizes = zip(input.shape[2:], weight.shape[2:], self.padding, self.dilation, self.stride, strict=True)
        result = [(size + 2 * pad - step * (kernel - 1) - 1) // move + 1 for size, kernel, pad, step, move in sizes]
        return self._is_fast(summand) and summand.shape == (input.shape[0], weight.shape[0], *result)

    def _plain(self, input: Tensor, summand: Tensor | None) -> Tensor:
        result = F.conv2d(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        return self.activation(result if summand is None else result + summand)

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        weight = self.weight
        text = f"{self.channels}, {weight.shape[0]}, kernel_size={tuple(weight.shape[2:])}, stride={self.stride}"
        text += f", padding={self.padding}, dilation={self.dilation}, groups={self.groups}"
        return f"{text}, activation={self.activation}"


class FusedLinear(FusedLayer):
    """``linear`` with bias and an activation; small products are left to PyTorch's kernel, which starts sooner."""

    def pack(self, weight: Tensor, size: torch.Size) -> Tensor:
        """Return the weight in the layout that the kernel prefers for inputs of ``size``; it accepts others too."""
        return _kernels._reorder_linear_weight(weight, size[:-1].numel())

    def forward(self, input: Tensor) -> Tensor:
        """Return the product, after the activation."""
        if not (self._is_fast(input) and self._takes(input)):
            return self._plain(input)
        if (packed := self._packed_weight(input.shape)) is None:
            return self._plain(input)
        kind, bias = self.activation, self._buffers["bias"]
        return _kernels._linear_pointwise(input, packed, bias, kind.name, self._scalars, kind.algorithm)

    def _takes(self, input: Tensor) -> bool:
        """Return whether ``input`` is a large enough batch of rows."""
        weight = self._buffers["weight"]
        assert weight is not None
        outputs, inputs = weight.shape
        return input.dim() > 1 and input.shape[-1] == inputs and input.numel() * outputs >= LEAST_LINEAR_WORK

    def _plain(self, input: Tensor) -> Tensor:
        return self.activation(F.linear(input, self.weight, self.bias))

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        outputs, inputs = self.weight.shape
        return f"{inputs}, {outputs}, bias={self.bias is not None}, activation={self.activation}"
