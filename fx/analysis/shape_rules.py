"""The rules by which types of operands give the type of a result, by the families of operators (section 6.3).

A rule gets one call in canonical form. It equates the sizes of operands that have to be equal, such as the channels of
a tensor and of a convolution, and returns the type of the result. Most rules leave that to PyTorch
(:mod:`fx.analysis.example_shapes`). An operator without a rule returns ``Dyn``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from fx.analysis.example_shapes import by_example, same_rank
from fx.analysis.known_types import TypedCall, Types
from fx.analysis.size_equations import Misfit, Size, SizeEquations
from fx.assertions import check
from fx.node import Node
from fx.operators.facts import Family
from fx.operators.families import CASTS, find_in_place, find_operator
from fx.operators.operator_rows import ROWS
from fx.tensor_type import Dyn, TensorType

_torch: Any = torch  # for the functions that torch leaves without types
_F: Any = F
_OWN_ROWS = frozenset(ROWS)
"""The operators of PyTorch. Others, which users register, are not run: they may have effects."""


Rule: TypeAlias = Callable[[TypedCall], Any]


def infer_call(node: Node, types: Types) -> Any:
    """Return the type of the result of a call of a function in canonical form, and refine the types of its operands.

    Raises:
        Misfit: the types of its operands contradict each other.
    """
    name = getattr(node.target, "__name__", None)
    is_method = isinstance(name, str) and getattr(torch.Tensor, name, None) is node.target
    in_place = find_in_place(name if is_method else node.target)
    row = find_operator(node.target) if in_place is None else in_place
    function: Any = node.target if row is None else row.function
    call = TypedCall(node, function, row, types)
    if in_place is not None:
        return types.of(call.operands[0])
    try:
        rule = _RULES.get(function)
    except TypeError:  # unhashable, as a callable object may be
        return Dyn
    if rule is None and row is not None:
        rule = _FAMILIES.get(row.family, by_example if row in _OWN_ROWS else same_rank)
    return Dyn if rule is None else rule(call)


# Operators on elements: of one operand, or of several that are broadcast.


def _same(call: TypedCall) -> Any:
    sizes = call.like_result()
    return Dyn if sizes is None else TensorType(sizes)


def _normalization(call: TypedCall) -> Any:
    """Equate the channels, or the last sizes, of the tensor and of the layer."""
    operand, shape = call.tensor(call.operands[0]), call.get("normalized_shape")
    if operand is not None and isinstance(shape, Sequence):
        shape = cast("Sequence[Any]", shape)
        if len(shape) > len(operand):
            raise Misfit(f"it normalizes {len(shape)} dimensions of a tensor that has {len(operand)}")
        for size, normalized in zip(operand[len(operand) - len(shape) :], shape, strict=True):
            call.equate(size, normalized, "normalized sizes of the tensor and of the layer")
    elif operand is not None:
        for state in map(call.get, ("running_mean", "running_var", "weight", "bias")):
            if isinstance(state, TensorType) and len(operand) > 1:
                call.equate(operand[1], state.dims[0], "channels of the tensor and of the layer")
    return _same(call)


def _pairs(call: TypedCall) -> Any:
    """Broadcast the first two operands, or calculate with sizes."""
    values = [call.types.of(operand) for operand in call.operands[:2]]
    equations = call.types.equations
    if all(map(_is_size, values)):
        if call.function is operator.mul:
            return equations.product(values)
        is_size = call.function in (operator.add, operator.sub, operator.floordiv, operator.mod)
        return equations.apply(call.function, *values) if is_size else Dyn
    scalars_and_tensors = [isinstance(value, (TensorType, int, float, complex, str)) for value in values]
    if not all(scalars_and_tensors) or not any(isinstance(value, TensorType) for value in values):
        return Dyn  # the unknown one may have more dimensions
    shapes = [value.dims if isinstance(value, TensorType) else () for value in values]
    return TensorType(reduce(lambda first, second: broadcast(equations, first, second), shapes))


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def broadcast(equations: SizeEquations, first: Sequence[Any], second: Sequence[Any]) -> list[Size]:
    """Return the shape to which two shapes are broadcast.

    Raises:
        Misfit: two sizes differ, and none of them is 1.
    """
    rank = max(len(first), len(second))
    pairs = zip(*([1] * (rank - len(shape)) + list(shape) for shape in (first, second)), strict=True)
    return [_broadcast_size(equations, *pair) for pair in pairs]


def _broadcast_size(equations: SizeEquations, first: Size, second: Size) -> Size:
    if first == second or second == 1:
        return first
    if first == 1:
        return second
    if isinstance(first, int) and isinstance(second, int):
        raise Misfit(f"sizes {first} and {second} cannot be broadcast: they differ, and neither is 1")
    if isinstance(first, int) or isinstance(second, int):
        return first if isinstance(first, int) else second  # the unknown size is equal to it, or 1
    return equations.find(equations.name("broadcast", *sorted((first, second))))


# Layers, products and joins: equations between their operands.


def _linear(call: TypedCall) -> Any:
    operand, weight = call.like_result(), call.get("weight")
    if operand and isinstance(weight, TensorType):
        call.equate(operand[-1], weight.dims[-1], "features of the tensor and of the layer")
    return by_example(call)


def _convolution(call: TypedCall) -> Any:
    row, weight, groups = call.row, call.get("weight"), call.get("groups", 1)
    assert row is not None
    assert row.dims is not None
    operand = call.tensor(call.operands[0], row.dims + 2, row.dims + 1)
    if operand is not None and isinstance(weight, TensorType) and len(weight.dims) == row.dims + 2:
        is_transposed = row.family == "transposed convolution"
        channels = weight.dims[0] if is_transposed else call.types.equations.product([weight.dims[1], groups])  # type: ignore
        call.equate(operand[-row.dims - 1], channels, "channels of the tensor and of the layer")
    return by_example(call)


def _pooling(call: TypedCall) -> Any:
    assert call.row is not None
    assert call.row.dims is not None
    call.tensor(call.operands[0], call.row.dims + 2, call.row.dims + 1)
    return by_example(call)


def _product(call: TypedCall) -> Any:
    ranks: dict[Any, tuple[int, ...]] = {torch.bmm: (3,), torch.mm: (2,)}
    first, second = (call.tensor(operand, *ranks.get(call.function, ())) for operand in call.operands[:2])
    if not first or not second:
        return Dyn
    call.equate(first[-1], second[-min(2, len(second))], "inner sizes of the product")
    if call.function is torch.bmm:
        call.equate(first[0], second[0], "numbers of matrices")
    batches = broadcast(call.types.equations, first[:-2], second[:-2])
    return TensorType([*batches, *first[-2:-1], *(second[-1:] if len(second) > 1 else ())])


def _attention(call: TypedCall) -> Any:
    query, key, value = (call.tensor(operand) for operand in call.operands[:3])
    if not query or not key or not value or not query[:-2] == key[:-2] == value[:-2]:
        return Dyn
    return TensorType([*query[:-1], value[-1]])


def _join(call: TypedCall) -> Any:
    values, axis = call.types.of(call.operands[0]), call.get("dim", 0)
    shapes = [value.dims for value in pytree.tree_leaves(values) if isinstance(value, TensorType)]
    if len({len(shape) for shape in shapes}) == 1 and isinstance(axis, int):
        rank = len(shapes[0])
        for place in range(rank):
            for shape in shapes[1:] if call.function is torch.stack or place != axis % max(rank, 1) else ():
                call.equate(shapes[0][place], shape[place], f"sizes of dimension {place} of the joined tensors")
    return by_example(call)


# Shapes and parts.


def _reshape(call: TypedCall) -> Any:
    """Return the type for a new shape, and find a size that makes the numbers of elements equal."""
    operand, shape = call.tensor(call.operands[0]), call.types.of(call.operands[1])
    if not isinstance(shape, Sequence):
        return Dyn
    values = enumerate(cast("Sequence[Any]", shape))
    sizes = [value if _is_size(value) else call.unknown(place) for place, value in values]
    free = sizes.index(-1) if -1 in sizes else None
    rest = [size for size in sizes if size != -1]
    if operand is None:
        return TensorType([call.unknown(place) if size == -1 else size for place, size in enumerate(sizes)])
    equations = call.types.equations
    (number, names), (new_number, new_names) = equations.factors(operand), equations.factors(rest)
    names, new_names = names - new_names, new_names - names  # common factors do not matter, as none is 0

    def quotient(many: int, few: int) -> int:
        if many % few:
            shapes = f"{TensorType(operand)} and the new shape {tuple(sizes)}"
            raise Misfit(f"{shapes} have different numbers of elements: their known factors are {number}, {new_number}")
        return many // few

    if free is not None:
        is_open = new_names or not new_number or (names and number % new_number)
        product = [] if is_open else [quotient(number, new_number), *names.elements()]
        sizes[free] = call.unknown(free) if is_open else equations.product(product)
    elif not names and not new_names:
        quotient(number, new_number) if number and new_number else None
        quotient(new_number, number) if number and new_number else None
    elif sum((names + new_names).values()) == 1 and number and new_number:
        (name,) = names or new_names
        equations.equate(name, quotient(new_number, number) if names else quotient(number, new_number))
    return TensorType(sizes)


def _item(call: TypedCall) -> Any:
    container, index = (call.types.of(operand) for operand in call.operands[:2])
    if isinstance(container, tuple) and isinstance(index, (int, slice)):
        try:
            return container[index]
        except (IndexError, TypeError):  # the program fails here, or a bound is unknown
            return Dyn
    parts = pytree.tree_leaves(index) if isinstance(index, tuple) else [index]
    is_plain = all(_is_size(part) or part in (None, Ellipsis) or isinstance(part, slice) for part in parts)
    return by_example(call) if is_plain else Dyn  # tensors of truth values give a size that depends on them


def _check(call: TypedCall) -> Any:
    """Refine what a check of the program demands of a number of dimensions or of a size."""
    condition, demanded = call.operands[0], True
    while isinstance(condition, Node) and condition.target is operator.eq and condition.args[1] is False:
        condition, demanded = condition.args[0], not demanded
    if not isinstance(condition, Node) or condition.target is not (operator.eq if demanded else operator.ne):
        return Dyn
    first, second = condition.args
    value, number = call.types.of(first), call.types.of(second)
    if isinstance(first, Node) and first.target is torch.Tensor.dim and isinstance(second, int):
        call.tensor(first.args[0], second)
    elif _is_size(value) and _is_size(number):
        call.equate(value, number, "sizes that the program compares")
    return Dyn


_FAMILIES: dict[Family, Rule] = {
    **dict.fromkeys(("activation", "function", "dropout", "softmax"), _same),
    **dict.fromkeys(("batch norm", "normalization"), _normalization),
    **dict.fromkeys(("arithmetic", "comparison", "logic", "extreme"), _pairs),
    **dict.fromkeys(("convolution", "transposed convolution"), _convolution),
    **dict.fromkeys(("average pooling", "max pooling"), _pooling),
    "linear": _linear,
    "product": _product,
    "join": _join,
}
"""The rules of families. Other families are run by example."""

_RULES: dict[Any, Rule] = {
    **dict.fromkeys((operator.invert, torch.Tensor.to, _torch._weight_norm), _same),
    **dict.fromkeys((getattr(torch.Tensor, name) for name in CASTS), _same),
    **dict.fromkeys((torch.sum, torch.argmax, getattr), by_example),
    F.scaled_dot_product_attention: _attention,
    torch.masked_fill: _pairs,
    torch.reshape: _reshape,
    torch.Tensor.view: _reshape,
    operator.getitem: _item,
    **dict.fromkeys((check, torch._assert), _check),
}
"""The rules of operators that differ from their family, or have none."""
