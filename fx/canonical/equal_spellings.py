"""The table of equal spellings: which calls are the same operation, and what the one spelling of it is.

A row reads ``spelling -> canonical call``. The left side names a function, or a method as ``Tensor.name``, with its
parameters; a parameter annotated with a literal must have that value (``alpha: 1 = 1``), and one with a star takes
either several numbers or one sequence of them. On the right, functions of ``operator`` take their operands by
position, methods of ``Tensor`` the tensor itself; all other arguments go by keyword under the names that stand there.
``pair(n)`` means that one number stands for ``(n, n)``, ``real(n)`` that it is a float.

What has no row follows from the operator schemas and signatures; see :mod:`fx.canonical`.
"""

from __future__ import annotations

from typing import Any

import torch

from fx.operators.families import CASTS, operators


def _binary(function: str, names: str, operands: str = "input other", options: str = "") -> list[str]:
    """Rows for an operator and the names that torch's functions and methods have for it, with options at defaults."""
    left, right = operands.split()
    return [
        row
        for name in names.split()
        for row in (
            f"torch.{name}({left}, {right}{options}) -> operator.{function}({left}, {right})",
            f"Tensor.{name}(self, {right}{options}) -> operator.{function}(self, {right})",
        )
    ]


def _unary(target: str, names: str) -> list[str]:
    return [
        row
        for name in names.split()
        for row in (f"torch.{name}(input) -> {target}", f"Tensor.{name}(input) -> {target}")
    ]


def activation(name: str, namespaces: str, options: str = "", passed: str = "") -> list[str]:
    """Rows for the spellings of an activation that ``torch.nn.functional`` has with a flag for in place."""
    return [
        f"{namespace}.{name}{suffix}(input{options}) -> F.{name}(input{passed}, inplace={suffix == '_'})"
        for namespace in namespaces.split()
        for suffix in ("", "_")
    ]


_torch: Any = torch  # for the functions that torch leaves without types
_ALIASES: tuple[tuple[Any, Any], ...] = (
    *((alias, row.function) for row in operators() for alias in row.aliases),
    (_torch.subtract, _torch.sub),
    (_torch.multiply, _torch.mul),
    (_torch.divide, _torch.div),
    (_torch.special.softmax, _torch.softmax),
    (_torch.special.log_softmax, _torch.log_softmax),
    (_torch.linalg.matmul, _torch.matmul),
)
"""Functions and what they are by another name: of operators, or where the operator's own function takes less."""
FUNCTION_ALIASES: dict[int, tuple[Any, Any]] = {id(alias): (alias, function) for alias, function in _ALIASES}
"""The same by identity."""
METHOD_ALIASES: dict[str, str] = {
    f"{alias.__name__}{suffix}": f"{function.__name__}{suffix}"
    for alias, function in _ALIASES
    for suffix in ("", "_")
    if hasattr(torch.Tensor, f"{alias.__name__}{suffix}")
}
"""Methods that are another one by a different name, with the same parameters."""

