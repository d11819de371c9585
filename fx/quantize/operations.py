"""What of the canonical form can work on 8-bit whole numbers, and which of its arguments these are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from fx.node import Node

__all__ = ["Operation", "asks_for_size", "is_part", "operation_of", "plain_spelling"]

Kind = Literal["layer", "embedding", "function", "binary", "product", "join", "mean", "shape"]

_torch: Any = torch


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of a program that can be quantized."""

    kind: Kind
    """How: a ``layer`` has a weight, and an ``embedding`` nothing else; a ``function`` of one value is a table; a
    ``binary`` one has two operands, and a ``product`` two matrices; a ``join`` takes values from some; a ``mean``
    averages; and ``shape`` only moves or picks values, which keep their scale."""
    operands: tuple[Node, ...]
    """The values that it works on."""
    bounds: tuple[float | None, float | None] | None = None
    """Smallest and largest value of a function that only bounds its operand, such as ReLU, which is 0 and none."""


_LAYERS: tuple[Any, ...] = (F.linear, F.conv1d, F.conv2d, F.conv3d)
_EMBEDDINGS: tuple[Any, ...] = (F.embedding, F.embedding_bag)
_FUNCTIONS: tuple[Any, ...] = (
    F.relu, F.hardtanh, F.hardswish, F.hardsigmoid, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.leaky_relu,
    F.softplus, F.softsign, F.logsigmoid, F.threshold, F.hardshrink, F.softshrink, F.tanhshrink, torch.sigmoid,
    torch.tanh, torch.clamp, torch.clamp_min, torch.clamp_max, torch.square, torch.exp, torch.expm1, torch.erf,
    torch.sin, torch.cos, torch.atan, operator.neg, operator.abs,
)  # fmt: skip
_BINARY: tuple[Any, ...] = (operator.add, operator.sub, operator.mul)
_PRODUCTS: tuple[Any, ...] = (operator.matmul, torch.bmm, torch.mm)
_JOINS: tuple[Any, ...] = (torch.cat, torch.stack)
_EXTREMES: tuple[Any, ...] = (torch.maximum, torch.minimum)
_WITH_NUMBER: tuple[Any, ...] = (operator.add, operator.sub, operator.mul, operator.truediv)
_MEANS: tuple[Any, ...] = (
    F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d,
    torch.mean,
)  # fmt: skip
_SHAPES: tuple[Any, ...] = (
    torch.reshape, torch.flatten, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze, torch.unflatten,
    torch.Tensor.view, torch.Tensor.expand, torch.Tensor.contiguous, torch.narrow, torch.flip, torch.roll,
    torch.movedim, F.max_pool1d, F.max_pool2d, F.max_pool3d, F.adaptive_max_pool1d, F.adaptive_max_pool2d,
    F.adaptive_max_pool3d, F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle, F.interpolate, F.pad, torch.amax,
    torch.amin, torch.select, torch.index_select, torch.clone, torch.detach, torch.Tensor.repeat, torch.Tensor.tile,
    torch.repeat_interleave, operator.getitem,
)  # fmt: skip
_SPLITS: tuple[Any, ...] = (torch.chunk, torch.split, torch.unbind, torch.tensor_split)
_SIZES: tuple[Any, ...] = (torch.Tensor.size, torch.Tensor.dim, torch.numel, torch.Tensor.numel, len)
_IN_PLACE: dict[Any, Any] = {operator.iadd: operator.add, operator.imul: operator.mul}


def _member(target: Any, functions: tuple[Any, ...]) -> bool:
    return any(target is function for function in functions)


def operation_of(node: Node) -> Operation | str:
    """How the call of ``node``, in canonical form, works on whole numbers, or why it does not."""
    if node.op != "call_function":
        return "it is no function" if node.op.startswith("call") else ""
    target, arguments = node.target, node.kwargs
    if arguments.get("inplace") or target in _IN_PLACE:
        return "it writes to its input, which other operations may use"
    if _member(target, _LAYERS):
        return _layer(node)
    if _member(target, _EMBEDDINGS):
        return _embedding(node)
    if _member(target, _BINARY) and len(node.args) == 2 and all(isinstance(one, Node) for one in node.args):
        return Operation("binary", tuple(one for one in node.args if isinstance(one, Node)))
    if _member(target, _PRODUCTS) or _member(target, _EXTREMES):
        operands = tuple(one for one in (*node.args, *node.kwargs.values()) if isinstance(one, Node))
        kind = "product" if _member(target, _PRODUCTS) else "join"
        return Operation(kind, operands) if len(operands) == 2 else "one of its inputs is no value of the program"
    if _member(target, _JOINS):
        return _join(node)
    if _member(target, _FUNCTIONS) or _member(target, _WITH_NUMBER) or _is_power(node):
        return _function(node)
    if _member(target, _SPLITS):
        return _split(node)
    for kind, functions in (("mean", _MEANS), ("shape", _SHAPES)):
        if _member(target, functions):
            return _single(node, kind)  # type: ignore[arg-type]
    return "there is no operation on whole numbers for it"


