"""Rows: formulas as people write them out, which passes replace by one operation."""

from __future__ import annotations

from dataclasses import replace

from pytest_fx.generation.operands import (
    BIAS,
    DIMENSIONED,
    FLOAT,
    MATRICES,
    OTHER_FLOAT,
    SAME_FLOAT,
    SEQUENCES,
    VECTORS,
    WEIGHT,
    argument,
    dimension,
    number,
    number_of,
    one_of,
)
from pytest_fx.generation.productions import row
from pytest_fx.generation.siblings import FORMULA

_DIM = argument("dim", dimension)
_EPS = argument("eps", number_of(1e-6, 1e-5, 0.1, 1))
_NUMBER = argument("number", number)
_limit = number_of(0, 1, 0.5, -1)


# A row reads better in two lines than in eight.
# fmt: off
_ROWS = [
    row("{0} * torch.sigmoid({0}); {0} * {0}.sigmoid(); {0} * torch.tanh(F.softplus({0})); "
        "{0} * F.relu6({0} + 3) / 6; 0.5 * {0} * (1 + torch.erf({0} / math.sqrt(2))); "
        "0.5 * {0} * (1 + torch.tanh(math.sqrt(2 / math.pi) * ({0} + 0.044715 * {0}**3))); "
        "{0} * torch.sigmoid(1.702 * {0}); {0} + F.relu({0})", FLOAT, weight=3),
    row("1 - torch.sigmoid({0}); torch.sigmoid(-{0}); 1 / (1 + torch.exp(-{0})); torch.exp({0}) - 1; "
        "torch.log(1 + {0}.abs()); torch.log({0}.exp() + 1); torch.exp(torch.log({0}.abs() + 1)); "
        "torch.sqrt({0} * {0}); -torch.relu(-{0}); torch.clamp(torch.round({0} / 0.1), -8, 7) * 0.1; "
        "(torch.clamp(torch.round({0} / 0.25) + 3, 0, 15) - 3) * 0.25; torch.round({0} * 8) / 8", FLOAT),
    row("torch.where({0} > 0, {0}, {0} * {number}); ~({0} > {number}); "
        "torch.relu({0}) + {number} * torch.relu(-{0}); torch.maximum({0}, {number} * {0})", FLOAT, _NUMBER),
    row("({0} > {low}) & ({0} < {high}); ({0} >= {low}) & ({0} > {high}); ({0} < {low}) | ({0} >= {high}); "
        "({0} == {low}) | ({0} > {high}); torch.logical_and({0} >= {low}, {0} <= {high})", FLOAT,
        argument("low", _limit), argument("high", _limit)),
    row("{0} * torch.rsqrt({0}.pow(2).mean(-1, keepdim=True) + {eps}); "
        "{0} / torch.sqrt(torch.mean({0} * {0}, dim=-1, keepdim=True) + {eps}); "
        "({0} - {0}.mean(-1, keepdim=True)) / ({0}.std(-1, keepdim=True) + {eps}); "
        "({0} - {0}.mean(-1, keepdim=True)) / torch.sqrt({0}.var(-1, keepdim=True, unbiased=False) + {eps}); "
        "{0} / ({0}.sum(-1, keepdim=True) + {eps}); {0} / {0}.norm(dim=-1, keepdim=True).clamp(min={eps})", VECTORS,
        _EPS, weight=2),
    row("torch.softmax({0} - torch.amax({0}, {dim}, keepdim=True), dim=-1); "
        "F.softmax({0} - {0}.max(dim={dim}, keepdim=True)[0], dim=-1); "
        "{0}.exp() / {0}.exp().sum({dim}, keepdim=True); torch.log(F.softmax({0}, dim={dim})); "
        "torch.log(torch.sum(torch.exp({0}), dim={dim})); torch.sqrt(torch.sum({0} ** 2, dim={dim})); "
        "torch.sqrt(torch.var({0}, dim={dim})); F.softmax({0}, dim={dim}).argmax(-1); "
        "{0}.sum({dim}) / {0}.size({dim})", VECTORS, _DIM, weight=2),
    row("({0} * {number}).amax(); ({0} * {number}).max(); ({0} * {number}).min()", VECTORS, _NUMBER),
    row("({0} * {number}).amax({dim}); torch.amin({number} * {0}, dim={dim})", VECTORS, _NUMBER, _DIM),
    row("F.linear({0}, {1} * {number}, {2}); F.linear({0} * {number}, {1}, {2})", VECTORS, WEIGHT, BIAS, _NUMBER,
        weight=2),
    row("F.linear({0}, {1} * {number})", VECTORS, WEIGHT, _NUMBER),
    row("({0} - {1}).pow(2).mean(); torch.mean(torch.abs({0} - {1})); torch.sum({0} * {1}, dim=-1)", VECTORS,
        SAME_FLOAT),
    row("F.silu({0}) * {1}; F.gelu({0}) * {1}; ({0} + {1}) * ({0} - {1}); {0} * {1} + {0}; {0} - {1} * {0}; "
        "-({0} - {1})", FLOAT, OTHER_FLOAT, weight=2),
    row("{0} + {number} * ({1} - {0}); {0} * (1 - {number}) + {1} * {number}; {0} * {number} + {1} * {number}; "
        "({0} + {1}) * {number}", FLOAT, OTHER_FLOAT, _NUMBER),
    row("{0} + {1} * {2}; {0} - {1} * {2}; {1} * {2} - {0}; {0} * {1} + {0} * {2}", FLOAT, OTHER_FLOAT, OTHER_FLOAT),
    row("F.softmax(torch.matmul({0}, {1}.transpose(-2, -1)) * {number}, dim=-1) @ {2}; "
        "F.softmax(torch.bmm({0}, {1}.transpose(1, 2)) * {number}, dim=-1).bmm({2})", SEQUENCES, SAME_FLOAT,
        SAME_FLOAT, argument("number", number_of(0.5, 0.125))),
    row("torch.softmax({0} @ {1}.transpose(-2, -1) / math.sqrt({0}.size(-1)), dim=-1) @ {2}; "
        "F.softmax({0} @ {1}.mT * {0}.shape[-1] ** -0.5, dim=-1) @ {2}", MATRICES, SAME_FLOAT, SAME_FLOAT),
    row("F.softmax(({0} @ {1}.mT).masked_fill(torch.ones({pairs}).triu({diagonal}) > 0, float('-inf')), dim=-1) @ {1}; "
        "F.softmax({0} @ {1}.mT + torch.full({pairs}, -1e4).triu({diagonal}), dim=-1) @ {1}; "
        "({0} @ {1}.mT).masked_fill(torch.ones({pairs}).tril(diagonal={diagonal}) == 0, -1e4).softmax(-1) @ {1}",
        MATRICES, SAME_FLOAT, argument("pairs", lambda builder, objects: (objects[0].shape[-2],) * 2),
        argument("diagonal", one_of(1, 2, 0, -1))),
    row("({0} @ {1}.mT).mT; ({0} + {1}).transpose(-2, -1)", MATRICES, SAME_FLOAT),
    row("torch.cat([-{0}[..., 1:], {0}[..., :1]], dim=-1); torch.cat([{0}[..., ::2], {0}[..., 1::2]], dim=-1); "
        "torch.stack([{0}[..., 0], {0}[..., -1]], dim=-1); {0}.unsqueeze(-1).squeeze(-1); "
        "{0}.reshape({0}.shape[0], -1).sum(1)", DIMENSIONED),
]

FORMULAS = [replace(each, tags=each.tags | FORMULA) for each in _ROWS]