ROWS: tuple[str, ...] = (
    # Arithmetic, comparisons and logic: the operators of Python.
    *_binary("add", "add", options=", *, alpha: 1 = 1"),
    *_binary("sub", "sub subtract", options=", *, alpha: 1 = 1"),
    "torch.rsub(input, other, *, alpha: 1 = 1) -> operator.sub(other, input)",
    *_binary("mul", "mul multiply"),
    *_binary("truediv", "true_divide"),
    *_binary("truediv", "div divide", options=", *, rounding_mode: None = None"),
    *_binary("floordiv", "floor_divide"),
    *_binary("mod", "remainder"),
    *_binary("pow", "pow", "input exponent"),
    *_binary("matmul", "matmul"),
    *_binary("and_", "bitwise_and"),
    *_binary("or_", "bitwise_or"),
    *_binary("xor", "bitwise_xor"),
    *_binary("eq", "eq"),
    *_binary("ne", "ne not_equal"),
    *_binary("lt", "lt less"),
    *_binary("le", "le less_equal"),
    *_binary("gt", "gt greater"),
    *_binary("ge", "ge greater_equal"),
    *_unary("operator.neg(input)", "neg negative"),
    *_unary("operator.abs(input)", "abs absolute"),
    *_unary("operator.invert(input)", "bitwise_not"),
    *_unary("operator.pos(input)", "positive"),
    "builtins.abs(input) -> operator.abs(input)",
    # Activations: torch.nn.functional, which has a flag for in place.
    *activation("relu", "torch Tensor"),
    *activation("selu", "torch"),
    *activation("celu", "torch", ", alpha=1.0", ", alpha"),
    "torch.rrelu(input, lower=0.125, upper=0.3333333333333333, training=False, generator: None = None)"
    " -> F.rrelu(input, lower, upper, training, inplace=False)",
    "torch.threshold(input, threshold, value) -> F.threshold(input, threshold, value, inplace=False)",
    "torch.threshold_(input, threshold, value) -> F.threshold(input, threshold, value, inplace=True)",
    "F.relu_(input) -> F.relu(input, inplace=True)",
    "F.selu_(input) -> F.selu(input, inplace=True)",
    "F.celu_(input, alpha=1.0) -> F.celu(input, alpha, inplace=True)",
    "F.elu_(input, alpha=1.0, scale: 1 = 1, input_scale: 1 = 1) -> F.elu(input, alpha, inplace=True)",
    "F.leaky_relu_(input, negative_slope=0.01) -> F.leaky_relu(input, negative_slope, inplace=True)",
    "F.hardtanh_(input, min_val=-1.0, max_val=1.0) -> F.hardtanh(input, min_val, max_val, inplace=True)",
    "F.threshold_(input, threshold, value) -> F.threshold(input, threshold, value, inplace=True)",
    "F.relu6(input, inplace=False) -> F.hardtanh(input, min_val=0.0, max_val=6.0, inplace=inplace)",
    "F.softplus(input, beta=1, threshold=20) -> F.softplus(input, real(beta), real(threshold))",
    "F.sigmoid(input) -> torch.sigmoid(input)",
    "F.tanh(input) -> torch.tanh(input)",
    *(
        f"{path}.{name}({first}, dim, {star}dtype=None) -> F.{name}(input={first}, dim=dim, dtype=dtype)"
        for name in ("softmax", "log_softmax")
        for path, first, star in (("torch", "input", ""), ("Tensor", "self", ""))
    ),
    *(
        f"F.{name}(input, dim=None, _stacklevel=3, dtype=None) -> F.{name}(input, dim, dtype)"
        for name in ("softmax", "log_softmax", "softmin")
    ),
    "torch.dropout(input, p, train) -> F.dropout(input, p, training=train, inplace=False)",
    "torch.dropout_(input, p, train) -> F.dropout(input, p, training=train, inplace=True)",
    "torch.alpha_dropout(input, p, train) -> F.alpha_dropout(input, p, training=train, inplace=False)",
    "torch.alpha_dropout_(input, p, train) -> F.alpha_dropout(input, p, training=train, inplace=True)",
    # Normalization.
    "torch.batch_norm(input, weight, bias, running_mean, running_var, training: False, momentum, eps,"
    " cudnn_enabled: True) -> F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)",
    "torch.layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable: True = True)"
    " -> F.layer_norm(input, sequence(normalized_shape), weight, bias, eps)",
    "F.layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05)"
    " -> F.layer_norm(input, sequence(normalized_shape), weight, bias, eps)",
    *(
        f"{path}.{name}{parameters} -> torch.{name}(input, {dim}, correction={correction}, keepdim={keepdim})"
        for name in ("std", "var", "std_mean", "var_mean")
        for path in (("torch", "Tensor") if len(name) == 3 else ("torch",))
        for parameters, dim, correction, keepdim in (
            ("(input, dim: dims = None, *, correction=None, keepdim=False)", "dims(dim)", "correction or 1", "keepdim"),
            ("(input, dim: dims, unbiased: True = True, keepdim=False)", "dims(dim)", 1, "keepdim"),
            ("(input, dim: dims, unbiased: False, keepdim=False)", "dims(dim)", 0, "keepdim"),
            ("(input, unbiased: True = True)", "dim=None", 1, False),
            ("(input, unbiased: False)", "dim=None", 0, False),
        )
    ),
    *(f"{path}.max(input, other: tensor) -> torch.maximum(input, other)" for path in ("torch", "Tensor")),
    *(f"{path}.min(input, other: tensor) -> torch.minimum(input, other)" for path in ("torch", "Tensor")),
    *(
        f"Tensor.{name}(self, *, memory_format=None)"
        f" -> Tensor.to(self, device=None, dtype={dtype}, non_blocking=False, copy=False, memory_format=memory_format)"
        for name, dtype in CASTS.items()
    ),
    "torch.det(input) -> torch.linalg.det(A=input)",
    "torch.inverse(input) -> torch.linalg.inv(A=input)",
    "Tensor.det(input) -> torch.linalg.det(A=input)",
    "Tensor.inverse(input) -> torch.linalg.inv(A=input)",
    "torch.rms_norm(input, normalized_shape, weight=None, eps=None)"
    " -> F.rms_norm(input, sequence(normalized_shape), weight, eps)",
    "F.rms_norm(input, normalized_shape, weight=None, eps=None)"
    " -> F.rms_norm(input, sequence(normalized_shape), weight, eps)",
    "Tensor.to(self, dtype: dtype, non_blocking=False, copy=False, *, memory_format=None)"
    " -> Tensor.to(self, device=None, dtype=dtype, non_blocking=non_blocking, copy=copy, memory_format=memory_format)",
    "Tensor.to(self, device: device = None, dtype=None, non_blocking=False, copy=False, *, memory_format=None)"
    " -> Tensor.to(self, device, dtype, non_blocking, copy, memory_format)",
    "Tensor.to(self, other: tensor, non_blocking=False, copy=False, *, memory_format=None)"
    " -> Tensor.to(self, tensor=other, non_blocking=non_blocking, copy=copy, memory_format=memory_format)",
    "Tensor.norm(self, p='fro', dim=None, keepdim=False, dtype=None)"
    " -> torch.norm(input=self, p=p, dim=sequence(dim), keepdim=keepdim, out=None, dtype=dtype)",
    "torch.unique(input, sorted=True, return_inverse=False, return_counts=False, dim=None)"
    " -> torch.unique(input, sorted, return_inverse, return_counts, dim)",
    "torch.nonzero(input, *, as_tuple=False) -> torch.nonzero(input, as_tuple=as_tuple)",
    "Tensor.nonzero(input, *, as_tuple=False) -> torch.nonzero(input, as_tuple=as_tuple)",
    "Tensor.unique(self, sorted=True, return_inverse=False, return_counts=False, dim=None)"
    " -> torch.unique(input=self, sorted=sorted, return_inverse=return_inverse, return_counts=return_counts, dim=dim)",
    # Pooling: sizes are tuples, and a stride that is left out is the size of the window.
    *(
        row
        for dims, tuple_of in ((1, "single"), (2, "pair"), (3, "triple"))
        for row in (
            *(
                f"{path}(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False{more})"
                f" -> F.max_pool{dims}d(input, {tuple_of}(kernel_size), {tuple_of}(stride or kernel_size),"
                f" {tuple_of}(padding), {tuple_of}(dilation), ceil_mode, return_indices={indices})"
                for path, more, indices in (
                    (f"torch.max_pool{dims}d", "", False),
                    (f"F.max_pool{dims}d", ", return_indices=False", "return_indices"),
                    (f"F.max_pool{dims}d_with_indices", ", return_indices=False", True),
                )
            ),
            f"F.adaptive_avg_pool{dims}d(input, output_size)"
            f" -> F.adaptive_avg_pool{dims}d(input, {tuple_of}(output_size))",
            f"F.adaptive_max_pool{dims}d(input, output_size, return_indices=False)"
            f" -> F.adaptive_max_pool{dims}d(input, {tuple_of}(output_size), return_indices)",
        )
    ),
    "F.avg_pool1d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True)"
    " -> F.avg_pool1d(input, single(kernel_size), single(stride or kernel_size), single(padding), ceil_mode,"
    " count_include_pad)",
    *(
        f"F.avg_pool{dims}d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,"
        f" divisor_override=None) -> F.avg_pool{dims}d(input, {tuple_of}(kernel_size), {tuple_of}(stride or"
        f" kernel_size), {tuple_of}(padding), ceil_mode, count_include_pad, divisor_override)"
        for dims, tuple_of in ((2, "pair"), (3, "triple"))
    ),
    # The rest.
    "torch.embedding(weight, indices, padding_idx: index = -1, scale_grad_by_freq=False, sparse=False)"
    " -> F.embedding(input=indices, weight=weight, padding_idx=unless_negative(padding_idx), max_norm=None,"
    " norm_type=2.0, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)",
    "F.pad(input, pad, mode='constant', value=None) -> F.pad(input, sequence(pad), mode, value)",
    "torch.concat(tensors, dim=0) -> torch.cat(tensors=sequence(tensors), dim=dim)",
    "torch.concatenate(tensors, dim=0) -> torch.cat(tensors=sequence(tensors), dim=dim)",
    *(
        f"{path}.swapaxes(input, axis0, axis1) -> torch.transpose(input, dim0=axis0, dim1=axis1)"
        for path in ("torch", "Tensor")
    ),
    *(f"{path}.swapdims(input, dim0, dim1) -> torch.transpose(input, dim0, dim1)" for path in ("torch", "Tensor")),
    *(
        f"{path}(input, min=None, max=None) -> torch.clamp(input, min, max)"
        for path in ("torch.clip", "Tensor.clip", "Tensor.clamp", "torch.clamp")
    ),
    *(
        f"{path}.{name}(input, dim=None, keepdim=False, *, dtype=None)"
        f" -> torch.{name}(input, dims(dim), keepdim, dtype=dtype)"
        for path in ("torch", "Tensor")
        for name in ("sum", "mean")
    ),
    "torch.split(tensor, split_size_or_sections, dim=0) -> torch.split(tensor, sequence(split_size_or_sections), dim)",
    "Tensor.split(self, split_size, dim=0)"
    " -> torch.split(tensor=self, split_size_or_sections=sequence(split_size), dim=dim)",
    "Tensor.unflatten(input, dim, sizes) -> torch.unflatten(input, dim, sequence(sizes))",
    "Tensor.__getitem__(self, index) -> operator.getitem(self, index)",
)
"""The rows, as text."""
