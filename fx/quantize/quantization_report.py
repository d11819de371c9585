"""``report``: how much of a converted program is in 8 bits, and why the rest is not (paper, section 6.2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fx.errors import QuantizationError
from fx.graph_module import GraphModule, expect_program
from fx.modules.attributes import fetch_attribute
from fx.provenance import SourceLocation
from fx.quantize.layers import QuantizedLayer
from fx.quantize.preparation import REASON

IN_8_BITS = "weight_in_8_bits"
"""Where nodes say in ``meta`` that they work with a weight in 8 bits."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """An operation that stayed on real values."""

    node: str
    """Name of its node."""
    reason: str
    """Why."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """What of a program is in 8 bits."""

    layers: int
    """Calls of layers whose weights are in 8 bits."""
    float_layers: int
    """Calls of linear layers and convolutions that stayed on real values."""
    bytes_of_state: int
    """Memory of parameters and buffers."""
    bytes_in_8_bits: int
    """Of these, the memory of weights in 8 bits."""
    share_of_operations: float | None
    """The part of the multiplications and additions of layers that is in 8 bits; None where shapes are not known, as
    they are if ``prepare`` gets example inputs."""
    remainders: tuple[Remainder, ...]
    """What stayed on real values."""

    def __str__(self) -> str:
        share = "" if self.share_of_operations is None else f", {self.share_of_operations:.1%} of their operations"
        lines = [
            f"{self.layers} of {self.layers + self.float_layers} layers in 8 bits{share}; "
            f"{self.bytes_in_8_bits:,} of {self.bytes_of_state:,} bytes of state"
        ]
        lines += [f"  %{one.node}: {one.reason}" for one in self.remainders]
        return "\n".join(lines)


def report(converted: GraphModule) -> QuantizationReport:
    """Return what became of each operation of a program that :func:`~fx.quantize.conversion.convert` returned.

    >>> import torch, fx
    >>> from fx.quantize import convert, prepare
    >>> prepared = prepare(fx.symbolic_trace(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Softmax(-1))))
    >>> data = prepared(torch.ones(1, 2))
    >>> print(report(convert(prepared)))
    1 of 1 layers in 8 bits; 4 of 20 bytes of state
      %_1: there is no operation on integers for it
    """
    expect_program(converted, "report takes a GraphModule", error=QuantizationError)
    layers, float_layers, remainders = 0, 0, list[Remainder]()
    counts: dict[bool, list[int | None]] = {True: [], False: []}
    for node in converted.graph.nodes:
        target: Any = converted.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        in_8_bits = isinstance(target, QuantizedLayer) or IN_8_BITS in node.meta
        layers += in_8_bits
        if (reason := node.meta.get(REASON)) is not None:
            remainders.append(Remainder(node.name, reason, node.source))
        float_layers += "float_operations" in node.meta and not in_8_bits
        if "float_operations" in node.meta:
            counts[in_8_bits].append(node.meta.get("float_operations"))
    tensors = [fetch_attribute(converted, name) for name in converted.state_dict()]
    return QuantizationReport(
        layers,
        float_layers,
        sum(one.nbytes for one in tensors),
        sum(one.nbytes for one in tensors if one.dtype is torch.int8),
        _share(counts),
        tuple(remainders),
    )


def _share(counts: dict[bool, list[int | None]]) -> float | None:
    whole, real = ([count for count in counts[kind] if count is not None] for kind in (True, False))
    if len(whole) + len(real) < len(counts[True]) + len(counts[False]) or not whole + real:
        return None
    return sum(whole) / max(1, sum(whole) + sum(real))
