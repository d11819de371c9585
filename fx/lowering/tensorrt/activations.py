"""TensorRT's converters for elementwise functions of one value, and for softmax."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fx.lowering.support import all_of, has_constant, has_values
from fx.lowering.tensorrt.network import TensorRTNetwork
from fx.lowering.tensorrt.predicates import is_one_of, register, setting, takes_floats

_NUMBER = (int, float)


def activate(network: TensorRTNetwork, input: Any, kind: str, **numbers: Any) -> Any:
    """Add one of TensorRT's activations."""
    return network.add("activation", network.tensor(input), setting("ActivationType", kind), **numbers)


def apply(network: TensorRTNetwork, input: Any, kind: str) -> Any:
    """Add one of TensorRT's operations on one operand."""
    return network.add("unary", network.tensor(input), setting("UnaryOperation", kind))


def combine(network: TensorRTNetwork, kind: str, left: Any, right: Any) -> Any:
    """Add one of TensorRT's operations on two operands, which are broadcast as in torch."""
    return network.add("elementwise", *network.common([left, right]), setting("ElementWiseOperation", kind))


def _register_activation(target: Any, kind: str, **numbers: str | float) -> None:
    """Register a function that is one of TensorRT's activations; ``numbers`` are constants or names of its arguments.

    Args:
        target: the function.
        kind: TensorRT's name of the activation.
        numbers: the settings of the activation.
    """

    def build(network: TensorRTNetwork, input: Any, **options: Any) -> Any:
        settings = {name: float(options[value] if isinstance(value, str) else value) for name, value in numbers.items()}
        return activate(network, input, kind, **settings)

    arguments = {name: _NUMBER for name in numbers.values() if isinstance(name, str)}
    register(target, build, takes_floats("input"), is_one_of(**arguments))


def silu(network: TensorRTNetwork, input: Any, inplace: bool) -> Any:
    """Add ``input * sigmoid(input)``."""
    return combine(network, "PROD", input, activate(network, input, "SIGMOID"))


def mish(network: TensorRTNetwork, input: Any, inplace: bool) -> Any:
    """Add ``input * tanh(softplus(input))``."""
    soft = activate(network, input, "SOFTPLUS", alpha=1.0, beta=1.0)
    return combine(network, "PROD", input, activate(network, soft, "TANH"))


def hardswish(network: TensorRTNetwork, input: Any, inplace: bool) -> Any:
    """Add ``input * hardsigmoid(input)``."""
    return combine(network, "PROD", input, activate(network, input, "HARD_SIGMOID", alpha=1 / 6, beta=0.5))


def gelu(network: TensorRTNetwork, input: Any, approximate: str) -> Any:
    """Add either formula of GELU."""
    return activate(network, input, "GELU_ERF" if approximate == "none" else "GELU_TANH")


def softplus(network: TensorRTNetwork, input: Any, beta: float, threshold: float) -> Any:
    """Add ``log(1 + exp(beta * input)) / beta``, or the input itself where ``beta * input`` exceeds ``threshold``."""
    soft = activate(network, input, "SOFTPLUS", alpha=1 / beta, beta=beta)
    dtype, rank = network.dtype(input), network.rank(input)
    scaled = combine(network, "PROD", input, beta)
    is_large = combine(network, "GREATER", scaled, network.tensor(threshold, dtype, rank))
    return network.add("select", is_large, network.tensor(input), soft)


def clamp(network: TensorRTNetwork, input: Any, min: float | None, max: float | None) -> Any:
    """Bound a value from one side or both."""
    result = input
    for kind, bound in (("MAX", min), ("MIN", max)):
        if bound is not None:
            result = combine(network, kind, result, bound)
    return result


def _axes(network: TensorRTNetwork, input: Any, dim: int) -> int:
    return 1 << (dim % network.rank(input))


def softmax(network: TensorRTNetwork, input: Any, dim: int, dtype: Any) -> Any:
    """Add softmax over one dimension."""
    tensor = network.tensor(input, None if dtype is None else network.working(dtype))
    return network.add("softmax", tensor, axes=_axes(network, input, dim))


