"""Rows: writes to values and buffers in place, checks, and random numbers."""

from __future__ import annotations

from dataclasses import replace

from pytest_fx.generation.operands import (
    ANOTHER,
    ANY,
    COUNTER,
    DIMENSIONED,
    FLOAT,
    INTO,
    MASK,
    MATRICES,
    OTHER_FLOAT,
    STATISTICS,
    VECTORS,
    argument,
    number,
    one_of,
    size,
)
from pytest_fx.generation.productions import Argument, Operand, Production, row

IN_PLACE = frozenset({"in-place"})
AUGMENTED = IN_PLACE | {"augmented"}
RANDOM = frozenset({"random"})
STATE = IN_PLACE | {"state"}
NUMBERS = argument("number", number)


# A row reads better in two lines than in eight.
# fmt: off
WRITES = [
    row(".add_; .mul_; .sub_; .copy_", FLOAT, INTO, IN_PLACE, weight=3),
    row("{0} += {1}; {0} *= {1}; {0} -= {1}", FLOAT, INTO, AUGMENTED, weight=3),
    row("{0} += {number}; {0} *= {number}; {0} -= {number}", FLOAT, NUMBERS, AUGMENTED, weight=2),
    row("{0}.add_({number}); {0}.mul_({number}); {0}.sub_({number})", FLOAT, NUMBERS, IN_PLACE, weight=3),
    row(".relu_; .neg_; .sigmoid_; .tanh_; torch.relu_; .abs_; .zero_; .exp_", FLOAT, IN_PLACE, weight=3),
    row("{0}.fill_({number}); {0}.masked_fill_({0} > 0, {number})", FLOAT, NUMBERS, IN_PLACE),
    row("{0}.clamp_(min=0); {0}.div_(2)", FLOAT, IN_PLACE),
    row("{0}[{index}] = {number}; {0}[{index}] += {number}; {0}[{index}] *= {number}", DIMENSIONED, NUMBERS,
        argument("index", one_of(0, slice(1, None), (..., 0), -1, slice(None, None, 2))), IN_PLACE, weight=3),
    row("{0}[{1}] = {number}", FLOAT, MASK, NUMBERS, IN_PLACE),
    row("{0}[:] = {1}; {0}[...] = {1}", DIMENSIONED, INTO, IN_PLACE),
    row("torch.add({0}, {1}, out={0})", FLOAT, INTO, IN_PLACE),
    row("F.leaky_relu; F.elu; F.silu; F.hardtanh; F.dropout({0}, training=False{*})", FLOAT,
        argument("inplace", one_of(True)), IN_PLACE, weight=2),
    row(".addcmul_({0}, {1}); .lerp_({1}, 0.5)", FLOAT, INTO, IN_PLACE),
    row(".unsqueeze_(0); .squeeze_(); .t_()", ANY, IN_PLACE),
]

STATES = [
    row("{1}.lerp_({0}.detach().mean(0), 0.1); {1}.add_({0}.detach().sum(0)); {1}.copy_({0}.detach()[0]); "
        "{1}[...] = {0}.detach().mean(0)", MATRICES, STATISTICS, STATE, weight=3),
    row("{1}.lerp_({0}.detach().mean(0), 0.1), {2}.lerp_({0}.detach().square().mean(0), 0.1)", MATRICES, STATISTICS,
        STATISTICS, STATE, weight=2),
    row("{1}.add_({0}.size(0)); {1}.copy_({0}.detach().amax())", MATRICES, COUNTER, STATE, weight=2),
]


def _checks(condition: str, message: str, operands: tuple[Operand, ...], *arguments: Argument) -> Production:
    """Return a row for a condition that the program's inputs meet, in the usual forms of checks.

    ``torch._assert`` formats its message while the program is captured, so only a message without sizes has that form.
    """
    forms = (
        f"assert {condition}, {message}",
        f"if not ({condition}): raise ValueError({message})",
        f"torch._assert({condition}, {message.removeprefix('f')})",
    )
    return Production(forms[: 2 if message[0] == "f" else 3], operands, arguments, frozenset({"check"}), 2)


_LEAST, _WIDTH = argument("least", one_of(1, 0)), argument("width", size(-1))
_LENGTH, _RANK = argument("length", size(0)), argument("rank", lambda builder, objects: objects[0].dim())

CHECKS = [
    _checks("{0}.dim() == {rank}", "'another rank'", (DIMENSIONED,), _RANK),
    row("assert {0}.shape[-1] == {width}", DIMENSIONED, _WIDTH, frozenset({"check"})),
    _checks("{0}.shape[-1] == {width}", "f'{0}: expected {width}, got {{0}.shape[-1]}'", (DIMENSIONED,), _WIDTH),
    _checks("{0}.shape[0] > {least}", "f'{0} has {{0}.shape[0]} rows'", (MATRICES,), _LEAST),
    _checks("{0}.size(0) > {least}", "'{0} has too few rows'", (MATRICES,), _LEAST),
    _checks("{0}.shape[0] == {length}", "f'{0}: expected {length} rows, got {{0}.shape[0]}'", (MATRICES,), _LENGTH),
    _checks("{0}.numel() > 0", "'{0} is empty'", (DIMENSIONED,)),
    _checks("{0}.shape[0] % 2 == 0", "f'an odd number of rows: {{0}.size(0)}'", (MATRICES,)),
    replace(_checks("{0}.is_contiguous()", "'{0} is not contiguous'", (MATRICES,)), weight=4),
    _checks("torch.isfinite({0}).all()", "'{0} is not finite'", (FLOAT,)),
    _checks("({0} >= {low}).all()", "'{0} is too low'", (FLOAT,), argument("low", one_of(0, -1, -3.0, -1000))),
    _checks("{0}.abs().max() < {high}", "'{0} is too high'", (VECTORS,), argument("high", one_of(10, 2.0, 1000))),
    _checks("{0}.is_floating_point()", "f'{0} is of {{0}.dtype}'", (ANY,)),
    _checks("{0}.shape == {1}.shape", "f'{{0}.shape} is not {{1}.shape}'", (MATRICES, ANOTHER)),
]

RANDOMS = [
    row("F.dropout; torch.dropout({0}, 0.5, True); F.alpha_dropout({0}, 0.2, True)", FLOAT, RANDOM, weight=2),
    row("torch.rand_like; torch.randn_like; {0} + torch.randn_like({0}); {0} * torch.rand_like({0})", FLOAT, RANDOM,
        weight=3),
    row("torch.bernoulli({0}.sigmoid()); {0}.sigmoid().bernoulli(); torch.normal({0}, 1.0)", FLOAT, RANDOM),
    row(".normal_; .uniform_", FLOAT, RANDOM | IN_PLACE),
    row("torch.lerp({0}, {1}, torch.rand_like({0}))", FLOAT, OTHER_FLOAT, RANDOM),
]
