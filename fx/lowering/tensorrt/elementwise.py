"""TensorRT's converters for arithmetic, comparisons, products and sums, on tensors and on sizes."""

from __future__ import annotations

import operator
import string
from typing import Any

import torch

from fx.lowering.known_program import Operation
from fx.lowering.support import Predicate, any_of, shape_of, where
from fx.lowering.tensorrt.activations import apply, combine
from fx.lowering.tensorrt.network import Number, Size, TensorRTNetwork
from fx.lowering.tensorrt.predicates import FLOATS, is_one_of, register, setting, takes_floats
from fx.lowering.tensorrt.ranges import varies
from fx.node import Node

_ON_SIZES: dict[Any, str] = {
    operator.add: "SUM", operator.sub: "SUB", operator.mul: "PROD", operator.floordiv: "FLOOR_DIV",
}  # fmt: skip


def compute(network: TensorRTNetwork, function: Any, left: Number, right: Number) -> Number:
    """Compute with sizes: at once if both are numbers, in the engine otherwise."""
    if isinstance(left, Size) or isinstance(right, Size):
        return network.compute(_ON_SIZES[function], left, right)
    return function(left, right)


def register_on_numbers(function: Any, build: Any, *predicates: Predicate) -> None:
    """Register a function of two operands, which is computed at once if both are numbers."""

    def build_or_compute(network: TensorRTNetwork, left: Any, right: Any) -> Any:
        if all(isinstance(operand, (bool, int, float)) for operand in (left, right)):
            return function(left, right)
        return build(network, left, right)

    register(function, build_or_compute, *predicates)


def _register_binary(function: Any, kind: str, *predicates: Predicate) -> None:
    def build(network: TensorRTNetwork, left: Any, right: Any) -> Any:
        if function in _ON_SIZES and all(isinstance(operand, (int, Size)) for operand in (left, right)):
            return compute(network, function, left, right)
        return combine(network, kind, left, right)

    register_on_numbers(function, build, _takes_numbers, *predicates)


def _takes_numbers(operation: Operation) -> str | None:
    """Accept operands that are tensors, literals or sizes; a result of sizes must be a size again."""
    node = operation.node
    operands = [value for value in operation.arguments.values() if not isinstance(value, bool)]
    if not all(isinstance(value, (Node, int, float)) for value in operands):
        return "an operand is neither a tensor nor a number"
    is_size = node.target in _ON_SIZES and node.meta.get("type") is int
    if operation.metadata() is None and not is_size and varies(node):
        return "engines do not compute this with sizes that vary"
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

    register_on_numbers(function, build, _takes_numbers, _compares_numbers)


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


def remainder(network: TensorRTNetwork, left: Any, right: Any) -> Any:
    """Add the remainder of a division of integers, which has the sign of the divisor."""
    whole = combine(network, "FLOOR_DIV", left, right)
    return combine(network, "SUB", left, combine(network, "PROD", whole, right))


def _takes_whole_numbers(operation: Operation) -> str | None:
    """Accept numbers and tensors of integers; a quotient of floating-point numbers may be rounded past an integer."""
    recorded = operation.metadata()
    return "it rounds" if recorded is not None and recorded.dtype.is_floating_point else None


def add_product(network: TensorRTNetwork, input: Any, factors: tuple[Any, Any], beta: float, alpha: float) -> Any:
    """Add ``beta * input`` and ``alpha`` times the product of two matrices."""
    product = matmul(network, *factors)
    product = product if alpha == 1 else combine(network, "PROD", product, alpha)
    if beta == 0:
        return product
    return combine(network, "SUM", input if beta == 1 else combine(network, "PROD", input, beta), product)


def einsum(network: TensorRTNetwork, equation: str, *operands: Any) -> Any:
    """Add a sum over indices."""
    labels = equation.replace(" ", "")
    letters = sorted({letter for letter in labels if letter.isalpha()})
    if "->" not in labels:
        labels += "->" + "".join(letter for letter in letters if labels.count(letter) == 1)
    names = dict(zip(letters, string.ascii_lowercase, strict=False))
    tensors = network.common(operands) if len({network.rank(part) for part in operands}) == 1 else [
        network.tensor(part) for part in operands]  # fmt: skip
    return network.add("einsum", tensors, "".join(names.get(letter, letter) for letter in labels))


