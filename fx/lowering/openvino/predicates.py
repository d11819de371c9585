"""What calls of operations the converters of OpenVINO can build, and the registry, which the files beside this fill."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fx.errors import with_article
from fx.lowering.converters import Converter, Converters
from fx.lowering.known_program import Operation
from fx.lowering.support import Predicate, all_of, dtype_name, where
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

DTYPES = (torch.float32, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool)
"""What values in a network may be."""
_PLAIN = (bool, torch.dtype, torch.Size)
_GIVING_PLAIN = (operator.eq, operator.ne, torch.Tensor.size, getattr)
"""Operations whose result may be a plain value that is known when the engine is built."""

converters = Converters("openvino")
"""The converters of the backend ``openvino``."""


def add_converter(target: Any, build: Callable[..., Any], *predicates: Predicate, counts: bool = True) -> None:
    """Register how calls of ``target`` are built, if their values are known and the predicates take them."""
    converters.register(Converter(target, build, all_of(knows_values, *predicates), counts))


def knows_values(operation: Operation) -> str | None:
    """Takes operations whose operands and result are tensors of known dtype and shape on the CPU, or integers."""
    nodes = (*operation.node.all_input_nodes, operation.node)
    return next((why for node in nodes if (why := _why_unknown(operation, node)) is not None), None)


def _why_unknown(operation: Operation, node: Node) -> str | None:
    if node.op == "get_attr":
        tensor = operation.subject.constant(node)
        if tensor is None:
            return f"`%{node}` is not a tensor of the program, or may change in a run"
        if type(tensor) not in (Tensor, torch.nn.Parameter) or not tensor.is_cpu or tensor.layout is not torch.strided:
            return f"`%{node}` is not a plain tensor on the CPU"
        return None if tensor.dtype in DTYPES else f"`%{node}` is {dtype_name(tensor.dtype)}, which engines do not have"
    recorded: Any = node.meta.get("tensor_meta")
    if recorded is None:
        kind = node.meta.get("type")
        if kind is None:
            return f"the shape of `%{node}` is not known: give example_inputs"
        is_made_inside = kind in _PLAIN and node.target in _GIVING_PLAIN
        if kind is torch.Size:  # only single sizes may be taken of it
            is_made_inside &= all(one.target is operator.getitem and isinstance(one.args[1], int) for one in node.users)
        if kind is int or is_made_inside:
            return None
        return f"`%{node}` is {with_article(kind.__name__)}, which engines do not have"
    for one in _flat(recorded):
        if not isinstance(one, TensorMetadata) or one.dtype not in DTYPES or one.is_quantized:
            what = dtype_name(one.dtype) if isinstance(one, TensorMetadata) else "something"
            return f"`%{node}` is {what}, which engines do not have"
        if 0 in one.shape:
            return f"`%{node}` has no elements"
    return None


def _flat(recorded: Any) -> list[Any]:
    if isinstance(recorded, TensorMetadata) or not isinstance(recorded, (tuple, list)):
        return [recorded]
    return [leaf for one in recorded for leaf in _flat(one)]


def computes(*dtypes: torch.dtype) -> Predicate:
    """Takes operations whose tensors, operands and result, are all of one of ``dtypes``; plain numbers are none."""

    def check(operation: Operation) -> str | None:
        nodes = (*operation.node.all_input_nodes, operation.node)
        return next((why for node in nodes if (why := _why_other(operation, node, dtypes)) is not None), None)

    return check


def takes(dtypes: tuple[torch.dtype, ...], *arguments: str | int) -> Predicate:
    """Takes operations of which these arguments are tensors of one of ``dtypes``."""

    def check(operation: Operation) -> str | None:
        for name in arguments:
            value = operation.arguments.get(name)
            if not isinstance(value, Node):
                return f"its {name} is not a tensor"
            if (why := _why_other(operation, value, dtypes)) is not None:
                return why
        return None

    return check


def _why_other(operation: Operation, node: Node, dtypes: tuple[torch.dtype, ...]) -> str | None:
    dtype = operation.subject.dtype(node)
    if dtype is None:
        whole = node.meta.get("type") in (int, bool)
        return None if whole and node is not operation.node else f"`%{node}` is not a tensor"
    wanted = " or ".join(map(dtype_name, dtypes))
    return None if dtype in dtypes else f"`%{node}` is {dtype_name(dtype)}, and only {wanted} is computed as in PyTorch"


def is_given(*arguments: str | int) -> Predicate:
    """Takes operations of which these arguments are values or constants of the program, not numbers."""
    return where(
        lambda operation: all(isinstance(operation.arguments.get(name), Node) for name in arguments),
        f"its {' or '.join(map(str, arguments))} is not a tensor",
    )


def is_number(operation: Operation) -> bool:
    """Return whether an operation is arithmetic of sizes."""
    return operation.node.meta.get("type") is int and operation.node.target in (
        operator.add, operator.sub, operator.mul, operator.floordiv,
    )  # fmt: skip
