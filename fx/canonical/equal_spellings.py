"""The table of equal spellings: calls that are the same operation, and its canonical spelling.

A row has functions and unbound methods of tensors, and a lambda with their parameters that returns the canonical call.
In this call, functions of ``operator`` take their operands by position, methods of ``Tensor`` the tensor itself. All
other arguments go by keyword: an argument without a keyword has the name of the parameter from which it is made.

Spellings without a row follow from the operator schemas and signatures; see :mod:`fx.canonical`.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fx.node import Argument
from fx.operators.families import CASTS, operators

_torch: Any = torch  # for the functions that torch leaves without types
_F: Any = F


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a function."""

    target: Callable[..., Any]
    """The function."""
    args: tuple[Argument, ...]
    """Its positional arguments."""
    kwargs: dict[str, Argument]
    """Its keyword arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class EqualSpellings:
    """One row of the table."""

    sources: tuple[Any, ...]
    """Functions, unbound methods and operators of ATen: all overloads, or one."""
    canonical: Callable[..., Call]
    """The function from a source's arguments by name to the canonical call; it has the source's defaults."""
    only: Mapping[str, Any]
    """Required values of arguments."""
    kinds: Mapping[str, tuple[str, ...]]
    """Required kinds of literals of arguments."""


def row(
    *sources: Any,
    to: Callable[..., Call],
    only: Mapping[str, Any] | None = None,
    kinds: Mapping[str, tuple[str, ...]] | None = None,
) -> EqualSpellings:
    """Return a row: ``sources``, called with values ``only`` and literals of these ``kinds``, are the call ``to``."""
    return EqualSpellings(sources, to, only or {}, kinds or {})


def call(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
    """Return a call of ``target``; in a row, arguments without a keyword still have a name."""
    return Call(target, args, kwargs)


# Kinds of arguments.

DIMS = ("int", "ints", "none")
SIZE1, SIZE2, SIZE3 = ("literal", "size1"), ("literal", "size2"), ("literal", "size3")
_TENSOR = ("known",)
_DTYPE = ("literal", "dtype")
_DEVICE = ("literal", "device", "str", "int", "none")
_INDEX = ("literal", "index")


# Forms of arguments. Computed values keep their form, and the names with which a row is read keep theirs.


def sequence(value: Any) -> Any:
    """Return a list as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else value


def single(value: Any) -> Any:
    """Return sizes for one dimension as a tuple; ``value`` may be one number."""
    return (value,) if type(value) is int else sequence(value)


def pair(value: Any) -> Any:
    """Return sizes for two dimensions as a tuple; ``value`` may be one number for both."""
    return (value,) * 2 if type(value) is int else sequence(value)


def triple(value: Any) -> Any:
    """Return sizes for three dimensions as a tuple; ``value`` may be one number for all."""
    return (value,) * 3 if type(value) is int else sequence(value)


def or_default(value: Any, default: Any) -> Any:
    """Return ``value``, or ``default`` if it is None."""
    return default if value is None else value


def _real(value: Any) -> Any:
    return float(value) if type(value) is int else value


# Rows that differ in functions only.


def _unary(function: Callable[..., Any], *sources: Any) -> EqualSpellings:
    return row(*sources, to=lambda input: call(function, input))


def _binary(function: Callable[..., Any], *sources: Any) -> EqualSpellings:
    return row(*sources, to=lambda input, other: call(function, input, other))


def _scaled(function: Callable[..., Any], *sources: Any) -> EqualSpellings:
    return row(*sources, to=lambda input, other, *, alpha=1: call(function, input, other), only={"alpha": 1})


def activation(function: Callable[..., Any], *sources: Any, inplace: bool) -> EqualSpellings:
    """Return a row for the spellings of an activation without options."""
    return row(*sources, to=lambda input: call(function, input, inplace=inplace))


