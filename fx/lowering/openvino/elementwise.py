"""Operations on each element: arithmetic, comparisons, activations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fx.lowering.known_program import Operation
from fx.lowering.openvino.network import OpenVINONetwork
from fx.lowering.openvino.predicates import add_converter, computes, is_number, takes
from fx.lowering.support import any_of, has_numbers, has_values, where
from fx.node import Node

_FLOAT = computes(torch.float32)
_INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
"""What becomes real without loss, but for large numbers, which PyTorch rounds as well."""


# One operand.


def _add_function(target: Any, name: str, argument: str | None = "input", **settings: Any) -> None:
    """A function of one value, in OpenVINO called ``name``; its other arguments must be the defaults ``settings``."""

    def build(network: OpenVINONetwork, *args: Any, **kwargs: Any) -> Any:
        value = network.value(args[0] if argument is None else kwargs[argument])
        return network.add(name, value)

    add_converter(target, build, _FLOAT, has_values(**settings))


for _target, _name in (
    (torch.sigmoid, "sigmoid"), (torch.tanh, "tanh"), (torch.exp, "exp"), (torch.log, "log"), (torch.sqrt, "sqrt"),
    (torch.sin, "sin"), (torch.cos, "cos"), (torch.erf, "erf"), (torch.floor, "floor"), (torch.ceil, "ceiling"),
    (torch.sign, "sign"), (torch.atan, "atan"), (torch.sinh, "sinh"), (torch.cosh, "cosh"), (torch.asinh, "asinh"),
):  # fmt: skip
    _add_function(_target, _name)
_add_function(operator.neg, "negative", None)
_add_function(operator.abs, "abs", None)
_add_function(F.softplus, "softplus", beta=1.0, threshold=20.0)
for _target, _name in (
    (F.relu, "relu"), (F.silu, "swish"), (F.mish, "mish"), (F.hardswish, "hswish"), (F.hardsigmoid, "hsigmoid"),
):  # fmt: skip
    _add_function(_target, _name, inplace=False)


def gelu(network: OpenVINONetwork, input: Any, approximate: str) -> Any:
    """GELU, exact or by tanh."""
    return network.add("gelu", network.value(input), {"none": "erf"}.get(approximate, approximate))


def selu(network: OpenVINONetwork, input: Any, inplace: bool) -> Any:
    """SELU, with the constants of PyTorch."""
    alpha, scale = network.value(1.6732632423543772848), network.value(1.0507009873554804934)
    return network.add("selu", network.value(input), alpha, scale)


def leaky_relu(network: OpenVINONetwork, input: Any, negative_slope: float, inplace: bool) -> Any:
    """ReLU with a slope below zero."""
    return network.add("prelu", network.value(input), network.value(torch.tensor([negative_slope])))


def bound(network: OpenVINONetwork, input: Any, low: Any, high: Any) -> Any:
    """The nearest number between two."""
    low, high = -math.inf if low is None else float(low), math.inf if high is None else float(high)
    return network.add("clamp", network.value(input), low, high)


def _is_ordered(operation: Operation) -> bool:
    low, high = operation.arguments.get("min"), operation.arguments.get("max")
    return low is None or high is None or low <= high


add_converter(F.gelu, gelu, _FLOAT, has_values(approximate=("none", "tanh")))
add_converter(
    F.elu,
    lambda network, input, alpha, inplace: network.add("elu", network.value(input), float(alpha)),
    _FLOAT,
    has_numbers("alpha"),
    has_values(inplace=False),
)
add_converter(F.selu, selu, _FLOAT, has_values(inplace=False))
add_converter(F.leaky_relu, leaky_relu, _FLOAT, has_numbers("negative_slope"), has_values(inplace=False))
add_converter(
    F.hardtanh,
    lambda network, input, min_val, max_val, inplace: bound(network, input, min_val, max_val),
    _FLOAT,
    has_numbers("min_val", "max_val"),
    has_values(inplace=False),
)
add_converter(
    torch.clamp,
    lambda network, *, input, min, max: bound(network, input, min, max),
    _FLOAT,
    has_numbers("min", "max", optional=True),
    where(_is_ordered, "its bounds are the wrong way round"),
)


def one_over(network: OpenVINONetwork, input: Any) -> Any:
    """The reciprocal."""
    return network.add("divide", network.value(1.0), network.value(input))


add_converter(torch.reciprocal, one_over, _FLOAT)
add_converter(torch.rsqrt, lambda network, input: one_over(network, network.add("sqrt", network.value(input))), _FLOAT)
add_converter(torch.square, lambda network, input: binary(network, "multiply", input, input), _FLOAT)
add_converter(F.dropout, lambda network, input, **_: network.value(input), has_values(training=False, inplace=False))
_is_plain_copy = has_values(memory_format=torch.contiguous_format)
add_converter(torch.Tensor.contiguous, lambda network, self, **_: network.value(self), _is_plain_copy, counts=False)


# Two operands.


def binary(network: OpenVINONetwork, name: str, left: Any, right: Any) -> Any:
    """Arithmetic on two operands, of which one may be a number, in the dtype of the result."""
    dtype = network.result_dtype
    return network.add(name, network.value(left, dtype), network.value(right, dtype))


def _on_numbers(function: Callable[[Any, Any], Any], name: str) -> Callable[[OpenVINONetwork, Any, Any], Any]:
    """Arithmetic on sizes, at once where they are known."""

    def build(network: OpenVINONetwork, left: Any, right: Any) -> Any:
        if network.result_dtype is not None:
            return binary(network, name, left, right)
        if isinstance(left, int) and isinstance(right, int):
            return function(left, right)
        return network.add(name, network.value(left, torch.int64), network.value(right, torch.int64))

    return build


_of_sizes = where(is_number, "it is not arithmetic of sizes")
_is_arithmetic = any_of(_FLOAT, _of_sizes)

for _function, _name in (
    (operator.add, "add"), (operator.sub, "subtract"), (operator.mul, "multiply"),
):  # fmt: skip
    add_converter(_function, _on_numbers(_function, _name), _is_arithmetic)
add_converter(operator.floordiv, _on_numbers(operator.floordiv, "divide"), _of_sizes)
add_converter(operator.truediv, lambda network, *both: binary(network, "divide", *both), _FLOAT)
add_converter(operator.pow, lambda network, *both: binary(network, "power", *both), _FLOAT)
add_converter(torch.maximum, lambda network, input, other: binary(network, "maximum", input, other), _FLOAT)
add_converter(torch.minimum, lambda network, input, other: binary(network, "minimum", input, other), _FLOAT)


def compare(network: OpenVINONetwork, name: str, left: Any, right: Any) -> Any:
    """A comparison, in the dtype that both operands have in common."""
    dtypes = [network.dtype(one) for one in (left, right) if not isinstance(one, (bool, int, float))]
    if any(isinstance(one, float) for one in (left, right)):
        dtypes.append(torch.float32)
    dtype = dtypes[0]
    for other in dtypes[1:]:
        dtype = torch.promote_types(dtype, other)
    if dtype is torch.bool and any(type(one) is int for one in (left, right)):
        dtype = torch.int64
    return network.add(name, network.value(left, dtype), network.value(right, dtype))


def _add_comparison(function: Callable[[Any, Any], Any], name: str) -> None:
    def build(network: OpenVINONetwork, left: Any, right: Any) -> Any:
        if network.result_dtype is None:
            return function(left, right)
        return compare(network, name, left, right)

    add_converter(function, build, any_of(_compares_tensors, _compares_ranks))


def _compares_tensors(operation: Operation) -> str | None:
    small = all(abs(one) < 2**31 for one in operation.node.args if isinstance(one, int))
    if operation.metadata() is None or not small:
        return "it compares no tensors, or a number that is too large for engines"
    return None


def _compares_ranks(operation: Operation) -> str | None:
    known = (torch.Tensor.dim, operator.eq, operator.ne)
    ranks = operation.metadata() is None and all(one.target in known for one in operation.node.all_input_nodes)
    return None if ranks else "it compares no numbers of dimensions"


for _function, _name in (
    (operator.eq, "equal"), (operator.ne, "not_equal"), (operator.lt, "less"), (operator.le, "less_equal"),
    (operator.gt, "greater"), (operator.ge, "greater_equal"),
):  # fmt: skip
    _add_comparison(_function, _name)

_LOGICAL = computes(torch.bool)
for _function, _name in ((operator.and_, "logical_and"), (operator.or_, "logical_or"), (operator.xor, "logical_xor")):
    add_converter(_function, lambda network, *both, name=_name: binary(network, name, *both), _LOGICAL, counts=False)
add_converter(operator.invert, lambda network, value: network.add("logical_not", network.value(value)), _LOGICAL)


# Choices and conversions.


def choose(network: OpenVINONetwork, condition: Any, input: Any, other: Any) -> Any:
    """One value or another."""
    dtype = network.result_dtype
    values = (network.value(input, dtype), network.value(other, dtype))
    return network.add("select", network.value(condition), *values)


add_converter(torch.where, choose, any_of(takes((torch.bool,), "condition"), takes((torch.bool,), 0)))
add_converter(
    torch.masked_fill,
    lambda network, input, mask, value: choose(network, mask, value, input),
    takes((torch.bool,), "mask"),
)


def convert(network: OpenVINONetwork, self: Any, *_: Any, **__: Any) -> Any:
    """A value in another dtype."""
    return network.value(self, network.result_dtype)


def _converts(operation: Operation) -> str | None:
    """Masks and integers become real; from real to integers there are infinities to think of."""
    source = operation.node.args[0]
    dtype = operation.subject.dtype(source) if isinstance(source, Node) else None
    if dtype is None or operation.metadata() is None:
        return "it converts no tensor"
    if any(operation.arguments.get(name) for name in ("device", "copy", "memory_format", "tensor")):
        return "it does more than to convert"
    result = operation.subject.dtype(operation.node)
    keeps = result is dtype or (result is torch.float32 and dtype in _INTEGERS)
    return None if keeps else f"it converts {dtype} to {result}"


def attribute(network: OpenVINONetwork, value: Any, name: str) -> Any:
    """The dtype of a value, or its shape."""
    return network.dtype(value) if name == "dtype" else network.sizes(value)


def _asks_of_a_tensor(operation: Operation) -> str | None:
    value, name = operation.node.args[:2]
    is_tensor = isinstance(value, Node) and operation.subject.dtype(value) is not None
    return None if name in ("dtype", "shape") and is_tensor else f"it asks for `{name}`"


add_converter(torch.Tensor.to, convert, _converts, counts=False)
add_converter(getattr, attribute, _asks_of_a_tensor, counts=False)
