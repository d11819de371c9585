"""``report``: how much of a converted program is in 8 bits, and why the rest is not (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fx.errors import QuantizationError
from fx.graph_module import GraphModule, expect_program
from fx.modules.attributes import fetch_attribute
from fx.node import Node
from fx.operators.facts import Family
from fx.operators.families import find_operator
from fx.provenance import SourceLocation
from fx.quantize.arithmetic import dequantize_channels
from fx.quantize.layers import QuantizedLayer, kernels_used
from fx.quantize.preparation import REASON
from fx.quantize.recurrence import recurrent
from fx.quantize.work import work_of

IN_8_BITS = "weight_in_8_bits"
"""Where nodes say in ``meta`` that they work with a weight in 8 bits."""
ON_INTEGERS = "on_integers"
"""Where nodes that have no weight say in ``meta`` that they multiply integers, or stand for what does."""
WEIGHT_ALONE = "weight_alone_in_8_bits"
"""Where layers say in ``meta`` that they compute on float values."""
_LAYERS: tuple[Family, ...] = ("linear", "convolution", "transposed convolution", "embedding")
_WITH_MATRICES: tuple[Family | None, ...] = ("product", "combination", None)
"""Families of operations that are layers if they have matrices of the program's, and functions of none."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """An operation that stayed on float values."""

    node: str
    """Name of its node."""
    reason: str
    """Why."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""
    bytes_of_state: int = 0
    """Memory of the parameters and buffers of float values that it reads, if no operation before it does."""
    operations: int | None = 0
    """Its multiplications and additions, as far as they are counted; None where they are not known."""

    def __str__(self) -> str:
        listed = [f"{self.bytes_of_state:,} bytes of state"] if self.bytes_of_state else []
        if self.operations is None:
            listed.append("operations not counted")
        elif self.operations:
            listed.append(f"{self.operations:,} operations")
        return f"%{self.node}: {self.reason}" + (f" ({', '.join(listed)})" if listed else "")


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """What of a program is in 8 bits."""

    layers: int
    """Calls of layers whose weights are in 8 bits."""
    float_layers: int
    """Calls of layers that stayed on float values: linear ones, convolutions, embeddings, and whatever else multiplies
    by matrices of the program's, such as recurrent modules, attention, and functions and modules that nobody knows."""
    bytes_of_state: int
    """Memory of parameters and buffers, of each once."""
    bytes_in_8_bits: int
    """Of these, the memory of weights in 8 bits."""
    share_of_operations: float | None
    """The part of the program's multiplications and additions that has weights or operands in 8 bits. Counted are those
    of layers, products, attention and recurrences, and not those for each element alone. None where some of them are
    not known, as all are if ``prepare`` gets no example inputs."""
    remainders: tuple[Remainder, ...]
    """What stayed on float values."""
    weights_alone: int = 0
    """Of the layers, those that compute on float values, with the float values of a weight that is stored in 8 bits."""
    kernels: Mapping[str, int] = field(default_factory=dict[str, int])
    """By how many layers each kernel was used in this process so far, as ``kernels_used`` returns it."""

    def __str__(self) -> str:
        share = ", operations not counted"
        if self.share_of_operations is not None:
            share = f", {self.share_of_operations:.1%} of the operations"
        alone = f" ({self.weights_alone} of them in their weights alone)" if self.weights_alone else ""
        lines = [
            f"{self.layers} of {self.layers + self.float_layers} layers in 8 bits{alone}{share}; "
            f"{self.bytes_in_8_bits:,} of {self.bytes_of_state:,} bytes of state"
        ]
        if self.kernels:
            lines.append(f"  on {', '.join(f'{name} ({count})' for name, count in self.kernels.items())}")
        return "\n".join([*lines, *(f"  {one}" for one in self.remainders)])


