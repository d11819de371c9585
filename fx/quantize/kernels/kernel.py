"""``Kernel``: one way to compute a layer on 8-bit integers, with weights in its own order (paper, 6.2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fx.quantize.affine import Affine
from fx.quantize.arithmetic import dequantize, quantize

Form = Literal["integers", "float", "dynamic"]
"""The types of a call's input and output: uint8 and uint8, uint8 and float32, or float32 and float32."""

PackedLayer = Callable[[Tensor, float, int, "Affine | None"], Tensor]
"""A layer with a packed weight: a function of the input, its scale, its zero point, and the ``Affine`` of the output
(None for an output in float32). The input has one dimension of rows before a linear layer's features, and one of images
before a convolution's channels."""

LARGEST = 255
"""The largest integer of an activation."""
NARROW_INPUT = 127
"""The largest activation for which two products with 8-bit weights add up in 16 bits: 2 * 127 * 127 < 32768."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerData:
    """The tensors and sizes of a layer."""

    weight: Tensor
    """int8, output channels first."""
    scale: Tensor
    """float32, the scale of each output channel."""
    bias: Tensor | None
    """float32, one for each output channel."""
    sizes: tuple[Any, ...] = ()
    """For a convolution: stride, padding and dilation as lists, and the number of groups."""


class KernelUse(NamedTuple):
    """The use for which a kernel is chosen, beside the layer's sizes; a tuple, as each call of a layer creates one."""

    form: Form
    """The types of the call's input and output."""
    size: int
    """Elements of the input, rounded up to a power of two."""
    threads: int
    """The number of threads that torch uses."""
    largest: int = LARGEST
    """The largest integer that the input can have: 127 if its integers are known to have 7 bits."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to compute a layer."""

    name: str
    """The library, as in reports."""
    forms: tuple[Form, ...]
    """The forms in which it can be called."""
    is_available: Callable[[], bool]
    """The check that torch has it here."""
    pack: Callable[[LayerData, Sequence[int]], PackedLayer]
    """The function that packs the weight of a layer, for inputs of this shape."""
    fits_one_size: bool = False
    """True if the packed weight fits the first input and the number of threads, so that others take longer."""
    largest: int = LARGEST
    """The largest activation for which it is right."""


def in_halves(kernel: Kernel) -> Kernel:
    """Return a kernel that computes a layer exactly, from one that adds pairs of products in 16 bits.

    Processors without VNNI have no other instruction (``vpmaddubsw``), and 2 * 255 * 127 does not fit. Each activation
    is the sum of two of half its size. The halves are rows of one product, so the weight is read once. The time with
    AVX2, relative to float32:

    - 0.02 to 0.9 for linear layers of 512 features and more;
    - 2 to 4 for linear layers of 64 features;
    - 0.8 to 1.1 for convolutions.
    """
    assert "float" in kernel.forms

    def pack(layer: LayerData, shape: Sequence[int]) -> PackedLayer:
        bias = None if layer.bias is None else layer.bias / 2  # both halves add it
        both = kernel.pack(dataclasses.replace(layer, bias=bias), (2 * shape[0], *shape[1:]))

        def compute(input: Tensor, scale: float, zero_point: int, output: Affine | None) -> Tensor:
            parts = both(*halves(as_integers(input, scale, zero_point), scale, zero_point), None)
            count = len(input)
            result = parts[:count].add_(parts[count:])
            return result if output is None else quantize(result, output.scale, output.zero_point)

        return compute

    forms = tuple(dict.fromkeys(("integers", *kernel.forms)))
    return dataclasses.replace(kernel, name=f"{kernel.name} in halves", forms=forms, pack=pack)


def in_seven_bits(kernel: Kernel) -> Kernel:
    """Return the kernel for activations of 7 bits; for these it is right even if it adds products in 16 bits.

    It takes half of the time of :func:`in_halves`.
    """
    return dataclasses.replace(kernel, name=f"{kernel.name} in 7 bits", largest=NARROW_INPUT)


def halves(input: Tensor, scale: float, zero_point: int) -> tuple[Tensor, float, int]:
    """Return the halves of integers, at most 128, and their scale and zero point: all first halves, then all second.

    >>> halves(torch.tensor([[7, 2]], dtype=torch.uint8), 0.1, 3)
    (tensor([[4, 2],
            [4, 1]], dtype=torch.uint8), 0.1, 2)
    """
    lower = input >> 1
    # both have the same zero point, so that zeros around an image are zeros in both
    return torch.cat((lower + (zero_point & 1), input - lower)), scale, (zero_point + 1) >> 1


def as_float(input: Tensor, scale: float, zero_point: int) -> Tensor:
    """Return the float values of an input that may be integers."""
    return dequantize(input, scale, zero_point) if input.dtype is torch.uint8 else input


def as_integers(input: Tensor, scale: float, zero_point: int) -> Tensor:
    """Return the integers of an input that may be float values."""
    return input if input.dtype is torch.uint8 else quantize(input, scale, zero_point)