def _deviations(function: Callable[..., Any], *sources: Any) -> tuple[EqualSpellings, ...]:
    """Return rows for standard deviations and variances, in which a flag means a correction of 0 or 1."""
    return (
        row(*sources, to=lambda input, dim=None, *, correction=None, keepdim=False:
            call(function, input, single(dim), correction=or_default(correction, 1), keepdim=keepdim),
            kinds={"dim": DIMS}),
        row(*sources, to=lambda input, dim, unbiased=True, keepdim=False:
            call(function, input, single(dim), correction=1, keepdim=keepdim), only={"unbiased": True},
            kinds={"dim": DIMS}),
        row(*sources, to=lambda input, dim, unbiased, keepdim=False:
            call(function, input, single(dim), correction=0, keepdim=keepdim), only={"unbiased": False},
            kinds={"dim": DIMS}),
        row(*sources, to=lambda input, unbiased=True:
            call(function, input, dim=None, correction=1, keepdim=False), only={"unbiased": True}),
        row(*sources, to=lambda input, unbiased:
            call(function, input, dim=None, correction=0, keepdim=False), only={"unbiased": False}),
    )  # fmt: skip


def _cast(method: Callable[..., Any], dtype: torch.dtype) -> EqualSpellings:
    return row(method, to=lambda self, *, memory_format=None: call(Tensor.to, self, device=None, dtype=dtype,
        non_blocking=False, copy=False, memory_format=memory_format))  # fmt: skip


def _max_pool(
    function: Callable[..., Any], of_torch: Any, with_indices: Any, sizes: Callable[[Any], Any]
) -> tuple[EqualSpellings, ...]:
    """Return rows for pooling: sizes are tuples, and a missing stride is the size of the window."""

    def pool(input: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: Any, indices: Any) -> Call:
        sized = {"stride": sizes(or_default(stride, kernel)), "padding": sizes(padding), "dilation": sizes(dilation)}
        return call(function, input, kernel_size=sizes(kernel), **sized, ceil_mode=ceil, return_indices=indices)

    return (
        row(of_torch, to=lambda input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False:
            pool(input, kernel_size, stride, padding, dilation, ceil_mode, False)),
        row(function, to=lambda input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
            return_indices=False:
            pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)),
        row(with_indices, to=lambda input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
            return_indices=False:
            pool(input, kernel_size, stride, padding, dilation, ceil_mode, True)),
    )  # fmt: skip


def _adaptive_pool(average: Any, maximum: Any, sizes: Callable[[Any], Any]) -> tuple[EqualSpellings, ...]:
    return (
        row(average, to=lambda input, output_size: call(average, input, sizes(output_size))),
        row(maximum, to=lambda input, output_size, return_indices=False:
            call(maximum, input, sizes(output_size), return_indices)),
    )  # fmt: skip


def _avg_pool(function: Callable[..., Any], sizes: Callable[[Any], Any]) -> EqualSpellings:
    return row(function, to=lambda input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
        divisor_override=None:
        call(function, input, sizes(kernel_size), sizes(or_default(stride, kernel_size)), sizes(padding), ceil_mode,
        count_include_pad, divisor_override))  # fmt: skip


_ALIASES: tuple[tuple[Any, Any], ...] = (
    *((alias, operator.function) for operator in operators() for alias in operator.aliases),
    (_torch.subtract, _torch.sub),
    (_torch.multiply, _torch.mul),
    (_torch.divide, _torch.div),
    (_torch.special.softmax, _torch.softmax),
    (_torch.special.log_softmax, _torch.log_softmax),
    (_torch.linalg.matmul, _torch.matmul),
)
"""Aliases and their functions: of operators, or of functions with more options than the operator's own function."""
FUNCTION_ALIASES: dict[int, tuple[Any, Any]] = {id(alias): (alias, function) for alias, function in _ALIASES}
"""The aliases by identity."""
METHOD_ALIASES: dict[str, str] = {
    f"{alias.__name__}{suffix}": f"{function.__name__}{suffix}"
    for alias, function in _ALIASES
    for suffix in ("", "_")
    if hasattr(torch.Tensor, f"{alias.__name__}{suffix}")
}
"""Methods that are another method by a different name, with the same parameters."""

