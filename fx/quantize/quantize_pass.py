"""``quantize``: prepare, calibrate and convert in one pass, on data that whoever runs it has (paper, section 6.2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.passes.contract import Contract, approximate
from fx.passes.registry import register_pass
from fx.quantize.conversion import convert
from fx.quantize.preparation import prepare
from fx.quantize.scheme import Choice, ObserverName, QuantizationScheme

__all__ = ["Quantize"]


@register_pass
@dataclass(frozen=True, slots=True)
class Quantize:
    """Let a program work on 8-bit whole numbers, with scales from the data in :attr:`data`.

    Pytest's plugin gives it example inputs of the model, other ones than those it compares answers for. What cannot be
    quantized stays as it is, and so does a program in training mode. It promises what is left of deep networks with
    random weights, in which the noise of all layers adds up; trained and shallow ones are to be held to more, with
    another contract.
    """

    observer: ObserverName = "histogram"
    """What finds the ranges of activations."""
    symmetric: bool = False
    """Whether activations have zero in the middle of their range."""
    activation_bits: int = 8
    """How many bits activations have, 2 to 8."""
    weight_bits: int = 8
    """How many bits weights have, 2 to 8."""
    per_channel: bool = True
    """Whether each output channel of a weight has a scale of its own."""
    data: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...] = dataclasses.field(default=(), init=False, repr=False)
    """What the program is run on to find ranges: positional and keyword arguments of each call."""

    name: ClassVar[str] = "quantize"
    contract: ClassVar[Contract] = approximate(sqnr_db=5)
    may_change: ClassVar[tuple[str, ...]] = ("tensors",)

    def with_data(self, data: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Quantize:
        """This pass with ``data`` to calibrate on: positional and keyword arguments of each call."""
        given = dataclasses.replace(self)
        object.__setattr__(given, "data", tuple(data))
        return given

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Return the program on whole numbers; ``graph_module`` stays as it is.

        Raises:
            PassError: there is no data.
            QuantizationError: the data is not finite, or an option makes no sense.
        """
        if graph_module.training:
            return graph_module  # to calibrate would be to train; see prepare_qat
        if not self.data:
            raise PassError(
                "quantization needs data to find the ranges of values",
                remedy="Quantize().with_data([((x,), {})]), or prepare, run and convert with fx.quantize",
            )
        choice = Choice(
            observer=self.observer,
            symmetric=self.symmetric,
            activation_bits=self.activation_bits,
            weight_bits=self.weight_bits,
            per_channel=self.per_channel,
        )
        args, kwargs = self.data[0]
        prepared = prepare(graph_module, QuantizationScheme(choice), None if kwargs else args)
        with torch.no_grad():
            for args, kwargs in self.data:
                prepared(*args, **kwargs)
        return convert(prepared)