def _is_power(node: Node) -> bool:
    """Whether a value is raised to a power for which any value will do."""
    return node.target is operator.pow and isinstance(node.args[1], int) and node.args[1] > 0


def _embedding(node: Node) -> Operation | str:
    weight = node.kwargs.get("weight")
    if not isinstance(weight, Node) or weight.op != "get_attr":
        return "its weight is computed while the program runs"
    if node.kwargs.get("max_norm") is not None:
        return "it writes to its weight"
    return Operation("embedding", ())


def _split(node: Node) -> Operation | str:
    operand = node.kwargs.get("input", node.kwargs.get("tensor"))
    if not isinstance(operand, Node):
        return "its input is no value of the program"
    if not all(user.target is operator.getitem and isinstance(user.args[1], int) for user in node.users):
        return "its parts are used as a list"
    return Operation("shape", (operand,))


def is_part(node: Node) -> bool:
    """Whether a value is one of the parts that another was split into."""
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, Node) and _member(source.target, _SPLITS)


def _layer(node: Node) -> Operation | str:
    source, weight, bias = (node.kwargs.get(name) for name in ("input", "weight", "bias"))
    if not isinstance(source, Node) or not isinstance(weight, Node):
        return "its input is no value of the program"
    if weight.op != "get_attr" or (bias is not None and (not isinstance(bias, Node) or bias.op != "get_attr")):
        return "its weight or bias is computed while the program runs"
    if _other_nodes(node, ("input", "weight", "bias")):
        return "its sizes are computed while the program runs"
    if isinstance(node.kwargs.get("padding"), str):
        return "it pads more on one side than on the other"
    return Operation("layer", (source,))


def _join(node: Node) -> Operation | str:
    tensors = node.kwargs.get("tensors")
    if not isinstance(tensors, (tuple, list)) or not tensors or not all(isinstance(one, Node) for one in tensors):
        return "what it joins is a list that the program makes"
    return Operation("join", tuple(one for one in tensors if isinstance(one, Node)))


def _function(node: Node) -> Operation | str:
    if len(node.all_input_nodes) != 1:
        return "it has an option that is computed while the program runs"
    operand = node.all_input_nodes[0]
    if [*node.args, *node.kwargs.values()].count(operand) != 1:
        return "it is no function of one value"
    settings = node.kwargs
    low, high = {F.relu: (0.0, None), F.hardtanh: (settings.get("min_val"), settings.get("max_val"))}.get(
        node.target, (settings.get("min"), settings.get("max"))  # type: ignore[arg-type]
    )  # fmt: skip
    bounds = (_real(low), _real(high)) if _member(node.target, _BOUNDS) else None
    return Operation("function", (operand,), bounds)


_BOUNDS: tuple[Any, ...] = (F.relu, F.hardtanh, torch.clamp, torch.clamp_min, torch.clamp_max)


def _real(value: Any) -> float | None:
    return None if value is None else float(value)


def _single(node: Node, kind: Kind) -> Operation | str:
    operand = node.kwargs.get("input", node.args[0] if node.args else None)
    if not isinstance(operand, Node):
        return "its input is no value of the program"
    if node.kwargs.get("return_indices") or node.kwargs.get("dtype") is not None:
        return "it returns something else than values of its input"
    if node.target is F.interpolate and node.kwargs.get("mode") not in ("nearest", "nearest-exact"):
        return "it computes values between those of its input"
    if node.target is F.pad and node.kwargs.get("value") not in (None, 0):
        return "it pads with a number that is not zero"
    return Operation(kind, (operand,))


def _other_nodes(node: Node, known: tuple[str, ...]) -> bool:
    others = [value for name, value in node.kwargs.items() if name not in known]
    return bool(node.args) or any(
        isinstance(one, Node) for value in others for one in (value if isinstance(value, (tuple, list)) else (value,))
    )


def asks_for_size(node: Node) -> bool:
    """Whether an operation asks for the size of a value, which is the same for whole numbers."""
    if node.target is getattr:
        return len(node.args) > 1 and node.args[1] in ("shape", "ndim")
    return _member(node.target, _SIZES)


def plain_spelling(node: Node) -> Callable[[], None] | None:
    """For an operation that writes to its input, what makes it return a new value instead; None for others."""
    if node.op != "call_function":
        return None
    if node.target in _IN_PLACE and isinstance(node.args[0], Node):
        return lambda: setattr(node, "target", _IN_PLACE[node.target])
    if node.kwargs.get("inplace") is True:
        return lambda: setattr(node, "kwargs", {**node.kwargs, "inplace": False})
    return None