ROWS: tuple[EqualSpellings, ...] = (
    # Arithmetic, comparisons and logic: the operators of Python.
    _scaled(operator.add, torch.add, Tensor.add),
    _scaled(operator.sub, torch.sub, Tensor.sub, torch.subtract, Tensor.subtract),
    row(torch.rsub, to=lambda input, other, *, alpha=1: call(operator.sub, other, input), only={"alpha": 1}),
    _binary(operator.mul, torch.mul, Tensor.mul, torch.multiply, Tensor.multiply),
    _binary(operator.truediv, torch.true_divide, Tensor.true_divide),
    row(torch.div, Tensor.div, torch.divide, Tensor.divide, to=lambda input, other, *, rounding_mode=None:
        call(operator.truediv, input, other), only={"rounding_mode": None}),
    _binary(operator.floordiv, torch.floor_divide, Tensor.floor_divide),
    _binary(operator.mod, torch.remainder, Tensor.remainder),
    row(torch.pow, Tensor.pow, to=lambda input, exponent: call(operator.pow, input, exponent)),
    _binary(operator.matmul, torch.matmul, Tensor.matmul),
    _binary(operator.and_, torch.bitwise_and, Tensor.bitwise_and),
    _binary(operator.or_, torch.bitwise_or, Tensor.bitwise_or),
    _binary(operator.xor, torch.bitwise_xor, Tensor.bitwise_xor),
    _binary(operator.eq, torch.eq, Tensor.eq),
    _binary(operator.ne, torch.ne, Tensor.ne, torch.not_equal, Tensor.not_equal),
    _binary(operator.lt, torch.lt, Tensor.lt, torch.less, Tensor.less),
    _binary(operator.le, torch.le, Tensor.le, torch.less_equal, Tensor.less_equal),
    _binary(operator.gt, torch.gt, Tensor.gt, torch.greater, Tensor.greater),
    _binary(operator.ge, torch.ge, Tensor.ge, torch.greater_equal, Tensor.greater_equal),
    _unary(operator.neg, torch.neg, Tensor.neg, torch.negative, Tensor.negative),
    _unary(operator.abs, torch.abs, Tensor.abs, torch.absolute, Tensor.absolute),
    _unary(operator.invert, torch.bitwise_not, Tensor.bitwise_not),
    _unary(operator.pos, torch.positive, Tensor.positive),
    _unary(operator.abs, builtins.abs),
    # Activations: torch.nn.functional, which has a flag for in place.
    activation(F.relu, torch.relu, Tensor.relu, inplace=False),
    activation(F.relu, torch.relu_, Tensor.relu_, F.relu_, inplace=True),
    activation(F.selu, torch.selu, inplace=False),
    activation(F.selu, torch.selu_, F.selu_, inplace=True),
    row(torch.celu, to=lambda input, alpha=1.0: call(F.celu, input, alpha, inplace=False)),
    row(torch.celu_, F.celu_, to=lambda input, alpha=1.0: call(F.celu, input, alpha, inplace=True)),
    row(torch.rrelu, to=lambda input, lower=0.125, upper=0.3333333333333333, training=False, generator=None:
        call(F.rrelu, input, lower, upper, training, inplace=False), only={"generator": None}),
    row(torch.threshold, to=lambda input, threshold, value: call(F.threshold, input, threshold, value, inplace=False)),
    row(torch.threshold_, _F.threshold_, to=lambda input, threshold, value:
        call(F.threshold, input, threshold, value, inplace=True)),
    row(F.elu_, to=lambda input, alpha=1.0, scale=1, input_scale=1:
        call(F.elu, input, alpha, inplace=True), only={"scale": 1, "input_scale": 1}),
    row(F.leaky_relu_, to=lambda input, negative_slope=0.01: call(F.leaky_relu, input, negative_slope, inplace=True)),
    row(F.hardtanh_, to=lambda input, min_val=-1.0, max_val=1.0:
        call(F.hardtanh, input, min_val, max_val, inplace=True)),
    row(F.relu6, to=lambda input, inplace=False: call(F.hardtanh, input, min_val=0.0, max_val=6.0, inplace=inplace)),
    row(F.softplus, to=lambda input, beta=1, threshold=20: call(F.softplus, input, _real(beta), _real(threshold))),
    _unary(torch.sigmoid, F.sigmoid),
    _unary(torch.tanh, F.tanh),
    row(torch.softmax, Tensor.softmax, to=lambda input, dim, dtype=None: call(F.softmax, input, dim, dtype)),
    row(torch.log_softmax, Tensor.log_softmax, to=lambda input, dim, dtype=None:
        call(F.log_softmax, input, dim, dtype)),
    row(F.softmax, to=lambda input, dim=None, _stacklevel=3, dtype=None: call(F.softmax, input, dim, dtype)),
    row(F.log_softmax, to=lambda input, dim=None, _stacklevel=3, dtype=None: call(F.log_softmax, input, dim, dtype)),
    row(F.softmin, to=lambda input, dim=None, _stacklevel=3, dtype=None: call(F.softmin, input, dim, dtype)),
    row(torch.dropout, to=lambda input, p, train: call(F.dropout, input, p, training=train, inplace=False)),
    row(torch.dropout_, to=lambda input, p, train: call(F.dropout, input, p, training=train, inplace=True)),
    row(torch.alpha_dropout, to=lambda input, p, train: call(F.alpha_dropout, input, p, training=train, inplace=False)),
    row(torch.alpha_dropout_, to=lambda input, p, train: call(F.alpha_dropout, input, p, training=train, inplace=True)),
    # Normalization.
    row(torch.batch_norm, to=lambda input, weight, bias, running_mean, running_var, training, momentum, eps,
        cudnn_enabled:
        call(F.batch_norm, input, running_mean, running_var, weight, bias, training, momentum, eps),
        only={"training": False, "cudnn_enabled": True}),
    row(torch.layer_norm, to=lambda input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True:
        call(F.layer_norm, input, sequence(normalized_shape), weight, bias, eps), only={"cudnn_enable": True}),
    row(F.layer_norm, to=lambda input, normalized_shape, weight=None, bias=None, eps=1e-05:
        call(F.layer_norm, input, sequence(normalized_shape), weight, bias, eps)),
    *_deviations(torch.std, torch.std, Tensor.std),
    *_deviations(torch.var, torch.var, Tensor.var),
    *_deviations(torch.std_mean, torch.std_mean),
    *_deviations(torch.var_mean, torch.var_mean),
    row(torch.max, Tensor.max, to=lambda input, other: call(torch.maximum, input, other), kinds={"other": _TENSOR}),
    row(torch.min, Tensor.min, to=lambda input, other: call(torch.minimum, input, other), kinds={"other": _TENSOR}),
    *(_cast(getattr(Tensor, name), dtype) for name, dtype in CASTS.items()),
    row(torch.det, Tensor.det, to=lambda input: call(torch.linalg.det, A=input)),
    row(torch.inverse, Tensor.inverse, to=lambda input: call(torch.linalg.inv, A=input)),
    row(torch.rms_norm, F.rms_norm, to=lambda input, normalized_shape, weight=None, eps=None:
        call(F.rms_norm, input, sequence(normalized_shape), weight, eps)),
    row(Tensor.to, to=lambda self, dtype, non_blocking=False, copy=False, *, memory_format=None:
        call(Tensor.to, self, device=None, dtype=dtype, non_blocking=non_blocking, copy=copy,
        memory_format=memory_format), kinds={"dtype": _DTYPE}),
    row(Tensor.to, to=lambda self, device=None, dtype=None, non_blocking=False, copy=False, *, memory_format=None:
        call(Tensor.to, self, device, dtype, non_blocking, copy, memory_format), kinds={"device": _DEVICE}),
    row(Tensor.to, to=lambda self, other, non_blocking=False, copy=False, *, memory_format=None:
        call(Tensor.to, self, tensor=other, non_blocking=non_blocking, copy=copy, memory_format=memory_format),
        kinds={"other": _TENSOR}),
    row(Tensor.norm, to=lambda input, p="fro", dim=None, keepdim=False, dtype=None:
        call(torch.norm, input, p, sequence(dim), keepdim, out=None, dtype=dtype)),
    row(torch.unique, Tensor.unique, to=lambda input, sorted=True, return_inverse=False, return_counts=False, dim=None:
        call(torch.unique, input, sorted, return_inverse, return_counts, dim)),
    row(torch.nonzero, Tensor.nonzero, to=lambda input, *, as_tuple=False: call(torch.nonzero, input, as_tuple)),
    # Pooling.
    *_max_pool(F.max_pool1d, torch.max_pool1d, F.max_pool1d_with_indices, single),
    *_max_pool(F.max_pool2d, torch.max_pool2d, F.max_pool2d_with_indices, pair),
    *_max_pool(F.max_pool3d, torch.max_pool3d, F.max_pool3d_with_indices, triple),
    *_adaptive_pool(F.adaptive_avg_pool1d, F.adaptive_max_pool1d, single),
    *_adaptive_pool(F.adaptive_avg_pool2d, F.adaptive_max_pool2d, pair),
    *_adaptive_pool(F.adaptive_avg_pool3d, F.adaptive_max_pool3d, triple),
    row(F.avg_pool1d, to=lambda input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True:
        call(F.avg_pool1d, input, single(kernel_size), single(or_default(stride, kernel_size)), single(padding),
        ceil_mode, count_include_pad)),
    _avg_pool(F.avg_pool2d, pair),
    _avg_pool(F.avg_pool3d, triple),
    # The rest.
    row(torch.embedding, to=lambda weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False:
        call(F.embedding, input=indices, weight=weight, padding_idx=None if padding_idx == -1 else padding_idx,
        max_norm=None, norm_type=2.0, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse),
        kinds={"padding_idx": _INDEX}),
    row(F.pad, to=lambda input, pad, mode="constant", value=None: call(F.pad, input, sequence(pad), mode, value)),
    row(torch.concat, torch.concatenate, to=lambda tensors, dim=0: call(torch.cat, sequence(tensors), dim)),
    row(torch.swapaxes, Tensor.swapaxes, to=lambda input, axis0, axis1:
        call(torch.transpose, input, dim0=axis0, dim1=axis1)),
    row(torch.swapdims, Tensor.swapdims, to=lambda input, dim0, dim1: call(torch.transpose, input, dim0, dim1)),
    row(torch.clip, Tensor.clip, Tensor.clamp, torch.clamp, to=lambda input, min=None, max=None:
        call(torch.clamp, input, min, max)),
    row(torch.sum, Tensor.sum, to=lambda input, dim=None, keepdim=False, *, dtype=None:
        call(torch.sum, input, single(dim), keepdim, dtype)),
    row(torch.mean, Tensor.mean, to=lambda input, dim=None, keepdim=False, *, dtype=None:
        call(torch.mean, input, single(dim), keepdim, dtype)),
    row(torch.split, to=lambda tensor, split_size_or_sections, dim=0:
        call(torch.split, tensor, sequence(split_size_or_sections), dim)),
    row(Tensor.split, to=lambda input, split_size, dim=0:
        call(torch.split, tensor=input, split_size_or_sections=sequence(split_size), dim=dim)),
    row(Tensor.unflatten, to=lambda input, dim, sizes: call(torch.unflatten, input, dim, sequence(sizes))),
    row(Tensor.__getitem__, to=lambda input, index: call(operator.getitem, input, index)),
)  # fmt: skip
"""The rows."""
