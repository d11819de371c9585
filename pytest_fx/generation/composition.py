"""Steps of several operations: modules called or made twice, tied weights, nested modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pytest_fx.generation.bias import Chain, SpelledRow, unlisted
from pytest_fx.generation.grammar import FAMILIES
from pytest_fx.generation.operands import FLOAT, MATRICES, VECTORS
from pytest_fx.generation.productions import Production, compiled
from pytest_fx.generation.program_builder import MOST_INPUTS, Line, ProgramBuilder, Submodule, Value, made
from pytest_fx.generation.schema_rows import FEW_CALLS, rows_of
from pytest_fx.generation.siblings import FORMULA, siblings
from pytest_fx.generation.tensor_expressions import draw_tensor

TRIES = 3
"""The number of tries of a wanted operation with other operands and constants."""
WRITTEN = FAMILIES["writes"][1]
"""Writes in place."""
VIEWED, READ = FAMILIES["views"][1], FAMILIES["reductions"][1]
"""Views, and reductions, which read all of a value."""


def repeat_line(builder: ProgramBuilder) -> bool:
    """Write an earlier line once more, with the same operands: a common subexpression, or a module called twice.

    Sometimes one of its constants differs.
    """
    if not builder.lines:
        return False
    uncommon = [line for line in builder.lines if line.tags & {"random", "dropout", "in-place"}]
    lines = uncommon if uncommon and builder.choices.sometimes(2) else builder.lines
    line = builder.choices.recent(lines)
    if line.form is not None and line.form.arguments and builder.choices.sometimes(2):
        return builder.write(builder.vary(line.form, line.operands), line.operands)
    return _write_again(builder, line)


def call_any(builder: ProgramBuilder) -> bool:
    """Call an operator of torch that no row of the grammar calls."""
    rows = rows_of(builder.choices.pick(unlisted()), FEW_CALLS)
    return bool(rows) and builder.perform(builder.choices.pick(rows))


def write_between(builder: ProgramBuilder) -> bool:
    """Write an earlier line once more after a write to one of its operands."""
    lines = [line for line in builder.lines if line.operands and FLOAT.fits(line.operands[0].object, [])]
    if not lines:
        return False
    line: Line = builder.choices.recent(lines)
    write = WRITTEN.at(builder.choices.below(WRITTEN.total))
    return builder.perform(write, None, line.operands[:1]) and _write_again(builder, line)


def read_after_write(builder: ProgramBuilder) -> bool:
    """Write to a value, to a view of it, or to a view of a view, and read another of these afterwards."""
    base = builder.operand(MATRICES, [])
    if base is None:
        return False
    shared = [base]
    for _ in range(1 + builder.choices.below(2)):
        view = VIEWED.at(builder.choices.below(VIEWED.total))
        if builder.perform(view, None, shared[-1:]):
            shared.append(builder.values[-1])
    written = builder.choices.pick(shared)
    read = builder.choices.pick([value for value in shared if value is not written] or shared)
    write, reading = (rows.at(builder.choices.below(rows.total)) for rows in (WRITTEN, READ))
    return builder.perform(write, None, [written]) and builder.perform(reading, None, [read])


def _write_again(builder: ProgramBuilder, line: Line) -> bool:
    if line.text.startswith("self."):
        builder.features.add("shared-module")
    return builder.append(line.text, line.operands, line.run, line.tags, line.targets is None)


def call_again(builder: ProgramBuilder) -> bool:
    """Call an earlier module, on any value that fits, sometimes on the same one."""
    if not builder.modules:
        return False
    submodule = builder.choices.recent(builder.modules)
    return _call_again(
        builder, submodule, submodule.calls[-1][0] if submodule.calls and builder.choices.sometimes(3) else None
    )


def _call_again(builder: ProgramBuilder, submodule: Submodule, value: Value | None) -> bool:
    operand = submodule.operation.operands[0]
    if value is None or not operand.fits(value.object, []):
        value = builder.operand(operand, [])
    if value is None:
        return False
    builder.features.add("shared-module")
    return builder.call(submodule, [value])


def make_sibling(builder: ProgramBuilder) -> bool:
    """Make a layer like an earlier one, call it on the same value, and in most cases combine both results.

    All its settings are the same, or all but one, or they are drawn.
    """
    layers = [submodule for submodule in builder.modules if "layer" in submodule.operation.tags and submodule.calls]
    if not layers:
        return False
    like = builder.choices.recent(layers)
    value, result = like.calls[0]
    kind = builder.choices.below(6)
    if kind == 5 or like.form is None:
        return builder.perform(like.operation, None, [value])
    if not builder.write(like.form if kind < 3 else builder.vary(like.form, [value]), [value]):
        return False
    builder.features.add("parallel-layers")
    other = builder.values[-1]
    if builder.choices.mostly(4):
        form = builder.choices.pick(("{0} + {1}", "{0} * {1}.sigmoid()", "torch.cat([{0}, {1}], dim=-1)"))
        text, combine = form.format(result.name, other.name), compiled(form)
        builder.attempt(lambda: builder.append(text, [result, other], lambda objects: combine(objects, {})))
    return True


def read_optional(builder: ProgramBuilder) -> bool:
    """Add an input that may be None, and use it if it is not."""
    if builder.inner or len(builder.inputs) >= MOST_INPUTS:
        return False
    base = builder.operand(FLOAT, [])
    if base is None:
        return False
    is_passed = builder.choices.below(3) < 2 or not all(part.passed for part in builder.inputs)
    recipe = draw_tensor(
        builder.choices, tuple(base.object.shape), base.object.dtype, extreme_values=builder.extreme_values
    )
    optional = builder.input(recipe, default="None", passed=is_passed)
    builder.features.add("optional-input")
    text = f"{base.name} if {optional.name} is None else {base.name} + {optional.name}"
    operands = [base, optional] if is_passed else [base]
    return builder.append(text, operands, lambda objects: sum(objects[1:], objects[0]))


def tie_weights(builder: ProgramBuilder) -> bool:
    """Make a layer like an earlier one, with the same weight, and call it."""
    layers = [
        submodule for submodule in builder.modules if submodule.form and isinstance(_weight(submodule), nn.Parameter)
    ]
    if not layers:
        return False
    submodule = builder.choices.recent(layers)
    value = builder.operand(submodule.operation.operands[0], [])
    form = submodule.form
    if value is None or form is None or len(submodule.operation.operands) > 1 or not builder.write(form, [value]):
        return False
    twin = builder.modules[-1]
    if _weight(twin).shape != _weight(submodule).shape:
        return False
    setattr(twin.module, "weight", _weight(submodule))  # noqa: B010
    builder.state.append(f"self.{twin.name}.weight = self.{submodule.name}.weight")
    builder.features.add("tied-weights")
    return True


def _weight(submodule: Submodule) -> Any:
    return getattr(submodule.module, "weight", None)


def nest(builder: ProgramBuilder, step: Callable[[ProgramBuilder], object]) -> bool:
    """Define a module of up to four lines, and call it."""
    if builder.inner:
        return False
    value = builder.operand(VECTORS, [])
    if value is None:
        return False
    outer = value.object
    name = f"Block{len(builder.nested)}"
    inner = ProgramBuilder(
        builder.choices, name, builder.extreme_values, inner=True, features=builder.features, imports=builder.imports
    )
    inner.constants, inner.no_side_effects = builder.constants, builder.no_side_effects
    inner.keeps_state = builder.keeps_state
    inner.noted = builder.noted
    inner.values.append(Value("x", outer.clone()))
    for _ in range(4):
        step(inner)
    result = [value for value in inner.values if value.traced and isinstance(value.object, torch.Tensor)][-1]
    if not inner.lines:
        return False
    attribute = f"block{next(builder.numbers)}"
    builder.nested.append(inner)
    inner.result = result
    builder.state.append(f"self.{attribute} = {name}()")
    builder.features.add("nested-module")
    tags = frozenset({"nested-module"}).union(*(line.tags & {"in-place", "random"} for line in inner.lines))
    submodule = Submodule(attribute, lambda x: inner.replay(x, result), Production(("nn.Module",), (FLOAT,), (), tags))
    builder.modules.append(submodule)
    return builder.call(submodule, [value])


def follow(builder: ProgramBuilder, chain: Chain) -> bool:
    """Write operations in a row, sometimes not all of them.

    Each reads the result of the one before it, or sometimes the first operand of the chain. Its further operands are
    often other values of the chain: ``x * rsqrt(mean(x))``.
    """
    values: list[Value] = []
    for remaining, alternatives in zip(range(len(chain) - 1, -1, -1), chain, strict=True):
        if not values and remaining and not builder.choices.mostly(16):
            continue
        if values and not builder.choices.mostly(8):
            break
        step = functools.partial(_write_choice, builder, alternatives, chain, values)
        if any(builder.attempt(step) for _ in range(TRIES)):
            line = builder.lines[-1]
            results = made(line.targets)[::-1] or (builder.values[-1:] if line.targets is not None else [])
            values = [*(values or line.operands[:1]), *results]
    return bool(values)


def _start(builder: ProgramBuilder, chain: Chain) -> Value | None:
    """Return a value that all operations of a chain could start from, if there is one or can be made."""
    operands = [alternatives[0].row.operands[0] for alternatives in chain if alternatives[0].row.operands]
    suitable = [value for value in builder.values if all(operand.fits(value.object, []) for operand in operands)]
    if suitable or len(operands) < 2:
        return builder.choices.recent(suitable) if suitable else None
    hardest = min(operands, key=lambda operand: sum(operand.fits(value.object, []) for value in builder.values))
    return builder.operand(hardest, [])


def _write_choice(
    builder: ProgramBuilder, alternatives: Sequence[SpelledRow], chain: Chain, values: list[Value]
) -> bool:
    """Write one of the choices, sometimes as another call of a module that an earlier one has made."""
    first = values[0 if builder.choices.sometimes(6) else -1] if values else _start(builder, chain)
    fitting = [
        choice
        for choice in alternatives
        if first is not None and choice.row.operands and choice.row.operands[0].fits(first.object, [])
    ]
    choice = builder.choices.pick(fitting or alternatives)
    called = [submodule for submodule in builder.modules if submodule.operation is choice.row]
    if called and builder.choices.sometimes(3):
        return _call_again(builder, builder.choices.recent(called), first)
    return write(builder, choice.row, choice.spelling, [] if first is None else [first], values)


def write(
    builder: ProgramBuilder, row: Production, spelling: str, first: Sequence[Value] = (), others: Sequence[Value] = ()
) -> bool:
    """Write a row; of a formula, mostly a sibling instead of it, or beside it on the same values."""
    kinds = siblings(row, spelling) if row.tags >= FORMULA else ()
    kind = builder.choices.below(6) if kinds else 0
    if kind == 0:
        return builder.perform(row, spelling, first, others)
    sibling = builder.choices.pick(builder.choices.pick(kinds))
    if kind < 5:
        return builder.perform(sibling, None, first, others)
    done = builder.perform(row, spelling, first, others)
    if done:
        builder.attempt(functools.partial(builder.perform, sibling, None, builder.lines[-1].operands))
    return done
