"""Rounding with straight-through gradients: the effect of quantization on values, for programs in training (6.2.1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.modules.batchnorm import _BatchNorm

from fx.argument_types import checked
from fx.arguments import refusal
from fx.errors import QuantizationError
from fx.quantize.affine import Affine, Bits, Percentile, Size, quantize_channels
from fx.quantize.arithmetic import dequantize_channels
from fx.quantize.declaration import listed, operation
from fx.quantize.observers import OBSERVERS, Observer, make_observer, refuse_export
from fx.quantize.scheme import Choice, ObserverName
from fx.quantize.transposed_convolution import swap_channels

_torch: Any = torch
_SMALLEST_GAIN = 2.0**-20
"""The smallest factor by which a weight is scaled, so that its scaling can be undone."""


class _Rounded(torch.autograd.Function):
    """Rounding to the nearest value of a scale; the gradient passes unchanged where nothing saturated."""

    @staticmethod
    def forward(ctx: FunctionCtx, input: Tensor, scale: Tensor, zero_point: Tensor, highest: int) -> Tensor:
        lowest, most = (-0.5 - zero_point) * scale, (highest + 0.5 - zero_point) * scale
        ctx.save_for_backward((input >= lowest) & (input <= most))
        rounded = _torch.fake_quantize_per_tensor_affine(input.float(), scale, zero_point, 0, highest)
        return rounded.to(input.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None, None, None


class _RoundedChannels(torch.autograd.Function):
    """Rounding of a weight to the values of 8-bit integers; none saturates, so the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, bits: int, per_channel: bool) -> Tensor:
        quantized, scale = quantize_channels(weight, bits=bits, per_channel=per_channel)
        return dequantize_channels(quantized, scale).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None, None


@operation
def fake_quantize(input: Tensor, scale: Tensor, zero_point: Tensor, highest: int = 255) -> Tensor:
    """Return ``input`` rounded to the float values that integers of this scale can represent.

    The backward pass ignores the rounding: the gradient goes straight through, and is zero where ``input`` is outside
    of the range.

    Args:
        input: float values.
        scale: the difference between neighbours, a float32 tensor with one element.
        zero_point: the integer that represents zero, an int32 tensor with one element.
        highest: the largest integer.

    >>> fake_quantize(torch.tensor([0.26, 9.0]), torch.tensor(0.1), torch.tensor(3, dtype=torch.int32), highest=15)
    tensor([0.3000, 1.2000])
    """
    return _Rounded.apply(input, scale, zero_point, highest)  # type: ignore[no-any-return]


@operation
def fake_quantize_dynamic(input: Tensor, bits: int = 8) -> Tensor:
    """Return ``input`` rounded with the scale of its own range, as dynamic layers choose it in each call.

    Args:
        input: float values.
        bits: how many bits the integers have.

    >>> fake_quantize_dynamic(torch.tensor([0.4, 1.0]), bits=3)
    tensor([0.4286, 1.0000])
    """
    if input.numel() == 0:
        return input
    low, high = (bound.item() for bound in torch.aminmax(input.detach()))
    if not (math.isfinite(low) and math.isfinite(high)):
        return input
    affine = Affine.of_range(low, high, bits=bits)
    return fake_quantize(input, *_as_tensors(affine, input.device), affine.highest)


def bits_of_activations(choice: Choice) -> dict[str, int]:
    """Return the arguments of :func:`fake_quantize_dynamic`, beside its input, for a layer with this choice."""
    return {} if choice.activation_bits == 8 else {"bits": choice.activation_bits}


@operation
def fake_quantize_channels(
    weight: Tensor, gain: Tensor | None = None, bits: int = 8, per_channel: bool = True, groups: int | None = None
) -> Tensor:
    """Return a weight, multiplied by ``gain`` and rounded to the float values of its integers.

    Args:
        weight: of shape (channels, ...); of a transposed convolution (inputs, channels / groups, ...).
        gain: the factor by which a batch norm will multiply each channel, of shape (channels,).
        bits: how many bits the integers have.
        per_channel: give each channel its own scale.
        groups: for a transposed convolution, the number of parts into which its channels are divided.

    >>> fake_quantize_channels(torch.tensor([[0.4, 1.0]]), bits=3)
    tensor([[0.3333, 1.0000]])
    """
    if groups is not None:
        return swap_channels(fake_quantize_channels(swap_channels(weight, groups), gain, bits, per_channel), groups)
    if gain is not None:
        weight = weight * gain.view(-1, *[1] * (weight.dim() - 1))
    return _RoundedChannels.apply(weight, bits, per_channel)  # type: ignore[no-any-return]


@operation
def batch_norm_gain(weight: Tensor | None, running_var: Tensor, eps: float) -> Tensor:
    """Return the factor of each channel in a batch norm in evaluation mode, kept away from zero."""
    gain = torch.rsqrt(running_var + eps)
    gain = gain if weight is None else gain * weight
    return torch.where(gain.abs() < _SMALLEST_GAIN, torch.full_like(gain, _SMALLEST_GAIN), gain)


