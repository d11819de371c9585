"""The base of layers with 8-bit weights, which are packed once for kernels (paper, section 6.2.1)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from fx.argument_types import checked
from fx.arguments import refusal
from fx.errors import QuantizationError, type_in_words
from fx.modules.calibrated_values import calibrated
from fx.quantize import pages
from fx.quantize.affine import MANY, Affine, Size, narrowed
from fx.quantize.arithmetic import dequantize, dequantize_channels, is_recorded, quantize
from fx.quantize.kernels.kernel import (
    LARGEST,
    NARROW_INPUT,
    Form,
    Kernel,
    KernelUse,
    LayerData,
    PackedLayer,
    in_halves,
    in_seven_bits,
)
from fx.quantize.kernels.trials import CHOICES, LayerTrial, Way, largest_weight, rounded_up

_MOST_PACKED = 3
"""The number of orders in which a layer keeps its weight: two kernels, one of them for two numbers of threads."""


class PackedModule(nn.Module):
    """Base of modules that pack their tensors for kernels; packed tensors are neither copied, pickled nor saved."""

    __slots__ = ("_chosen", "_packed")  # computed from the other attributes where the module runs
    _leaf_reason: ClassVar[str] = "its weight is packed"

    if TYPE_CHECKING:
        _chosen: dict[Any, Any]
        _packed: dict[Any, Any]

    def __init__(self) -> None:
        super().__init__()
        self._unpack()

    def _unpack(self) -> None:
        """Forget the packed weight, since its source has changed."""
        self._chosen = {}
        self._packed = {}

    @property
    @abstractmethod
    def kernels(self) -> dict[KernelUse, str]:
        """The kernels chosen so far, by use; ``reference`` is arithmetic on float32."""

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


@calibrated("scale", "zero_point", "output_scale", "output_zero_point")
class QuantizedLayer(PackedModule):
    """Base of layers with 8-bit weights.

    ``weight`` has integers, ``weight_scale`` the scale of each output channel, and ``bias`` float values. The scales
    of input and output are arguments of the call, so that calls of one layer may differ in them.
    """

    if TYPE_CHECKING:
        weight: Tensor
        weight_scale: Tensor
        bias: Tensor | None
        _chosen: dict[KernelUse, Kernel | None]
        _packed: dict[tuple[str, int], tuple[PackedLayer, pages.ResultMemory]]

    @checked(QuantizationError)
    def __init__(self, shape: Sequence[Size], has_bias: bool) -> None:
        super().__init__()
        shape = tuple(shape)
        if not shape:
            raise refusal("a layer in 8 bits takes sizes, that of its channels first", shape, error=QuantizationError)
        self.has_bias = has_bias
        self.register_buffer("weight", torch.zeros(shape, dtype=torch.int8))
        self.register_buffer("weight_scale", torch.ones(shape[0]))
        self.register_buffer("bias", torch.zeros(shape[0]) if has_bias else None)

    @checked(QuantizationError)
    def fill(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """Set the tensors, which must have the layer's types and shapes."""
        self.weight, self.weight_scale, self.bias = weight, scale, bias
        self._unpack()

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
        input_highest: int = LARGEST,
    ) -> Tensor:
        """Apply the layer to integers, or to float values that it quantizes.

        Args:
            input: uint8; or float values, whose range the layer finds itself.
            scale: scale of the input; None for float values.
            zero_point: the integer that represents zero in the input.
            output_scale: scale of the output; None for an output in float32.
            output_zero_point: the integer that represents zero in the output.
            highest: largest integer in the output.
            low: smallest float value of the output, for a fused activation: 0 for ReLU.
            high: largest float value of the output.
            input_highest: largest integer that the input should have, or to which float values are quantized. Up to
                127, processors without VNNI need not halve the input. An input that has larger integers all the same
                is halved, and its result is right.
        """
        if not isinstance(input, Tensor):
            raise refusal("a layer in 8 bits takes a tensor", input, error=QuantizationError)
        if scale is None:
            return self._dynamic(input, input_highest)
        number: Any = scale
        if not isinstance(number, Tensor) and not (isinstance(scale, (float, Real)) and 0 < number < 2**63):
            what = "a layer in 8 bits takes a positive number for the scale of its input"
            raise refusal(what, scale, error=QuantizationError)
        output = None if output_scale is None else Affine(output_scale, output_zero_point, highest)
        form: Form = "float" if output is None else "integers"
        largest = LARGEST if input_highest == LARGEST else _largest_of(input, zero_point, input_highest)
        ready = self._ready_for(input, form, largest) if input.numel() else None
        if ready is None:
            self._check()
            result = self._in_float32(dequantize(input, scale, zero_point))
            result = result if low is high is None else result.clamp(low, high)
            return _as_autocast(result) if output is None else quantize(result, **output.settings)
        packed, rows = ready
        result = self._shaped(packed(rows, scale, zero_point, output), input)
        if output is None:
            return _as_autocast(result if low is high is None else result.clamp_(low, high))
        if low is high is None and highest == LARGEST:
            return result
        # rounding keeps the order of values, so bounds can be applied after it
        least = 0 if low is None else output.quantized(low)
        most = highest if high is None else output.quantized(high)
        return result if (least, most) == (0, LARGEST) else result.clamp_(least, most)

    def _dynamic(self, input: Tensor, highest: int) -> Tensor:
        """Compute the layer on float values: find their range first, then quantize with as many bits as ``highest``."""
        input, bits = input.float(), _expect_integer(highest).bit_length()
        if input.numel() == 0:
            return _as_autocast(self._in_float32(input))
        plain = input.detach() if input.requires_grad else input
        low, high = torch.aminmax(plain)
        largest = NARROW_INPUT if highest <= NARROW_INPUT else LARGEST
        ready = self._ready_for(plain, "dynamic", largest)
        if ready is None:
            low, high = low.clamp(max=0), high.clamp(min=0)
            scale = ((high - low) / (2**bits - 1)).clamp_min(torch.finfo(torch.float32).tiny)
            zero_point = (-low / scale).round().int()
            rounded = torch.fake_quantize_per_tensor_affine(input, scale, zero_point, 0, 2**bits - 1)
            return _as_autocast(self._in_float32(rounded))
        least, most = low.item(), high.item()
        if not (math.isfinite(least) and math.isfinite(most)):
            return _as_autocast(self._in_float32(input))  # passes them on, as the layer would in floating point
        if plain.numel() >= MANY and largest == LARGEST:  # only there do kernels let values out of range saturate
            least, most = narrowed(plain, least, most)
        affine = Affine.of_range(least, most, bits=bits)
        packed, rows = ready
        return _as_autocast(self._shaped(packed(rows, affine.scale, affine.zero_point, None), plain))

    def _in_float32(self, input: Tensor) -> Tensor:
        """Compute the layer on float32, under autocast too, as kernels do."""
        if _autocast_type(input) is None:
            return self._reference(input)
        with torch.autocast(input.device.type, enabled=False):
            return self._reference(input)

    @abstractmethod
    def _reference(self, input: Tensor) -> Tensor:
        """Compute the layer on float values."""

    @abstractmethod
    def _rows(self, input: Tensor) -> Tensor:
        """Return an input as kernels take it: rows of features, or images with channels.

        Raises:
            QuantizationError: the input has another number of channels than the layer.
        """

    @abstractmethod
    def _shaped(self, result: Tensor, input: Tensor) -> Tensor:
        """Return a kernel's result for ``self._rows(input)`` in the shape of the layer's result for ``input``."""

    @abstractmethod
    def _kernels(self) -> Sequence[Kernel]:
        """Return the kernels that may compute the layer; none if no kernel can be trusted with its sizes."""

    def _is_safe_on(self, shape: Sequence[int]) -> bool:
        """Return whether kernels can be trusted with an input of a shape."""
        return True

    def _sizes(self) -> tuple[Any, ...]:
        """Return the arguments of kernels beside the tensors."""
        return ()

    def _data(self) -> LayerData:
        """Return the tensors and sizes for kernels."""
        return LayerData(self.weight, self.weight_scale, self.bias, self._sizes())

    @abstractmethod
    def _trial(self, shape: Sequence[int], largest: int) -> tuple[LayerData, Tensor]:
        """Return a layer whose weights alternate between ``largest`` and its negative, and its results for ones.

        The layer may have fewer output channels. The results are for one row or image of ones, of an input of this
        shape, as kernels take it.
        """

    def float_weight(self) -> Tensor:
        """Return the weight as float values."""
        return dequantize_channels(self.weight, self.weight_scale)

    @property
    def kernels(self) -> dict[KernelUse, str]:
        """The kernels chosen so far, by use; ``reference`` is arithmetic on float32."""
        return {use: "reference" if kernel is None else kernel.name for use, kernel in self._chosen.items()}

    @property
    def is_in_float(self) -> bool:
        """True if it computes on float values: no kernel can be trusted with its sizes, or none was right so far."""
        return not self._kernels() or set(self.kernels.values()) == {"reference"}

    def _ready_for(self, input: Tensor, form: Form, largest: int = LARGEST) -> tuple[PackedLayer, Tensor] | None:
        """Return the layer, packed for the fastest kernel, and the input's rows; None if no kernel is right.

        Integers should be at most ``largest``. Callers can break that, so they are checked where a kernel relies on it.
        """
        if type(input) not in (Tensor, nn.Parameter) or input.device.type != "cpu" or is_recorded():
            return None
        rows = self._rows(input)
        if not self._is_safe_on(rows.shape):
            return None
        use = KernelUse(form, rounded_up(rows.numel()), torch.get_num_threads(), largest)
        if use not in self._chosen:
            self._check()
            self._chosen[use] = self._choose(use, rows.shape)
        kernel = self._chosen[use]
        if kernel is None:
            return None
        if kernel.largest < LARGEST and form != "dynamic" and int(rows.max()) > kernel.largest:
            return self._ready_for(input, form)
        key = (kernel.name, use.threads if kernel.fits_one_size else 0)
        if key not in self._packed:
            while len(self._packed) >= _MOST_PACKED:
                del self._packed[next(iter(self._packed))]
            with pages.mapped_in_large_pages() if self.weight.numel() >= pages.LARGE else nullcontext():
                self._packed[key] = kernel.pack(self._data(), rows.shape), pages.shared_memory()
        return self._packed[key][0], rows

    def _choose(self, use: KernelUse, shape: Sequence[int]) -> Kernel | None:
        """Return the fastest kernel that is right with the largest integers; try the kernels if it is not known yet."""
        largest = largest_weight(self.weight)
        kernels = [kernel for kernel in self._kernels() if use.form in kernel.forms and kernel.is_available()]
        names = tuple(kernel.name for kernel in kernels)
        problem = (type(self), self._shape(), self._sizes(), self.has_bias, use, largest, names)
        alternatives = [
            [
                kernel,
                *([in_seven_bits(kernel)] if use.largest <= NARROW_INPUT else ()),
                *([in_halves(kernel)] if "float" in kernel.forms else ()),
            ]
            for kernel in kernels
        ]

        def ways() -> Iterator[list[Way]]:
            data, of_ones = self._trial(shape, largest)
            trial = LayerTrial(data, tuple(shape), of_ones, use.form)
            yield from ([trial.way(kernel) for kernel in group] for group in alternatives)

        name = CHOICES.fastest(problem, ways)
        return next((kernel for group in alternatives for kernel in group if kernel.name == name), None)

    def _check(self) -> None:
        """Refuse tensors with which a kernel would read or write out of bounds; kernels do not check."""
        channels = len(self.weight)
        good = self.weight.dtype is torch.int8 and self.weight_scale.shape == (channels,)
        good = good and self.weight_scale.dtype is torch.float32
        good = good and (self.bias is None or (self.bias.shape == (channels,) and self.bias.dtype is torch.float32))
        if not good or self.weight.shape != self._shape():
            types = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.named_buffers()}
            raise QuantizationError(
                f"{type_in_words(self)} holds tensors of other shapes or types than it was made for",
                value=f"{self} with {types}",
                remedy="weights are int8, and scales and biases float32 with one element for each output channel",
            )

    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """Return the shape that the weight must have."""


