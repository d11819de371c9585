"""TensorRT's converters for arithmetic, comparisons, products and sums, on tensors and on sizes."""

from __future__ import annotations

import operator
from typing import Any

import torch

from fx.lowering.known_program import Operation
from fx.lowering.support import Predicate, shape_of, where
from fx.lowering.tensorrt.activations import apply, combine
from fx.lowering.tensorrt.network import Number, Size, TensorRTNetwork
from fx.lowering.tensorrt.predicates import FLOATS, is_one_of, register, setting, takes_floats
from fx.node import Node

_ON_SIZES: dict[Any, str] = {
    operator.add: "SUM", operator.sub: "SUB", operator.mul: "PROD", operator.floordiv: "FLOOR_DIV",
}  # fmt: skip


def compute(network: TensorRTNetwork, function: Any, left: Number, right: Number) -> Number:
    """Compute with sizes: at once if both are numbers, in the engine otherwise."""
    if isinstance(left, Size) or isinstance(right, Size):
        return network.compute(_ON_SIZES[function], left, right)
    return function(left, right)


def _register_binary(function: Any, kind: str, *predicates: Predicate) -> None:
    def build(network: TensorRTNetwork, left: Any, right: Any) -> Any:
        if function in _ON_SIZES and all(isinstance(operand, (int, Size)) for operand in (left, right)):
            return compute(network, function, left, right)
        return combine(network, kind, left, right)

    register(function, build, _takes_numbers, *predicates)


def _takes_numbers(operation: Operation) -> str | None:
    """Accept operands that are tensors, literals or sizes; a result of sizes must be a size again."""
    node = operation.node
    operands = [value for value in operation.arguments.values() if not isinstance(value, bool)]
    if not all(isinstance(value, (Node, int, float)) for value in operands):
        return "an operand is neither a tensor nor a number"
    if operation.metadata() is None and (node.target not in _ON_SIZES or node.meta.get("type") is not int):
        return "engines do not compute this with sizes"
    if node.target in _ON_SIZES and operation.subject.dtype(node) is torch.bool:
        return "engines do not add truth values"
    return None


def divide(network: TensorRTNetwork, left: Any, right: Any) -> Any:
    """Divide; the quotient of integers is a floating-point number."""
    dtype = network.common_dtype([left, right])
    dtype = dtype if dtype.is_floating_point else network.working(torch.get_default_dtype())
    return network.add("elementwise", *network.common([left, right], dtype), setting("ElementWiseOperation", "DIV"))


def _register_comparison(function: Any, kind: str, negated: bool) -> None:
    def build(network: TensorRTNetwork, left: Any, right: Any) -> Any:
        result = combine(network, kind, left, right)
        return apply(network, result, "NOT") if negated else result

    register(function, build, _takes_numbers, _compares_numbers)


def _compares_numbers(operation: Operation) -> str | None:
    for value in operation.arguments.values():
        if isinstance(value, Node) and operation.subject.dtype(value) is torch.bool:
            return f"`%{value}` holds truth values, which engines do not compare"
    return None


def at_most(network: TensorRTNetwork, left: Any, right: Any) -> Any:
    """Add ``left <= right``, which is false where either is NaN."""
    both = network.common([left, right])
    return combine(network, "OR", *(combine(network, kind, *both) for kind in ("LESS", "EQUAL")))


def _takes_truth_values(operation: Operation) -> str | None:
    operands = operation.arguments.values()
    if all(isinstance(operand, Node) and operation.subject.dtype(operand) is torch.bool for operand in operands):
        return None
    return "its operands are not truth values"


def power(network: TensorRTNetwork, left: Any, right: Any) -> Any:
    """Raise to a power; squares and cubes are products, which are correct for negative numbers."""
    if isinstance(right, (int, float)) and right in (2, 3):
        square = combine(network, "PROD", left, left)
        return square if right == 2 else combine(network, "PROD", square, left)
    return combine(network, "POW", left, right)


def matmul(network: TensorRTNetwork, input: Any, mat2: Any) -> Any:
    """Multiply matrices, or batches of matrices."""
    none = setting("MatrixOperation", "NONE")
    first, second = network.common([input, mat2])
    return network.add("matrix_multiply", first, none, second, none)


def _takes_matrices(operation: Operation) -> str | None:
    for value in operation.arguments.values():
        shape = shape_of(operation, value)
        if shape is None or len(shape) < 2 or operation.subject.dtype(value) not in FLOATS:
            return f"`%{value}` is not a floating-point matrix, nor a batch of them"
    return None