@operation
def undo_gain(input: Tensor, gain: Tensor, bias: Tensor | None, rank: int) -> Tensor:
    """Divide the result of a layer by the ``gain`` of its weight, and add its bias.

    Args:
        input: the result of the layer, without bias.
        gain: the factor by which each channel of its weight was multiplied.
        bias: the bias of the layer.
        rank: the number of dimensions of ``input`` with the channels second, as the batch norm expects them.

    Raises:
        QuantizationError: ``input`` has another number of dimensions.
    """
    if input.dim() != rank:
        raise QuantizationError(
            f"a batch norm was folded into a layer whose result has {input.dim()} dimensions",
            why=f"it normalizes the second dimension, which has the layer's features only where there are {rank}",
            remedy="skip the layer in the scheme",
        )
    shape = (-1, *[1] * (rank - 2))
    result = input / gain.view(shape)
    return result if bias is None else result + bias.view(shape)


@listed
class FakeQuantize(nn.Module):
    """The rounding of one value in training, as quantization will round it, to a range that the module observes."""

    _leaf_reason: ClassVar[str] = "it observes"

    if TYPE_CHECKING:
        scale: Tensor
        zero_point: Tensor

    @checked(QuantizationError)
    def __init__(
        self,
        observer: ObserverName = "moving-average",
        bits: Bits = 8,
        symmetric: bool = False,
        percentile: Percentile = 99.99,
        place: str = "",
        is_frozen: bool = False,
    ) -> None:
        """Create the rounding of one value.

        Args:
            observer: the name of the observer that finds its range.
            bits: how many bits the integers will have.
            symmetric: whether zero will be in the middle of them.
            percentile: for a percentile observer, the percentage of values inside the range.
            place: which value it is, for error messages: the node and the user's line.
            is_frozen: whether the range stays as it is.
        """
        super().__init__()
        self.observer: ObserverName = observer
        self.bits = bits
        self.symmetric = symmetric
        self.percentile = percentile
        self.place = place
        self.is_frozen = is_frozen
        choice = Choice(observer=observer, activation_bits=bits, symmetric=symmetric, percentile=percentile)
        self.range: Observer = make_observer(choice, place)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("zero_point", torch.zeros((), dtype=torch.int32))

    @classmethod
    def of(cls, observer: Observer) -> FakeQuantize:
        """Return the rounding to the range that an observer like this one finds."""
        kind: ObserverName | None = next(
            (name for name, observer_class in OBSERVERS.items() if type(observer) is observer_class), None
        )
        if kind is None:
            raise refusal("FakeQuantize.of takes an observer of fx.quantize", observer, error=QuantizationError)
        percentile = getattr(observer, "percentile", 99.99)
        return cls(kind, observer.bits, observer.symmetric, percentile, observer.place)

    def forward(self, input: Tensor) -> Tensor:
        """Round ``input``; in training mode, first update the range from it, unless the range is frozen.

        Raises:
            QuantizationError: ``input`` has no elements, or some that are not finite; or there is no range yet.
        """
        refuse_export(self.place)
        if self.training and not self.is_frozen:
            self.range(input)
            scale, zero_point = _as_tensors(self.range.affine(), self.scale.device)
            self.scale.copy_(scale)
            self.zero_point.copy_(zero_point)
        elif not self.range.is_calibrated:
            raise QuantizationError(
                "this value has no range yet",
                where=self.place or None,
                why="ranges are observed in training mode, until they are frozen",
                remedy="run the program on data after program.train()",
            )
        # copies, as the buffers change before gradients are computed
        return fake_quantize(input, self.scale.clone(), self.zero_point.clone(), 2**self.bits - 1)

    def extra_repr(self) -> str:
        """Return the settings as text."""
        frozen = ", frozen" if self.is_frozen else ""
        return f"{self.observer}, bits={self.bits}, symmetric={self.symmetric}{frozen}"


@listed
class FrozenBatchNorm(nn.Module):
    """A batch norm that normalizes with fixed statistics, in training mode too; weight and bias are trained."""

    if TYPE_CHECKING:
        weight: Tensor | None
        bias: Tensor | None
        running_mean: Tensor
        running_var: Tensor

    @checked(QuantizationError)
    def __init__(self, num_features: Size, eps: float = 1e-5, affine: bool = True) -> None:
        """Create a batch norm whose parameters and statistics are still to be filled in.

        Args:
            num_features: how many channels there are.
            eps: added to the variance.
            affine: whether there are a weight and a bias.
        """
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.affine = affine
        for name, fill in (("weight", torch.ones), ("bias", torch.zeros)):
            self.register_parameter(name, nn.Parameter(fill(num_features)) if affine else None)
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))

    @classmethod
    @checked(QuantizationError)
    def of(cls, norm: _BatchNorm | FrozenBatchNorm) -> FrozenBatchNorm:
        """Return a frozen batch norm that shares the parameters and buffers of ``norm``."""
        with torch.device("meta"):
            frozen = cls(norm.num_features, norm.eps, norm.affine)
        for tensors in ("_parameters", "_buffers"):
            getattr(frozen, tensors).update(getattr(norm, tensors))
        return frozen

    def forward(self, input: Tensor) -> Tensor:
        """Normalize ``input``."""
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


def _as_tensors(affine: Affine, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(affine.scale, device=device), torch.tensor(affine.zero_point, dtype=torch.int32, device=device)
