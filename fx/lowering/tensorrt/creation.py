"""TensorRT's converters for tensors that programs create from numbers: constants, computed before the build."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx.lowering.known_program import Operation, is_number
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import DTYPES, register
from fx.lowering.tensorrt.ranges import sizes_of, varies
from fx.node import Node
from fx.passes.functional_form import with_items

_OF_DTYPE = (Tensor.new_zeros, Tensor.new_ones, Tensor.new_full)
"""Functions that take the dtype from their first argument."""
_LIKE = (torch.zeros_like, torch.ones_like, torch.full_like)
"""Functions that take the dtype and the sizes from their first argument."""
_CREATING = (*_OF_DTYPE, *_LIKE, torch.zeros, torch.ones, torch.full, torch.arange)


def _register(target: Any) -> None:
    def build(network: TensorRTNetwork, *args: Any, **options: Any) -> Tensor:
        if target in (*_OF_DTYPE, *_LIKE):
            (name, first), *_ = (*enumerate(args), *options.items())
            sizes = network.sizes(first) if target in _LIKE else ()
            facts = torch.empty(tuple(sizes), dtype=network.dtype(first), device="meta")  # type: ignore[arg-type]
            args = (facts, *args[1:]) if name == 0 else args
            options = options if name == 0 else {**options, str(name): facts}
        return target(*args, **{**options, "device": "cpu"})

    register(target, build, _is_known, counts=0)


def _is_known(operation: Operation) -> str | None:
    """Accept a call that creates the same tensor in all runs."""
    return None if is_created(operation, operation.node) else "it depends on sizes that vary, or on elements"


def is_created(operation: Operation, node: Node) -> bool:
    """Return whether a value is a constant, a number that is the same in all runs, or created from such."""
    if node.op == "get_attr":
        return operation.subject.constant(node) is not None
    if is_number(node):
        return not varies(node)
    if node.target not in (*_CREATING, with_items) or operation.subject.dtype(node) not in DTYPES:
        return False
    operands = node.all_input_nodes
    if node.target in _LIKE and operands[0].op != "get_attr":
        least, _, most = sizes_of(operands[0])
        if least != most:
            return False
    operands = operands[1:] if node.target in (*_OF_DTYPE, *_LIKE) else operands
    return all(is_created(operation, used) for used in operands)


def set_items(network: TensorRTNetwork, input: Tensor, index: Any, value: Any) -> Tensor:
    """Assign to elements of a constant."""
    return with_items(input, index, value)


for _target in _CREATING:
    _register(_target)
register(with_items, set_items, _is_known, counts=0)
