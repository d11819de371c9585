"""``Kernel``: one way to compute a layer on 8-bit integers, with weights in an order of its own (paper, 6.2.1)."""

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
"""What a call takes and gives: uint8 and uint8, uint8 and float32, or float32 and float32."""

PackedLayer = Callable[[Tensor, float, int, "Affine | None"], Tensor]
"""A layer whose weight is packed: from input, its scale and zero point, and what integers of the output stand for (None
for float32 instead) to the output. The input has one dimension of rows before a linear layer's features, and one of
images before a convolution's channels."""

LARGEST = 255
"""The largest integer of an activation."""
NARROW_INPUT = 127
"""Of activations up to here two products with weights of 8 bits have a sum that fits into 16: 2 * 127 * 127 < 32768."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerData:
    """What a layer computes with."""

    weight: Tensor
    """int8, output channels first."""
    scale: Tensor
    """float32, the scale of each output channel."""
    bias: Tensor | None
    """float32, one for each output channel."""
    sizes: tuple[Any, ...] = ()
    """Of a convolution, stride, padding and dilation as lists, and the number of groups."""


class KernelUse(NamedTuple):
    """What a kernel is chosen for, beside the sizes of the layer; a tuple, as each call of a layer makes one."""

    form: Form
    """What the call takes and gives."""
    size: int
    """Elements of the input, rounded up to a power of two."""
    threads: int
    """Threads that torch computes with."""
    largest: int = LARGEST
    """The largest integer that the input can have: 127 where its integers are known to have 7 bits."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One way to compute a layer."""

    name: str
    """The library, as reports show it."""
    forms: tuple[Form, ...]
    """In which forms it can be called."""
    is_available: Callable[[], bool]
    """Whether torch has it here."""
    pack: Callable[[LayerData, Sequence[int]], PackedLayer]
    """Packs the weight of a layer, for inputs of this shape."""
    fits_one_size: bool = False
    """Whether what is packed is fitted to the first input and to the number of threads, so that others take longer."""
    largest: int = LARGEST
    """The largest integer of an activation that it is right for."""


def in_halves(kernel: Kernel) -> Kernel:
    """Return a kernel that computes a layer exactly with one that adds pairs of products in 16 bits.

    Processors without VNNI have no other instruction (``vpmaddubsw``), and 2 * 255 * 127 does not fit. Each activation
    is the sum of two of half its size, which are rows of one product: the weight is read once. With AVX2 it takes 0.02
    to 0.9 of the time of float32 for linear layers of 512 features and more, 0.8 to 1.1 for convolutions, and 2 to 4
    times as long for 64 features.
    """
    assert "float" in kernel.forms

    def pack(layer: LayerData, shape: Sequence[int]) -> PackedLayer:
        bias = None if layer.bias is None else layer.bias / 2  # which both halves add
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
    """Return the kernel for activations of 7 bits, for which it is right also where it adds products in 16 bits.

    It takes half of the time that it takes in halves.
    """
    return dataclasses.replace(kernel, name=f"{kernel.name} in 7 bits", largest=NARROW_INPUT)


def halves(input: Tensor, scale: float, zero_point: int) -> tuple[Tensor, float, int]:
    """Return integers of at most 128, first all first halves and then all second ones, their scale and zero point.

    >>> halves(torch.tensor([[7, 2]], dtype=torch.uint8), 0.1, 3)
    (tensor([[4, 2],
            [4, 1]], dtype=torch.uint8), 0.1, 2)
    """
    lower = input >> 1
    # both have the same zero point, so that zeros around an image are zeros in both
    return torch.cat((lower + (zero_point & 1), input - lower)), scale, (zero_point + 1) >> 1


def as_float(input: Tensor, scale: float, zero_point: int) -> Tensor:
    """The float values of an input that may be integers."""
    return dequantize(input, scale, zero_point) if input.dtype is torch.uint8 else input


def as_integers(input: Tensor, scale: float, zero_point: int) -> Tensor:
    """The integers of an input that may be float values."""
    return input if input.dtype is torch.uint8 else quantize(input, scale, zero_point)