def log_softmax(network: TensorRTNetwork, input: Any, dim: int, dtype: Any) -> Any:
    """Add the logarithm of softmax, without taking logarithms of small numbers."""
    tensor = network.tensor(input, None if dtype is None else network.working(dtype))
    axes, shifted = _axes(network, input, dim), tensor
    largest = network.add("reduce", tensor, setting("ReduceOperation", "MAX"), axes, True)
    shifted = combine(network, "SUB", tensor, largest)
    total = network.add("reduce", apply(network, shifted, "EXP"), setting("ReduceOperation", "SUM"), axes, True)
    return combine(network, "SUB", shifted, apply(network, total, "LOG"))


def _register_unary(target: Any, kind: str) -> None:
    name = "input" if getattr(target, "__module__", None) != "_operator" else 0
    register(target, lambda network, input: apply(network, input, kind), takes_floats(name))


def prelu(network: TensorRTNetwork, input: Any, weight: Any) -> Any:
    """Multiply negative elements by a slope for each channel."""
    rank, dtype = network.rank(input), network.dtype(input)
    across = [-1 if place == min(1, rank - 1) else 1 for place in range(rank)]
    slopes = network.tensor(weight.reshape(across), dtype)
    return network.add("parametric_relu", network.tensor(input), slopes)


def trunc(network: TensorRTNetwork, input: Any) -> Any:
    """Round toward zero."""
    whole = apply(network, apply(network, input, "ABS"), "FLOOR")
    return combine(network, "PROD", apply(network, input, "SIGN"), whole)


_register_activation(F.relu, "RELU")
_register_activation(F.hardtanh, "CLIP", alpha="min_val", beta="max_val")
_register_activation(F.leaky_relu, "LEAKY_RELU", alpha="negative_slope")
_register_activation(F.elu, "ELU", alpha="alpha")
_register_activation(F.selu, "SELU", alpha=1.6732632423543772, beta=1.0507009873554805)
_register_activation(F.hardsigmoid, "HARD_SIGMOID", alpha=1 / 6, beta=0.5)
_register_activation(F.softsign, "SOFTSIGN")
_register_activation(torch.sigmoid, "SIGMOID")
_register_activation(torch.tanh, "TANH")
for _target, _build in ((F.silu, silu), (F.mish, mish), (F.hardswish, hardswish)):
    register(_target, _build, takes_floats("input"))
register(F.gelu, gelu, takes_floats("input"), is_one_of(approximate=str))
register(F.softplus, softplus, takes_floats("input"), is_one_of(beta=_NUMBER, threshold=_NUMBER))
_bound = is_one_of(min=(int, float, type(None)), max=(int, float, type(None)))
register(torch.clamp, clamp, takes_floats("input"), _bound)
_softmax = all_of(takes_floats("input"), is_one_of(dim=int, dtype=(torch.dtype, type(None))))
register(F.softmax, softmax, _softmax)
register(F.log_softmax, log_softmax, _softmax)
register(F.dropout, lambda network, input, **_: network.tensor(input), has_values(training=False), counts=0)
for _target, _kind in (
    (torch.exp, "EXP"), (torch.log, "LOG"), (torch.sqrt, "SQRT"), (torch.reciprocal, "RECIP"), (torch.sin, "SIN"),
    (torch.cos, "COS"), (torch.tan, "TAN"), (torch.sinh, "SINH"), (torch.cosh, "COSH"), (torch.asin, "ASIN"),
    (torch.acos, "ACOS"), (torch.atan, "ATAN"), (torch.asinh, "ASINH"), (torch.acosh, "ACOSH"),
    (torch.atanh, "ATANH"),
    (torch.round, "ROUND"), (torch.ceil, "CEIL"), (torch.floor, "FLOOR"), (torch.erf, "ERF"), (torch.sign, "SIGN"),
):  # fmt: skip
    _register_unary(_target, _kind)
register(
    torch.rsqrt,
    lambda network, input: apply(network, apply(network, input, "SQRT"), "RECIP"),
    takes_floats("input"),
)
register(torch.square, lambda network, input: combine(network, "PROD", input, input), takes_floats("input"))
register(torch.prelu, prelu, takes_floats("input"), has_constant("weight"))
register(torch.trunc, trunc, takes_floats("input"))
