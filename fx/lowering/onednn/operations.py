"""The operations of the canonical form that oneDNN's kernels compute, and those that PyTorch computes between them."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.errors import type_in_words
from fx.lowering.converters import Converter, Converters
from fx.lowering.known_program import Operation
from fx.lowering.onednn.modules import LEAST_LINEAR_WORK, Activation
from fx.lowering.onednn.network import FusedRegion
from fx.lowering.support import all_of, dtype_name, has_constant, has_numbers, where
from fx.node import Node
from fx.operators.families import find_operator

_SMALLEST_WEIGHT = 1 << 16


def _register_activation(target: Any, name: str, *scalars: str) -> None:
    """Register an activation that layers can fuse, whose keyword arguments ``scalars`` are numbers."""

    def build(network: FusedRegion, input: Node, **options: Any) -> Node:
        numbers = tuple(float(options[scalar]) for scalar in scalars)
        activation = Activation(name, numbers, options.get("approximate", ""))
        return network.activate(input, activation) or network.call(target, input=input, **options)

    converters.register(Converter(target, build, all_of(_takes_one_tensor, has_numbers(*scalars)), counts=0))


def _passthrough(target: Any) -> Converter:
    """Return the converter for a function that PyTorch computes within a region."""

    def build(network: FusedRegion, *args: Any, **kwargs: Any) -> Node:
        return network.call(target, *args, **kwargs)

    return Converter(target, build, _has_no_computed_options, counts=0)


def _other_activation(target: Any) -> Converter | None:
    """Return a passthrough for an activation that no kernel can fuse."""
    row = find_operator(target)
    is_passthrough = row is not None and row.function is target and row.family == "activation" and not row.draws
    return _passthrough(target) if is_passthrough else None


def _takes_one_tensor(operation: Operation) -> str | None:
    value = operation.arguments.get("input")
    is_unary = isinstance(value, Node) and value.op != "get_attr" and operation.node.all_input_nodes == [value]
    return None if is_unary else "its input is not its only computed operand"


def _has_no_computed_options(operation: Operation) -> str | None:
    """Accept an operation if its computed arguments are all float32 tensors, so that none is a size or an index."""
    for node in operation.node.all_input_nodes:
        if operation.subject.dtype(node) is not torch.float32:
            return f"`%{node}` is not known to be float32"
    return None


def _has_tuples(operation: Operation) -> bool:
    settings = [operation.arguments.get(name) for name in ("stride", "padding", "dilation")]
    return all(isinstance(sizes, tuple) and all(isinstance(size, int) for size in sizes) for sizes in settings)


def _is_large(operation: Operation) -> str | None:
    """Accept a linear layer if it does enough work for oneDNN to be faster."""
    weight, recorded = operation.constant("weight"), operation.metadata()
    if weight is None:
        return None
    if recorded is None:
        small = weight.numel() < _SMALLEST_WEIGHT
        return f"a weight of {weight.numel()} numbers is too small for oneDNN to gain anything" if small else None
    work = recorded.shape.numel() * weight.shape[1]
    if work < LEAST_LINEAR_WORK:
        return f"with {work} multiplications it is too small for oneDNN to gain anything"
    return None


def _has_weights(operation: Operation) -> str | None:
    for name in ("weight", "bias"):
        tensor = operation.constant(name)
        if tensor is not None and (tensor.dtype is not torch.float32 or not tensor.is_cpu or tensor.numel() == 0):
            return (
                f"its {name} is {dtype_name(tensor.dtype)} on {tensor.device.type}; oneDNN here is for float32 on CPU"
            )
        if tensor is not None and type(tensor) not in (Tensor, torch.nn.Parameter):
            return f"its {name} is {type_in_words(tensor)}, not a plain tensor"
    return None


def _has_input(operation: Operation) -> str | None:
    value = operation.arguments.get("input")
    if not isinstance(value, Node) or value.op == "get_attr":
        return "its input is not a computed value"
    recorded = operation.metadata(value)
    if recorded is not None and recorded.dtype is not torch.float32:
        return f"`%{value}` is {dtype_name(recorded.dtype)}, not float32"
    return None


converters = Converters("onednn", _other_activation)
"""The converters of the backend ``onednn``."""

_is_layer = all_of(has_constant("weight"), has_constant("bias", optional=True), _has_weights, _has_input)

converters.register(
    Converter(
        F.conv2d,
        FusedRegion.convolve,
        all_of(_is_layer, where(_has_tuples, "its padding or stride is not a tuple of numbers")),
    )
)
converters.register(Converter(F.linear, FusedRegion.multiply, all_of(_is_layer, _is_large)))
converters.register(Converter(operator.add, FusedRegion.add, _has_no_computed_options, counts=0))
for _target, _name in (
    (F.relu, "relu"), (torch.sigmoid, "sigmoid"), (torch.tanh, "tanh"), (F.silu, "swish"), (F.gelu, "gelu"),
    (F.hardswish, "hardswish"), (F.hardsigmoid, "hardsigmoid"),
):  # fmt: skip
    _register_activation(_target, _name)
_register_activation(F.leaky_relu, "leaky_relu", "negative_slope")
_register_activation(F.hardtanh, "hardtanh", "min_val", "max_val")
for _target in (
    *(operator.sub, operator.mul, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.batch_norm, F.dropout),
    *(torch.cat, torch.flatten, F.pixel_shuffle),
):
    converters.register(_passthrough(_target))