def report(converted: GraphModule) -> QuantizationReport:
    """Return what became of each operation of a program that :func:`~fx.quantize.conversion.convert` returned.

    All state counts, whatever holds it: what reads float values of parameters or buffers is among the remainders,
    beside what computes on float values. Scales, and biases of layers whose weights are in 8 bits, belong to these.

    >>> import torch, fx
    >>> from fx.quantize import convert, prepare
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    >>> prepared = prepare(fx.symbolic_trace(model), None, [torch.ones(1, 2)])
    >>> data = prepared(torch.ones(1, 2))
    >>> print(report(convert(prepared)))
    1 of 1 layers in 8 bits, 100.0% of the operations; 4 of 36 bytes of state
      %_1: there is no operation on integers for it (16 bytes of state)
    """
    expect_program(converted, "report takes a GraphModule", error=QuantizationError)
    held = {node: list(_state_of(converted, node)) for node in converted.graph.nodes}
    layers = [node for node in held if IN_8_BITS in node.meta or isinstance(_module(converted, node), QuantizedLayer)]
    in_8_bits = {*layers, *(node for node in held if ON_INTEGERS in node.meta or node.target is dequantize_channels)}
    listed = {_key(tensor) for node in in_8_bits for tensor in held[node]}
    remainders = list[Remainder]()
    for node, read in held.items():
        if node in in_8_bits:
            continue
        own = {_key(tensor): tensor.nbytes for tensor in read if _is_float(tensor) and _key(tensor) not in listed}
        listed.update(own)
        if REASON in node.meta or own or work_of(node):
            remainders.append(Remainder(node.name, _reason(node), node.source, sum(own.values()), work_of(node)))
    tensors = {_key(one): one for one in (*converted.parameters(), *converted.buffers())}.values()
    return QuantizationReport(
        len(layers),
        sum(node not in in_8_bits and _is_layer(node, held[node]) for node in held),
        sum(one.nbytes for one in tensors),
        sum(one.nbytes for one in tensors if one.dtype is torch.int8),
        _share([work_of(node) for node in in_8_bits], [work_of(node) for node in held if node not in in_8_bits]),
        tuple(remainders),
        sum(WEIGHT_ALONE in node.meta for node in layers),
        kernels_used(converted),
    )


def _module(program: GraphModule, node: Node) -> nn.Module | None:
    return program.get_submodule(str(node.target)) if node.op == "call_module" else None


def _state_of(program: GraphModule, node: Node) -> Iterator[Tensor]:
    """The parameters and buffers that an operation reads."""
    if node.op == "get_attr":
        return  # whoever uses it reads it
    paths = [str(one.target) for one in node.all_input_nodes if one.op == "get_attr"]
    fetched: list[Any] = [fetch_attribute(program, path) for path in paths]
    for one in (_module(program, node), *tree_leaves(fetched)):
        if isinstance(one, nn.Module):
            yield from (*one.parameters(), *one.buffers())
        elif isinstance(one, Tensor):
            yield one


def _key(tensor: Tensor) -> tuple[Any, ...]:
    """Equal for tensors of the same memory."""
    place = tensor.data_ptr() if tensor.layout is torch.strided else 0
    return place or id(tensor), tensor.dtype, tensor.shape


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_layer(node: Node, tensors: list[Tensor]) -> bool:
    """Return whether an operation on float values is one that has, or ought to have, a weight."""
    has_matrix = any(_is_float(tensor) and tensor.dim() > 1 for tensor in tensors)
    if node.op == "call_module":
        return has_matrix
    row = find_operator(node.target)
    family = None if row is None else row.family
    multiplies = has_matrix and family in _WITH_MATRICES and not _is_own(node) and node.op != "output"
    return family in _LAYERS or multiplies or node.target is recurrent


def _is_own(node: Node) -> bool:
    """Return whether an operation is a conversion, or an operation on integers."""
    return str(getattr(node.target, "__module__", "")).startswith("fx.quantize.")


def _reason(node: Node) -> str:
    if node.op == "output":
        return "the program returns it"
    default = "what it reads is stored as float values, and becomes integers in each call"
    return node.meta.get(REASON, default if _is_own(node) else "it works on float values")


def _share(in_8_bits: Sequence[int | None], in_float: Sequence[int | None]) -> float | None:
    known = [one for one in in_8_bits if one is not None]
    total = sum(known) + sum(one for one in in_float if one is not None)
    return None if None in (*in_8_bits, *in_float) or not total else sum(known) / total