def _largest_of(input: Tensor, zero_point: int, highest: int) -> int:
    """Return the largest activation for which a kernel has to be right; the input's should be at most ``highest``."""
    _expect_integer(highest)
    # a convolution may pad with the zero point
    is_narrow = input.dtype is torch.uint8 and isinstance(zero_point, int) and max(highest, zero_point) <= NARROW_INPUT
    return NARROW_INPUT if is_narrow else LARGEST


def _expect_integer(highest: int) -> int:
    if type(highest) is not int:
        raise refusal("a layer in 8 bits takes an integer for input_highest", highest, error=QuantizationError)
    return highest


def _as_autocast(result: Tensor) -> Tensor:
    """Return float values in the type of layers' results under autocast, if autocast is on."""
    dtype = _autocast_type(result)
    return result if dtype is None else result.to(dtype)


def _autocast_type(value: Tensor) -> torch.dtype | None:
    """Return the dtype in which autocast lets layers compute, or None if it is off for the device of ``value``."""
    kind = value.device.type
    # the first test decides for most devices; Dynamo of torch 2.11 cannot trace the second
    has_autocast = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)
    if not (has_autocast and torch.is_autocast_enabled(kind)):
        return None
    return torch.get_autocast_dtype(kind)


@checked(QuantizationError)
def kernels_used(program: nn.Module, threads: int | None = None) -> dict[str, int]:
    """Return the number of layers of a program that used each kernel so far, the most used first.

    Args:
        program: a converted program, or any module.
        threads: count only uses with this number of threads; by default with any.

    >>> from fx.quantize import QuantizedLinear
    >>> layer = QuantizedLinear(4, 4)
    >>> kernels_used(layer)
    {}
    >>> result = layer(torch.zeros(2, 4, dtype=torch.uint8), 0.1, 3)
    >>> sum(kernels_used(layer).values())
    1
    """
    layers = [layer for layer in program.modules() if isinstance(layer, PackedModule)]
    used = Counter(
        name
        for layer in layers
        for name in {name for use, name in layer.kernels.items() if threads in (None, use.threads)}
    )
    return dict(used.most_common())
