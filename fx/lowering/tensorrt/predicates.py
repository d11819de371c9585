"""The predicates of TensorRT's converters, and the registry, to which the other modules here add converters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fx.errors import type_in_words, with_article
from fx.lowering.converters import Converter, Converters
from fx.lowering.known_program import Operation
from fx.lowering.support import Predicate, all_of, dtype_name
from fx.lowering.tensorrt.library import library
from fx.node import Node
from fx.passes.tensor_metadata import TensorMetadata

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
"""The types of elements that converters build. Engines have no float64, which only emulated ones compute."""
FLOATS = DTYPES[:4]
"""The floating-point types among them."""
STORED = (torch.uint8, torch.int8)
"""The types of quantized programs, which engines store centred about zero; only converters of these programs take
them."""
_MOST_DIMENSIONS = 8
"""The most dimensions of a tensor in TensorRT (``Dims::MAX_DIMS``)."""
_NO_TENSORS = (int, float, bool, torch.Size, torch.dtype)

converters = Converters("tensorrt")
"""The converters of the backend ``tensorrt``."""


def register(
    target: Any, build: Callable[..., Any], *predicates: Predicate, counts: int = 1, stored: bool = False
) -> None:
    """Register a converter for operations whose operands are known and that all predicates accept.

    Args:
        target: the function.
        build: the function that adds a call of it to a network.
        predicates: further conditions.
        counts: the number of operations as which it counts toward ``min_size``.
        stored: whether it takes the 8-bit integers of quantized programs.
    """
    are_known = has_known_or_stored_values if stored else has_known_values
    converters.register(Converter(target, build, all_of(are_known, *predicates), counts))


def setting(kind: str, name: str) -> Any:
    """Return a member of one of TensorRT's enumerations, such as ``setting("ActivationType", "RELU")``."""
    return getattr(getattr(library(), kind), name)


def has_known_values(operation: Operation) -> str | None:
    """Accept an operation if its operands and result are tensors of known shape, constants, or sizes."""
    return has_known_or_stored_values(operation) or _why_stored(operation)


def has_known_or_stored_values(operation: Operation) -> str | None:
    """Accept the same as :func:`has_known_values`, and 8-bit integers of quantized programs."""
    nodes = (*operation.node.all_input_nodes, operation.node)
    return next((why for node in nodes if (why := _why_unknown(node, operation)) is not None), None)


def _why_stored(operation: Operation) -> str | None:
    for node in (*operation.node.all_input_nodes, operation.node):
        dtype = operation.subject.dtype(node)
        if dtype is not None and dtype in STORED:
            return f"`%{node}` is {dtype_name(dtype)}, which engines do not support"
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
    parts = tree_leaves(node.meta.get("tensor_meta"), is_leaf=lambda part: isinstance(part, TensorMetadata))
    if parts and all(isinstance(part, TensorMetadata) for part in parts):
        return None
    if issubclass(kind, _NO_TENSORS):
        return None
    return f"`%{node}` is {with_article(kind.__name__)}, not a tensor or a size"


def _why_unfit(node: Node, shape: tuple[int, ...], dtype: torch.dtype, constant: Tensor | None) -> str | None:
    if dtype not in DTYPES + STORED:
        return f"`%{node}` is {dtype_name(dtype)}, which engines do not support"
    if len(shape) > _MOST_DIMENSIONS:
        return f"`%{node}` has {len(shape)} dimensions, engines at most {_MOST_DIMENSIONS}"
    if 0 in shape:
        return f"`%{node}` has no elements"
    if constant is not None and type(constant) not in (Tensor, torch.nn.Parameter):
        return f"`%{node}` is {type_in_words(constant)}, not a plain tensor"
    return None


def takes_floats(*arguments: str | int) -> Predicate:
    """Return a predicate for operations with floating-point tensors for these arguments."""

    def check(operation: Operation) -> str | None:
        for name in arguments:
            value = operation.arguments.get(name)
            if not isinstance(value, Node):
                return f"its {name} is not a tensor"
            if operation.subject.dtype(value) not in FLOATS:
                return f"`%{value}` is not a floating-point tensor"
        return None

    return check


def is_one_of(**options: type | tuple[type, ...]) -> Predicate:
    """Return a predicate for operations whose arguments have these classes, and are not computed by the program."""

    def check(operation: Operation) -> str | None:
        for name, kinds in options.items():
            value = operation.arguments.get(name)
            if not isinstance(value, kinds):
                return f"its {name} is {value!r}"
            if isinstance(value, tuple) and not all(isinstance(part, int) for part in value):
                return f"its {name} is not made of numbers"
        return None

    return check
