"""Rows for campaigns: what public reports about compilers are made of, and few models have.

These are integers of all widths, two dtypes in a call, views of unusual strides, writes through them, scatters, and
arguments that are mostly left out.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_fx.generation.operands import (
    DIMENSIONED,
    FLOAT,
    GRID,
    IMAGES,
    MATRICES,
    OTHER,
    SAME,
    SAME_FLOAT,
    argument,
    one_of,
)
from pytest_fx.generation.productions import NewTensor, Operand, row
from pytest_fx.generation.state_rows import IN_PLACE, NUMBERS

WIDTH = argument("width", one_of(torch.int32, torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool))
OTHER_WIDTH = argument("other", one_of(torch.int64, torch.uint8, torch.int8, torch.int32))
DIVISOR = argument("divisor", one_of(2, -2, 3, 7, -1))
FRACTION = argument("fraction", one_of(0.1, 1 / 3, -0.2, 0.7))
NARROW = argument("narrow", one_of(*(each for each in vars(torch).values() if isinstance(each, torch.dtype)
                                     and each.is_floating_point and each.itemsize == 1)))  # fmt: skip
FLAG, OTHER_FLAG = argument("flag", one_of(True, False)), argument("other_flag", one_of(True, False))
SCALE = argument("scale", one_of(1.2, (1.2, 2.0), 1.5, (1.3, 0.7), 2))
SAMPLED = argument("mode", one_of("bilinear", "nearest"))
BEYOND = argument("beyond", one_of("zeros", "border", "reflection"))
EXPONENT = argument("exponent", one_of(2, 3, 0, 1))
SHIFT = argument("shift", one_of(1, 3))
STEP = argument("step", one_of(2, 3, 1))
DIAGONAL = argument("diagonal", one_of(0, 1, -1))
DECIMALS = argument("decimals", one_of(1, 2, -1))
CORRECTION = argument("correction", one_of(0, 1, 2))
ORDER = argument("order", one_of(1, 2, float("inf"), 0.5, 0))
REDUCE = argument("reduce", one_of("sum", "prod", "amax", "amin", "mean"))
PRECISE = argument("dtype", one_of(torch.float64, torch.float32))
AS_WHOLE = ".clamp(-30, 30).nan_to_num().mul(9).long()"
"""Makes integers of floats, with no float whose conversion is undefined: NaN, or one out of range."""


def _index(shape: Any) -> Operand:
    """Return an operand of places in the first operand, of a shape that depends on it; programs use it repeatedly."""

    def fits(value: Any, earlier: list[Any]) -> bool:
        is_index = isinstance(value, torch.Tensor) and value.dtype is torch.int64 and value.numel() > 0
        is_index = is_index and value.dim() == len(shape(earlier[0]))
        return is_index and int(value.min()) >= 0 and int(value.max()) < min(earlier[0].shape)

    return Operand(fits, lambda builder, earlier: NewTensor(shape(earlier[0]), torch.int64, min(earlier[0].shape)))


ROW_INDEX = _index(lambda first: first.shape[:1])
"""Places along the first dimension of the first operand."""
INDEX_OF_EACH = _index(lambda first: first.shape)
"""A place along any dimension for each element of the first operand."""


def _of_integers(*forms: str) -> str:
    wholes = (f"{{0}}{AS_WHOLE}.to({{width}})", f"{{1}}{AS_WHOLE}.to({{other}})")
    return "; ".join(form.replace("{i}", wholes[0]).replace("{j}", wholes[1]) for form in forms)


# A row reads better in two lines than in eight.
# fmt: off
RARE = [
    row(_of_integers("{i} // {divisor}", "{i} % {divisor}", "torch.div({i}, {divisor}, rounding_mode='trunc')",
        "torch.fmod({i}, {divisor})", "{i} / {divisor}", "{i} * {divisor}", "{i} - {divisor}"), FLOAT, WIDTH, DIVISOR,
        weight=4),
    row(_of_integers("torch.pow({i}, {exponent})", "{i} ** {exponent}", "-{i}", "{i}.abs()", "{i}.sign()", "~{i}",
        "{i}.square()", "{i}.clamp(-3, 3)", "{i}.float()", "{i}.bool()"), FLOAT, WIDTH, EXPONENT, weight=3),
    row(_of_integers("{i} << {shift}", "{i} >> {shift}", "torch.bitwise_left_shift({i}, {shift})", "{i} & {shift}",
        "{i} | {shift}", "{i} ^ {shift}"), FLOAT, WIDTH, SHIFT, weight=2),
    row(_of_integers("{i} + {j}", "{i} * {j}", "{i} - {j}", "torch.maximum({i}, {j})", "{i} == {j}", "{i} < {j}",
        "torch.where({i} > 0, {i}, {j})", "torch.add({i}, {j}, alpha=2)", "{i} & {j}", "{i} << ({j} & 3)",
        "torch.bitwise_right_shift({i}, {j} & 7)"), FLOAT, OTHER, WIDTH,
        OTHER_WIDTH, weight=4),
    row(_of_integers("{i}.cumsum(-1)", "{i}.sum(-1)", "{i}.sum()", "{i}.prod(-1)", "{i}.cumprod(0)", "{i}.amax(-1)",
        "{i}.argmax(-1)", "{i}.sort(-1)[0]", "torch.cumsum({i}, 0, dtype=torch.int32)", "{i}.float().mean(-1)"),
        DIMENSIONED, WIDTH, weight=3),
    row(_of_integers("{i} @ {i}.mT", "torch.matmul({i}, {i}.mT)"), MATRICES, WIDTH, weight=3),
    row("{0} + {1}.to({dtype}); {0} * {1}.half(); torch.where({0} > 0, {0}, {1}.to({dtype})); {0}.double() - {1}; "
        "torch.cat([{0}.flatten(), {1}.flatten().to({dtype})]); torch.maximum({0}, {1}.to({dtype})); "
        "{0} / {1}.to({dtype}).exp(); torch.stack([{0}, {0}.to({dtype})])", FLOAT, OTHER, PRECISE, weight=3),
    row("{0}.contiguous().view(torch.int32); {0}.float().contiguous().view(torch.uint8); "
        "{0}.double().contiguous().view(torch.int64); {0}.half().contiguous().view(torch.int16)", DIMENSIONED),
    row("torch.as_strided({0}, ({0}.numel() // 2,), (1,)); {0}.as_strided(({0}.size(0),), (0,)); "
        "{0}.contiguous().as_strided((2, {0}.numel() // 2), (0, 1)); "
        "{0}.contiguous().as_strided(({0}.numel() - 1, 2), (1, 1))", DIMENSIONED, weight=2),
    row("{0}.unfold(-1, 1, {step}); {0}.unfold(0, 1, {step}); {0}[..., ::{step}]; {0}[::{step}].mT; "
        "{0}.expand(2, *{0}.shape); {0}.flip(0)[..., ::{step}]; {0}.narrow(0, 0, 1).expand_as({0})", MATRICES, STEP,
        weight=2),
    row("torch.diagonal({0}, {diagonal}); torch.diag_embed({0}, {diagonal}); {0}.tril({diagonal}); "
        "torch.diagonal_scatter({0}, torch.diagonal({0}, {diagonal}) * 2, {diagonal})", MATRICES, DIAGONAL,
        weight=2),
    row("torch.slice_scatter({0}, {0}[1:] * 2, 0, 1); torch.slice_scatter({0}, {0}[::2] + 1, 0, 0, None, 2); "
        "torch.slice_scatter({0}, {0}[..., 1:] * 2, -1, 1); torch.select_scatter({0}, {0}[0] * 3, 0, -1); "
        "torch.as_strided_scatter({0}.contiguous(), {0}.flatten()[:2] * 2, (2,), (1,))", DIMENSIONED, weight=2),
    row("{0}.scatter_reduce(0, torch.zeros_like({0}, dtype=torch.int64), {0}, {reduce}, include_self=False); "
        "{0}.scatter_reduce(-1, torch.zeros_like({0}, dtype=torch.int64), {0}, {reduce})", DIMENSIONED, REDUCE),
    row("{0}.index_add(0, torch.tensor([0, 0]), {0}[:1].expand(2, *{0}.shape[1:]), alpha=2); "
        "torch.index_put({0}, (torch.tensor([0, 0]),), {0}[:1], accumulate=True); "
        "{0}.index_copy(0, torch.tensor([0]), {0}[-1:]); {0}.take(torch.tensor([0, -1])); "
        "{0}.take_along_dim({0}.argsort(-1), -1)", DIMENSIONED, weight=2),
    row("{0}[{1}]; {0}.index_select(0, {1}); {0}.index_add(0, {1}, {0}[{1}]); {0}.index_copy(0, {1}, {0}[{1}] * 2); "
        "{0}.index_fill(0, {1}, 2); torch.zeros_like({0}).index_add(0, {1}, {0}[{1}]); "
        "{0}.index_put(({1},), {0}[{1}] * 2, accumulate=True); "
        "torch.zeros_like({0}[:1]).index_add(0, {1} * 0, {0}[{1}]); "
        "F.embedding({1}, {0}.flatten(1)); F.embedding_bag({1}.unsqueeze(0), {0}.flatten(1), mode='max')",
        DIMENSIONED, ROW_INDEX, weight=6),
    row("{0}.gather(0, {1}); {0}.gather(-1, {1}); {0}.scatter_add(0, {1}, {0} * 2); {0}.scatter(-1, {1}, 3); "
        "torch.zeros_like({0}).scatter_add(0, {1}, {0}); torch.zeros_like({0}[:1]).scatter_add(0, {1} * 0, {0}); "
        "{0}.take({1}); torch.take_along_dim({0}, {1}, 0)", DIMENSIONED, INDEX_OF_EACH, weight=5),
    row("{0}[{1}] += {0}[{1}]; {0}.index_put_(({1},), {0}[{1}] * 2); {0}.index_add_(0, {1}, {0}[{1}]); "
        "{0}.index_copy_(0, {1}, {0}[{1}] + 1); {0}[{1}] = {0}[{1}].flip(0)", DIMENSIONED, ROW_INDEX, IN_PLACE,
        weight=3),
    row("F.grid_sample({0}, {1}.tanh(), mode={mode}, padding_mode={beyond}, align_corners={flag})", IMAGES, GRID,
        SAMPLED, BEYOND, FLAG, weight=2),
    row("F.interpolate({0}, scale_factor={scale}, mode={mode}); F.interpolate({0}, scale_factor={scale}, mode='area'); "
        "F.interpolate({0}, scale_factor={scale}, mode='nearest-exact'); "
        "F.interpolate({0}, scale_factor={scale}, mode='bilinear', align_corners={flag}, recompute_scale_factor=True)",
        IMAGES, SCALE, SAMPLED, FLAG, weight=2),
    row("F.avg_pool2d({0}, 2, stride=2, padding=1, ceil_mode={flag}, count_include_pad={other_flag}); "
        "F.max_pool2d({0}, 2, stride={step}, padding=1, dilation=2, ceil_mode={flag}); "
        "F.avg_pool2d({0}, 3, {step}, 1, {flag}, {other_flag}, 2)", IMAGES, STEP, FLAG, OTHER_FLAG, weight=2),
    row("{0}.to({narrow}).to({0}.dtype); {0}.to({narrow}).float() + {0}", FLOAT, NARROW),
    row("{0} > 0; {0}.bool().cumsum(-1); ({0} > 0).cumsum(0, dtype=torch.float32); ({0} < 1).sum(-1); "
        "torch.full_like({0}, 3).cumsum(-1); torch.ones_like({0}, dtype=torch.bool).cumsum(0, dtype=torch.float64); "
        "({0} > 0).cumprod(-1); ({0} > 0).any(0)", DIMENSIONED, weight=2),
    row("{0} // {fraction}; torch.div({0}, {fraction}, rounding_mode='floor'); {0} % {fraction}; "
        "torch.remainder({0}, {fraction}); torch.div({0}, {fraction}, rounding_mode='trunc'); {0} - {0} // {fraction}",
        FLOAT, FRACTION, weight=2),
    row("{0}[{0} > 0] = {number}; {0}[{0} < 0] *= {number}; {0}[torch.tensor([0, -1])] = {number}; "
        "{0}[::2] += {number}; {0}[..., -1] *= {number}", DIMENSIONED, NUMBERS, IN_PLACE, weight=2),
    row("{0}[:1] = {0}[-1:].clone(); {0}[torch.tensor([0])] = {0}[-1:] * 2; {0}[..., :1] += {0}[..., -1:].clone()",
        DIMENSIONED, IN_PLACE),
    row("torch.round({0}, decimals={decimals}); {0}.round(decimals={decimals})", FLOAT, DECIMALS, weight=2),
    row("torch.var_mean({0}); torch.std_mean({0}, correction={correction}); torch.var({0}, correction={correction}); "
        "torch.var({0}, dim=(0,), correction={correction}); {0}.std(-1, correction={correction})", DIMENSIONED,
        CORRECTION, weight=2),
    row("torch.linalg.vector_norm({0}, {order}); torch.linalg.vector_norm({0}, {order}, dim=-1, keepdim=True); "
        "torch.norm({0}, p={order}, dim=-1)", DIMENSIONED, ORDER),
    row("torch.sum({0}, -1, dtype={dtype}); torch.mean({0}, 0, dtype={dtype}); torch.cumsum({0}, 0, dtype={dtype}); "
        "torch.prod({0}, -1, dtype={dtype}); torch.softmax({0}, -1, dtype={dtype})", DIMENSIONED, PRECISE),
    row("torch.cummax({0}, -1)[0]; torch.logcumsumexp({0}, 0); torch.kthvalue({0}, 1, -1)[0]; torch.diff({0}, dim=0); "
        "torch.median({0}, 0)[0]; torch.logsumexp({0}, 0); torch.aminmax({0}, dim=-1)[0]; torch.count_nonzero({0}, -1)",
        DIMENSIONED, weight=2),
    row("torch.copysign({0}, {0} * -0.0); torch.signbit({0} * -0.0); 1 / ({0} * -0.0 + 1); torch.frexp({0})[0]; "
        "torch.ldexp({0}, torch.tensor(2)); torch.nan_to_num({0} / 0); torch.sgn({0}); torch.trunc({0} * -1)", FLOAT),
    row("torch.fmod({0}, {divisor}); torch.remainder({0}, {divisor}); {0} // {divisor}; {0} % {divisor}", FLOAT,
        DIVISOR, weight=2),
    row("torch.xlogy({0}, {1}.abs()); torch.heaviside({0}, {1}); torch.logaddexp({0}, {1}); torch.fmin({0}, {1}); "
        "torch.addcdiv({0}, {1}, {1}.abs() + 1, value=-2); torch.float_power({0}, 2); torch.hypot({0}, {1})", FLOAT,
        SAME_FLOAT, weight=2),
    row("torch.addmm({0}[:1, :1], {0}, {0}.mT, alpha=0.5, beta=2); torch.add({0} @ {0}.mT, {1}.mean(), alpha=2); "
        "torch.cdist({0}, {0}, p=1.0); torch.tensordot({0}, {0}, dims=([1], [1])); torch.outer({0}[0], {0}[-1])",
        MATRICES, SAME, weight=2),
    row("{0}.to(memory_format=torch.preserve_format).t(); {0}.mT.contiguous().mT; {0}.mT.clone(); "
        "torch.empty_like({0}.mT).copy_({0}.mT) + {0}.mT", MATRICES),
]