def _is_plain_sum(operation: Operation) -> str | None:
    equation, *operands = operation.node.args
    if not isinstance(equation, str) or "." in equation:
        return "its equation leaves out indices"
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if any(len(set(term)) != len(term) for term in terms) or len({*"".join(terms)}) > len(string.ascii_lowercase):
        return "an index occurs twice in an operand"
    return takes_floats(*range(1, len(operands) + 1))(operation)


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


_OF_TRUTH = (torch.all, torch.any)


def _register_reduction(function: Any, kind: str) -> None:
    def build(network: TensorRTNetwork, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        rank, input_dtype = network.rank(input), network.dtype(input)
        chosen = range(rank) if dim is None or dim == () else (dim,) if isinstance(dim, int) else dim
        axes = sum(1 << axis for axis in {number % rank for number in chosen})
        if kind == "SUM" and dtype is None and not input_dtype.is_floating_point:
            dtype = torch.int64
        is_logical = function in _OF_TRUTH
        wanted = torch.int32 if is_logical else None if dtype is None else network.working(dtype)
        tensor = network.tensor(input, wanted)
        result = network.add("reduce", tensor, setting("ReduceOperation", kind), axes, bool(keepdim))
        return network.cast(result, torch.bool) if is_logical else result

    register(function, build, _reduces)


def _reduces(operation: Operation) -> str | None:
    value = operation.arguments.get("input")
    shape = shape_of(operation, value)
    if not shape:
        return "its input is a single number"
    options = {"dim": (int, tuple, type(None)), "keepdim": int, "dtype": (torch.dtype, type(None))}
    present = {name: kinds for name, kinds in options.items() if name in operation.arguments}
    if operation.target in _OF_TRUTH:
        if operation.subject.dtype(operation.node.all_input_nodes[0]) is not torch.bool:
            return "its operand holds no truth values"
    elif operation.target is not torch.sum and (why := takes_floats("input")(operation)) is not None:
        return why
    return is_one_of(**present)(operation)


for _function, _kind in ((operator.add, "SUM"), (operator.sub, "SUB"), (operator.mul, "PROD")):
    _register_binary(_function, _kind)
_register_binary(operator.floordiv, "FLOOR_DIV", where(lambda operation: operation.metadata() is None, "it rounds"))
_takes_floats_or_numbers = any_of(
    where(lambda operation: operation.metadata() is None, "it is a tensor"), takes_floats(0)
)
register_on_numbers(operator.truediv, divide, _takes_numbers)
register_on_numbers(operator.pow, power, _takes_numbers, _takes_floats_or_numbers)
register_on_numbers(operator.mod, remainder, _takes_numbers, _takes_whole_numbers)
for _function, _kind, _negated in (
    (operator.eq, "EQUAL", False), (operator.ne, "EQUAL", True), (operator.lt, "LESS", False),
    (operator.gt, "GREATER", False),
):  # fmt: skip
    _register_comparison(_function, _kind, _negated)
register_on_numbers(operator.le, at_most, _takes_numbers, _compares_numbers)
register_on_numbers(
    operator.ge, lambda network, left, right: at_most(network, right, left), _takes_numbers, _compares_numbers
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
_factors = is_one_of(beta=(int, float), alpha=(int, float))
register(
    torch.addmm,
    lambda network, input, mat1, mat2, beta, alpha: add_product(network, input, (mat1, mat2), beta, alpha),
    takes_floats("input", "mat1", "mat2"),
    _factors,
)
register(
    torch.baddbmm,
    lambda network, input, batch1, batch2, beta, alpha: add_product(network, input, (batch1, batch2), beta, alpha),
    takes_floats("input", "batch1", "batch2"),
    _factors,
)
register(torch.einsum, einsum, _is_plain_sum)
register(torch.bmm, matmul, _takes_matrices)
register(torch.where, select)
register(torch.masked_fill, masked_fill, is_one_of(value=(int, float)))
for _function, _kind in ((torch.sum, "SUM"), (torch.mean, "AVG"), (torch.amax, "MAX"), (torch.amin, "MIN")):
    _register_reduction(_function, _kind)
for _function, _kind in ((torch.all, "MIN"), (torch.any, "MAX")):
    _register_reduction(_function, _kind)
register(torch.logical_not, lambda network, input: apply(network, input, "NOT"), _takes_truth_values)
register(
    torch.logical_and,
    lambda network, input, other: combine(network, "AND", input, other),
    _takes_truth_values,
)