def select(network: TensorRTNetwork, condition: Any, input: Any, other: Any) -> Any:
    """Select elements from one of two tensors."""
    first, second = network.common([input, other])
    rank = max(network.rank(condition), network.rank(first))
    first, second = (network.tensor(choice, rank=rank) for choice in (first, second))
    return network.add("select", network.tensor(condition, rank=rank), first, second)


def masked_fill(network: TensorRTNetwork, input: Any, mask: Any, value: Any) -> Any:
    """Fill in a number where the mask is true."""
    dtype = network.dtype(input)
    rank = max(network.rank(input), network.rank(mask))
    filled = network.tensor(value, dtype, rank)
    return network.add("select", network.tensor(mask, rank=rank), filled, network.tensor(input, rank=rank))


def _register_reduction(function: Any, kind: str) -> None:
    def build(network: TensorRTNetwork, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        rank, input_dtype = network.rank(input), network.dtype(input)
        chosen = range(rank) if dim is None or dim == () else (dim,) if isinstance(dim, int) else dim
        axes = sum(1 << axis for axis in {number % rank for number in chosen})
        if kind == "SUM" and dtype is None and not input_dtype.is_floating_point:
            dtype = torch.int64
        tensor = network.tensor(input, None if dtype is None else network.working(dtype))
        return network.add("reduce", tensor, setting("ReduceOperation", kind), axes, bool(keepdim))

    register(function, build, _reduces)


def _reduces(operation: Operation) -> str | None:
    value = operation.arguments.get("input")
    shape = shape_of(operation, value)
    if not shape:
        return "its input is a single number"
    options = {"dim": (int, tuple, type(None)), "keepdim": int, "dtype": (torch.dtype, type(None))}
    present = {name: kinds for name, kinds in options.items() if name in operation.arguments}
    if operation.target is not torch.sum and (why := takes_floats("input")(operation)) is not None:
        return why
    return is_one_of(**present)(operation)


for _function, _kind in ((operator.add, "SUM"), (operator.sub, "SUB"), (operator.mul, "PROD")):
    _register_binary(_function, _kind)
_register_binary(operator.floordiv, "FLOOR_DIV", where(lambda operation: operation.metadata() is None, "it rounds"))
_is_tensor = where(lambda operation: operation.metadata() is not None, "engines do not compute this with sizes")
register(operator.truediv, divide, _is_tensor, _takes_numbers)
register(operator.pow, power, _is_tensor, _takes_numbers, takes_floats(0))
for _function, _kind, _negated in (
    (operator.eq, "EQUAL", False), (operator.ne, "EQUAL", True), (operator.lt, "LESS", False),
    (operator.gt, "GREATER", False),
):  # fmt: skip
    _register_comparison(_function, _kind, _negated)
register(operator.le, at_most, _is_tensor, _takes_numbers, _compares_numbers)
register(
    operator.ge,
    lambda network, left, right: at_most(network, right, left),
    *(_is_tensor, _takes_numbers, _compares_numbers),
)
for _function, _kind in ((operator.and_, "AND"), (operator.or_, "OR"), (operator.xor, "XOR")):
    register(
        _function,
        lambda network, left, right, kind=_kind: combine(network, kind, left, right),
        _takes_truth_values,
    )
register(operator.invert, lambda network, value: apply(network, value, "NOT"), _takes_truth_values)
register(operator.neg, lambda network, value: apply(network, value, "NEG"), takes_floats(0))
register(operator.abs, lambda network, value: apply(network, value, "ABS"), takes_floats(0))
for _function, _kind in ((torch.maximum, "MAX"), (torch.minimum, "MIN")):
    register(
        _function,
        lambda network, input, other, kind=_kind: combine(network, kind, input, other),
        takes_floats("input", "other"),
    )
register(operator.matmul, matmul, _takes_matrices)
register(torch.bmm, matmul, _takes_matrices)
register(torch.where, select)
register(torch.masked_fill, masked_fill, is_one_of(value=(int, float)))
for _function, _kind in ((torch.sum, "SUM"), (torch.mean, "AVG"), (torch.amax, "MAX"), (torch.amin, "MIN")):
    _register_reduction(_function, _kind)
register(torch.logical_not, lambda network, input: apply(network, input, "NOT"), _takes_truth_values)
register(
    torch.logical_and,
    lambda network, input, other: combine(network, "AND", input, other),
    _takes_truth_values,
)
