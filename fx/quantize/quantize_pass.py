"""``quantize``: prepare, calibrate and convert in one pass, on data that whoever runs it has (paper, section 6.2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fx.arguments import expect_calls
from fx.errors import PassError, QuantizationError
from fx.graph_module import GraphModule, expect_program
from fx.interpreter import positional
from fx.passes.contract import Contract, approximate
from fx.passes.registered_passes import register_pass
from fx.quantize.numerics import advise, try_scheme
from fx.quantize.preparation import updates_statistics
from fx.quantize.scheme import Choice, ObserverName, QuantizationScheme

MARGIN = 3.0
"""Decibels by which results on the data have to be better than is promised of others."""


@register_pass
@dataclass(frozen=True, slots=True)
class Quantize:
    """Let a program work on 8-bit integers, with scales from the data in :attr:`data`.

    Pytest's plugin gives it example inputs of the model, other ones than those it compares outputs for. What cannot be
    quantized stays as it is, and so does a program in training mode. Where :attr:`sqnr_db` is not reached on the data,
    the layers that cost most of it stay in floating point, too; to find them takes a calibration for each layer.
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
    sqnr_db: float = 10.0
    """The signal-to-quantization-noise ratio that results are promised to have, in decibels. Deep networks with random
    weights, in which the noise of all layers adds up, keep 12 to 16; trained and shallow ones 25 and more."""
    data: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...] = dataclasses.field(default=(), init=False, repr=False)
    """What the program is run on to find ranges: positional and keyword arguments of each call."""

    name: ClassVar[str] = "quantize"
    may_change: ClassVar[tuple[str, ...]] = ("tensors", "tracing")

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        _ = self.contract, self._choice

    @property
    def contract(self) -> Contract:
        """Return what is promised of results."""
        return approximate(sqnr_db=self.sqnr_db)

    @property
    def _choice(self) -> Choice:
        return Choice(
            observer=self.observer,
            symmetric=self.symmetric,
            activation_bits=self.activation_bits,
            weight_bits=self.weight_bits,
            per_channel=self.per_channel,
        )

    def with_data(self, data: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> Quantize:
        """This pass with ``data`` to calibrate on: positional and keyword arguments of each call."""
        given = dataclasses.replace(self)
        object.__setattr__(given, "data", expect_calls(data, error=QuantizationError))
        return given

    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Return the program on integers; ``graph_module`` stays as it is.

        Raises:
            PassError: there is no data.
            QuantizationError: the data is not finite.
        """
        expect_program(graph_module, "Quantize runs on a GraphModule")
        if graph_module.training or updates_statistics(graph_module) is not None:
            return graph_module  # to calibrate would be to train; see prepare_qat
        if not self.data:
            raise PassError(
                "quantization needs data to find the ranges of values",
                remedy="Quantize().with_data([((x,), {})]), or prepare, run and convert with fx.quantize",
            )
        data = [positional(graph_module, args, kwargs) for args, kwargs in self.data]
        scheme, wanted = QuantizationScheme(self._choice), self.sqnr_db + MARGIN
        decibels, quantized = try_scheme(graph_module, data, scheme, data[0])
        if decibels < wanted:
            advice = advise(graph_module, data, wanted, scheme)
            _, quantized = try_scheme(graph_module, data, advice.scheme, data[0])
        return quantized
