"""Programs with formulas, as they are usually written or with one thing otherwise, and the passes that match them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .formulas import (
    attention,
    exponentials,
    gelu_with,
    is_any,
    is_close,
    lerp,
    lerp_either_way,
    lerp_from_anything,
    log_softmax,
    log_softmax_of_the_last,
    quantized,
    rewriting,
    rms_norm_with,
    silu,
    silu_in_place_of_its_gate,
    silu_of_anything,
    silu_through_casts,
    softmax_without_its_shift,
    standardized,
    tanh_gelu_of_any_numbers,
    usual_attention,
)
from .rows import EXAMPLES, Right, Witness, Wrong, enter, numbers, of


def _of(forward: Callable[..., Any], *shapes: tuple[int, ...]) -> Witness:
    """Return a maker of the program of a formula on tensors of these shapes, each with other numbers."""
    return of(forward, *(numbers(*shape) + place / 4 for place, shape in enumerate(shapes)))


def _gelu(divisor: float) -> Witness:
    return _of(lambda m, x: 0.5 * x * (1 + torch.erf(x / divisor)), (3,))


def _rms_norm(dim: int = -1, keepdim: bool = True) -> Witness:
    return _of(lambda m, x: x * torch.rsqrt(x.pow(2).mean(dim, keepdim=keepdim) + 1e-6), (3, 3))


def _softmax(keepdim: bool = True) -> Witness:
    return _of(lambda m, x: x.exp() / x.exp().sum(-1, keepdim=keepdim), (3, 3))


def _attention(
    dim: int = -1, scale: float = 0.5, transposed: tuple[int, int] = (-2, -1), is_masked: bool = False
) -> Witness:
    def attend(m: Any, query: Any, key: Any, value: Any) -> Any:
        scores = query @ key.transpose(*transposed) * scale
        return F.softmax(scores.masked_fill(value > 0, -9.0) if is_masked else scores, dim=dim) @ value

    return _of(attend, (3, 3, 3), (3, 3, 3), (3, 3, 3))


def _fake_quantized(zero: int) -> Witness:
    return _of(lambda m, x: (torch.clamp(torch.round(x / 0.1) + 3, -8, 7) - zero) * 0.1, (8,))


def _layer_norm(**variance: bool) -> Witness:
    def normalize(m: Any, x: Any) -> Any:
        return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, **variance) + 1e-5)

    return _of(normalize, (2, 3))


_RIGHT: tuple[tuple[str, Any, Witness], ...] = (
    ("silu", silu, _of(lambda m, x: x * torch.sigmoid(x), (3,))),
    ("gelu", gelu_with(is_close), _gelu(math.sqrt(2))),
    ("rms norm", rms_norm_with(lambda dim: dim == -1, bool), _rms_norm()),
    ("log softmax", log_softmax, _of(lambda m, x: torch.log(torch.softmax(x, 0)), (3, 2))),
    ("softmax", exponentials(bool), _softmax()),
    ("attention", attention(), _attention()),
    ("lerp", lerp, _of(lambda m, start, end: start + 0.3 * (end - start), (3,), (3,))),
    ("fake quantization", quantized(operator.eq), _fake_quantized(3)),
    ("layer norm", standardized(operator.not_), _layer_norm(unbiased=False)),
)
_ANY_MEAN = rms_norm_with(lambda dim: isinstance(dim, int), bool)
_UNCHECKED: tuple[tuple[str, str, Any, Witness], ...] = (
    ("silu_of_anything", "an operand", silu_of_anything, _of(lambda m, x, y: y * torch.sigmoid(x), (3,), (3,))),
    ("silu_through_casts", "a cast", silu_through_casts, _of(lambda m, x: x * torch.sigmoid(x).double(), (3,))),
    ("gelu_of_any_numbers", "the numbers", gelu_with(is_any), _gelu(1.5)),
    (
        "tanh_gelu_of_any_numbers", "the numbers of many", tanh_gelu_of_any_numbers,
        _of(lambda m, x: 0.5 * x * (1 + torch.tanh(0.5 * (x + 0.1 * x))), (3,)),
    ),
    ("rms_norm_over_any_dimension", "the dimension of a mean", _ANY_MEAN, _rms_norm(0)),
    (
        "rms_norm_of_any_mean", "that a mean keeps its dimension",
        rms_norm_with(lambda dim: dim == -1, lambda kept: True), _rms_norm(keepdim=False),
    ),
    (
        "log_softmax_of_the_last", "the dimension of a softmax", log_softmax_of_the_last,
        _of(lambda m, x: torch.log(torch.softmax(x, 0)), (3, 2)),
    ),
    ("softmax_of_any_sum", "that a sum keeps its dimension", exponentials(lambda kept: True), _softmax(False)),
    (
        "softmax_without_its_shift", "the dimension of a maximum", softmax_without_its_shift,
        _of(lambda m, x: torch.softmax(x - torch.amax(x, 1, True), 0), (3, 2)),
    ),
    ("attention_of_any_scale", "the scale", attention(usual_attention), _attention(scale=0.25)),
    (
        "attention_over_any_dimension", "the dimension of the attention", attention(is_last=lambda dim: True),
        _attention(dim=-2),
    ),
    (
        "attention_of_any_transpose", "the dimensions of the transpose", attention(are_last=lambda dims: True),
        _attention(transposed=(0, 1)),
    ),
    ("attention_without_its_mask", "a mask", attention(before=("masked_fill",)), _attention(is_masked=True)),
    ("lerp_either_way", "the order", lerp_either_way, _of(lambda m, x, y: x + 0.3 * (x - y), (3,), (3,))),
    (
        "lerp_from_anything", "the start", lerp_from_anything,
        _of(lambda m, x, y, z: z + 0.3 * (x - y), (3,), (3,), (3,)),
    ),
    ("fake_quantize_with_any_zero", "the zero", quantized(lambda added, zero: True), _fake_quantized(2)),
    (
        "layer_norm_of_any_variance", "whether the variance is biased", standardized(lambda unbiased: True),
        _layer_norm(),
    ),
)  # fmt: skip


def _enter_unchecked(name: str, unchecked: str, pass_: Any, on: Witness) -> None:
    pass_.__name__ = name
    laws = ("dtype", "contract") if unchecked == "a cast" else ("contract", "structure")
    enter(
        Wrong(name, "formulas", "formulas", f"A match leaves unchecked: {unchecked}.", pass_, laws, on, programs=MANY)
    )


MANY = 8 * EXAMPLES
"""Random programs within which a match is to be found that leaves one thing unchecked."""
MANY_KEPT = 2 * EXAMPLES
"""Random programs on which a match that checks all is not to be flagged."""

for _name, _unchecked, _fused, _on in _UNCHECKED:
    _enter_unchecked(_name, _unchecked, rewriting(_fused), _on)
_enter_unchecked(
    "silu_in_place_of_its_gate", "another use of what is inside", silu_in_place_of_its_gate,
    _of(lambda m, x: (x * (gate := torch.sigmoid(x)), gate), (3,)),
)  # fmt: skip
for _name, _fused, _on in _RIGHT:
    _pass = rewriting(_fused, of_floats=True)
    _pass.__name__ = _name.replace(" ", "_")
    enter(Right(_name, "formulas", "formulas", f"A match checks all: {_name}.", _pass, (_on,), programs=MANY_KEPT))
