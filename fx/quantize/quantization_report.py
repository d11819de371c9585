"""``report``: the part of a converted program that is in 8 bits, and why the rest is not (paper, section 6.2.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fx.argument_types import checked
from fx.errors import QuantizationError
from fx.graph_module import GraphModule
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
"""The entry of a node's ``meta`` which marks an operation with a weight in 8 bits."""
ON_INTEGERS = "on_integers"
"""The entry of a node's ``meta`` which marks a product of integers without a weight, or its reference form."""
WEIGHT_ALONE = "weight_alone_in_8_bits"
"""The entry of a node's ``meta`` which marks a layer with a weight in 8 bits that computes on float values."""
_NO_KERNEL = "no kernel on integers computes it, so it works on float values and a weight that is stored in 8 bits"
_LAYERS: tuple[Family, ...] = ("linear", "convolution", "transposed convolution", "embedding")
_WITH_MATRICES: tuple[Family | None, ...] = ("product", "combination", None)
"""Families of operations that are layers if they read matrices of the program; None for functions of no family."""


@dataclass(frozen=True, slots=True)
class Remainder:
    """An operation that stayed on float values."""

    node: str
    """The name of its node."""
    reason: str
    """The reason."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""
    bytes_of_state: int = 0
    """The bytes of float parameters and buffers that it reads, if no operation before it reads them."""
    operations: int | None = 0
    """Its multiplications and additions, as far as they are counted; None if they are not known."""

    def __str__(self) -> str:
        listed = [f"{self.bytes_of_state:,} bytes of state"] if self.bytes_of_state else []
        if self.operations is None:
            listed.append("operations not counted")
        elif self.operations:
            listed.append(f"{self.operations:,} operations")
        return f"%{self.node}: {self.reason}" + (f" ({', '.join(listed)})" if listed else "")


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """The parts of a program in 8 bits, and those that stayed on float values."""

    layers: int
    """The number of calls of layers whose weights are in 8 bits. Layers that no kernel on integers takes, such as
    convolutions with a padding wider than their window, are among ``float_layers``."""
    float_layers: int
    """The number of calls of layers that stayed on float values. Layers are linear layers, convolutions, embeddings,
    and all else that multiplies by matrices of the program: recurrent modules, attention, unknown functions and
    modules."""
    bytes_of_state: int
    """The memory of parameters and buffers; shared memory counts once."""
    bytes_in_8_bits: int
    """The part of this memory in weights of 8 bits."""
    share_of_operations: float | None
    """The share of the program's multiplications and additions with weights or operands in 8 bits. It counts layers,
    products, attention and recurrences, and no elementwise operations. It is None if some counts are not known; without
    example inputs for ``prepare``, none is."""
    remainders: tuple[Remainder, ...]
    """The operations that stayed on float values."""
    weights_alone: int = 0
    """The number of ``layers`` that compute on float values, from a weight that is stored in 8 bits."""
    kernels: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of layers that used each kernel in this process so far, as ``kernels_used`` returns it."""

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
        return "\n".join([*lines, *(f"  {remainder}" for remainder in self.remainders)])


@checked(QuantizationError)
def report(converted: GraphModule) -> QuantizationReport:
    """Report the operations in 8 bits, and the others, of a program from :func:`~fx.quantize.conversion.convert`.

    All state counts: an operation that reads float parameters or buffers is among the remainders, beside those that
    compute on float values. Scales and biases of layers with 8-bit weights belong to these layers.

    >>> import torch, fx
    >>> from fx.quantize import convert, prepare
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    >>> prepared = prepare(fx.symbolic_trace(model), None, [torch.ones(1, 2)])
    >>> data = prepared(torch.ones(1, 2))
    >>> print(report(convert(prepared)))
    1 of 1 layers in 8 bits, 100.0% of the operations; 4 of 36 bytes of state
      %_1: there is no operation on integers for it (16 bytes of state)
    """
    state = {node: list(_state_of(converted, node)) for node in converted.graph.nodes}
    stored = [node for node in state if IN_8_BITS in node.meta or isinstance(_module(converted, node), QuantizedLayer)]
    layers = [node for node in stored if not _is_layer_in_float(converted, node)]
    in_8_bits = {*layers, *(node for node in state if ON_INTEGERS in node.meta or node.target is dequantize_channels)}
    listed = {_key(tensor) for node in in_8_bits for tensor in state[node]}
    remainders = list[Remainder]()
    for node, read in state.items():
        if node in in_8_bits:
            continue
        own_bytes = {_key(tensor): tensor.nbytes for tensor in read if _is_float(tensor) and _key(tensor) not in listed}
        listed.update(own_bytes)
        in_float = _is_layer_in_float(converted, node)
        if REASON in node.meta or own_bytes or work_of(node) or in_float:
            reason = _NO_KERNEL if in_float else _reason(node)
            remainders.append(Remainder(node.name, reason, node.source, sum(own_bytes.values()), work_of(node)))
    tensors = {_key(tensor): tensor for tensor in (*converted.parameters(), *converted.buffers())}.values()
    return QuantizationReport(
        len(layers),
        sum(node not in in_8_bits and (node in stored or _is_layer(node, state[node])) for node in state),
        sum(tensor.nbytes for tensor in tensors),
        sum(tensor.nbytes for tensor in tensors if tensor.dtype is torch.int8),
        _share([work_of(node) for node in in_8_bits], [work_of(node) for node in state if node not in in_8_bits]),
        tuple(remainders),
        sum(WEIGHT_ALONE in node.meta for node in layers),
        kernels_used(converted),
    )


def _module(program: GraphModule, node: Node) -> nn.Module | None:
    return program.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_layer_in_float(program: GraphModule, node: Node) -> bool:
    """Return whether a layer that was written on integers computes on float values, since no kernel takes it."""
    module = _module(program, node)
    return isinstance(module, QuantizedLayer) and module.is_in_float


def _state_of(program: GraphModule, node: Node) -> Iterator[Tensor]:
    """Yield the parameters and buffers that an operation reads."""
    if node.op == "get_attr":
        return  # its users read the state
    paths = [str(operand.target) for operand in node.all_input_nodes if operand.op == "get_attr"]
    fetched: list[Any] = [fetch_attribute(program, path) for path in paths]
    for owner in (_module(program, node), *tree_leaves(fetched)):
        if isinstance(owner, nn.Module):
            yield from (*owner.parameters(), *owner.buffers())
        elif isinstance(owner, Tensor):
            yield owner


def _key(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors of the same memory."""
    place = tensor.data_ptr() if tensor.layout is torch.strided else 0
    return place or id(tensor), tensor.dtype, tensor.shape


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_layer(node: Node, tensors: list[Tensor]) -> bool:
    """Return whether an operation on float values has, or ought to have, a weight."""
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
    counted = sum(work for work in in_8_bits if work is not None)
    total = counted + sum(work for work in in_float if work is not None)
    return None if None in (*in_8_bits, *in_float) or not total else counted / total
