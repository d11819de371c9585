"""``quantize``: prepare, calibrate and convert in one pass, on data of its caller (paper, section 6.2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fx.argument_types import Calls, checked
from fx.errors import PassError, QuantizationError
from fx.graph_module import GraphModule
from fx.interpreter import positional
from fx.pipelines.contract import Contract, approximate
from fx.pipelines.registered_passes import register_pass
from fx.quantize.numerics import advise, try_scheme
from fx.quantize.preparation import updates_statistics
from fx.quantize.scheme import Choice, ObserverName, QuantizationScheme

MARGIN = 3.0
"""The margin in decibels by which results on the calibration data have to exceed the promise for other data."""


@register_pass
@dataclass(frozen=True, slots=True)
class Quantize:
    """Let a program work on 8-bit integers, with scales from the data in :attr:`data`.

    Pytest's plugin passes example inputs of the model, different from those for which it compares outputs. Operations
    that cannot be quantized stay as they are, and so does a program in training mode. If :attr:`sqnr_db` is not reached
    on the data, the most sensitive layers stay in floating point, too; to find them takes a calibration for each layer.
    """

    observer: ObserverName = "histogram"
    """The observer that finds the ranges of activations."""
    symmetric: bool = False
    """True if activations have zero in the middle of their range."""
    activation_bits: int = 8
    """The number of bits of activations, 2 to 8."""
    weight_bits: int = 8
    """The number of bits of weights, 2 to 8."""
    per_channel: bool = True
    """True if each output channel of a weight has its own scale."""
    sqnr_db: float = 10.0
    """The promised signal-to-quantization-noise ratio of results, in decibels. Deep networks with random weights, in
    which the noise of all layers adds up, reach 12 to 16; trained and shallow ones 25 and more."""
    keep: tuple[str, ...] = ()
    """The nodes of layers that stay in floating point, or patterns of their names."""
    data: tuple[tuple[tuple[Any, ...], Mapping[str, Any]], ...] = dataclasses.field(default=(), init=False, repr=False)
    """The calibration data: positional and keyword arguments of each call."""

    name: ClassVar[str] = "quantize"
    may_change: ClassVar[tuple[str, ...]] = ("tensors", "tracing")

    def __post_init__(self) -> None:
        """Refuse settings outside of their ranges."""
        _ = self.contract, self._choice

    @property
    def contract(self) -> Contract:
        """The promise for results."""
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

    @checked(QuantizationError)
    def with_data(self, data: Calls) -> Quantize:
        """Return this pass with ``data`` to calibrate on: positional and keyword arguments of each call."""
        quantize_pass = dataclasses.replace(self)
        object.__setattr__(quantize_pass, "data", tuple(data))
        return quantize_pass

    @checked(PassError)
    def __call__(self, graph_module: GraphModule) -> GraphModule:
        """Return the program on integers; ``graph_module`` stays as it is.

        Raises:
            PassError: there is no data.
            QuantizationError: the data is not finite.
        """
        if graph_module.training or updates_statistics(graph_module) is not None:
            return graph_module  # calibration would train it; see prepare_qat
        if not self.data:
            raise PassError(
                "quantization needs data to find the ranges of values",
                remedy="Quantize().with_data([((x,), {})]), or prepare, run and convert with fx.quantize",
            )
        data = [positional(graph_module, args, kwargs) for args, kwargs in self.data]
        scheme, required = QuantizationScheme(self._choice), self.sqnr_db + MARGIN
        for node in self.keep:
            scheme = scheme.skip(node=node)
        decibels, quantized = try_scheme(graph_module, data, scheme, data[0])
        if decibels < required:
            advice = advise(graph_module, data, required, scheme)
            _, quantized = try_scheme(graph_module, data, advice.scheme, data[0])
        return quantized
