"""Which operations an engine can hold: what TensorRT's converters ask of shapes, types and constants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx.errors import type_in_words, with_article
from fx.lowering.known_program import Operation
from fx.lowering.support import Predicate
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)
"""The types of elements that engines work on."""
FLOATS = DTYPES[:3]
"""Those of real numbers."""
STORED = (torch.uint8, torch.int8)
"""Those of quantized programs, which engines store about zero; only converters for these programs know of it."""
_MOST_DIMENSIONS = 8
"""What the sizes of a tensor of TensorRT have room for (``Dims::MAX_DIMS``)."""
_NO_TENSORS = (int, float, bool, torch.Size, torch.dtype)


def has_known_values(operation: Operation) -> str | None:
    """Takes operations whose operands and result are tensors of known shape, constants, or sizes."""
    return has_known_or_stored_values(operation) or _why_stored(operation)


def has_known_or_stored_values(operation: Operation) -> str | None:
    """The same, and values that quantized programs store."""
    for node in (*operation.node.all_input_nodes, operation.node):
        if (why := _why_unknown(node, operation)) is not None:
            return why
    return None


def _why_stored(operation: Operation) -> str | None:
    for node in (*operation.node.all_input_nodes, operation.node):
        if (dtype := operation.subject.dtype(node)) in STORED:
            return f"`%{node}` is {str(dtype).removeprefix('torch.')}, which engines do not work on"
    return None


def _why_unknown(node: Node, operation: Operation) -> str | None:
    if node.op == "get_attr":
        value = operation.subject.constant(node)
        if value is None:
            return f"`%{node}` is not a tensor, or may change in a run"
        return _why_unfit(node, tuple(value.shape), value.dtype, value)
    recorded = operation.metadata(node)
    if recorded is not None:
        return _why_unfit(node, tuple(recorded.shape), recorded.dtype, None)
    kind: Any = node.meta.get("type") if node._meta else None
    if kind is None:
        return f"the shape of `%{node}` is not known: give example_inputs"
    noted: Any = node.meta.get("tensor_meta")
    if isinstance(noted, (tuple, list)) and all(isinstance(one, TensorMetadata) for one in noted):
        return None
    return (
        None if issubclass(kind, _NO_TENSORS) else f"`%{node}` is {with_article(kind.__name__)}, not a tensor or a size"
    )


def _why_unfit(node: Node, shape: tuple[int, ...], dtype: torch.dtype, constant: Tensor | None) -> str | None:
    if dtype not in DTYPES + STORED:
        return f"`%{node}` is {str(dtype).removeprefix('torch.')}, which engines do not work on"
    if len(shape) > _MOST_DIMENSIONS:
        return f"`%{node}` has {len(shape)} dimensions, engines at most {_MOST_DIMENSIONS}"
    if 0 in shape:
        return f"`%{node}` has no elements"
    if constant is not None and type(constant) not in (Tensor, torch.nn.Parameter):
        return f"`%{node}` is {type_in_words(constant)}, not a plain tensor"
    return None


def takes_floats(*arguments: str | int) -> Predicate:
    """Takes operations of which these arguments are tensors of real numbers."""

    def check(operation: Operation) -> str | None:
        for name in arguments:
            value = operation.arguments.get(name)
            if isinstance(value, Node) and operation.subject.dtype(value) not in FLOATS:
                return f"`%{value}` holds no real numbers"
            if not isinstance(value, Node):
                return f"its {name} is not a tensor"
        return None

    return check


def is_one_of(**options: type | tuple[type, ...]) -> Predicate:
    """Takes operations whose options are of these classes, and not computed by the program."""

    def check(operation: Operation) -> str | None:
        for name, kinds in options.items():
            given = operation.arguments.get(name)
            if not isinstance(given, kinds):
                return f"its {name} is {given!r}"
            if isinstance(given, tuple) and not all(isinstance(one, int) for one in given):
                return f"its {name} is not made of numbers"
        return None

    return check
