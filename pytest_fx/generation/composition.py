"""Steps that are more than an operation: modules called again or made twice, tied weights, nested modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import nn

from pytest_fx.generation.bias import Chain, SpelledRow
from pytest_fx.generation.grammar import FAMILIES
from pytest_fx.generation.operands import FLOAT, VECTORS
from pytest_fx.generation.productions import Production, compiled
from pytest_fx.generation.siblings import FORMULA, siblings
from pytest_fx.generation.sketch import MOST_INPUTS, Held, Line, Sketch, Value, made
from pytest_fx.generation.tensor_expressions import draw_tensor

WRITTEN = FAMILIES["writes"][1]
"""Writes in place."""


def repeat_line(sketch: Sketch) -> bool:
    """Write an earlier line once more, with the same operands: a common subexpression, a module called twice.

    Now and then one of its constants is another.
    """
    if not sketch.lines:
        return False
    uncommon = [line for line in sketch.lines if line.tags & {"random", "dropout", "in-place"}]
    lines = uncommon if uncommon and sketch.choices.sometimes(2) else sketch.lines
    line = sketch.choices.recent(lines)
    if line.form is not None and line.form.arguments and sketch.choices.sometimes(2):
        return sketch.write(sketch.vary(line.form, line.operands), line.operands)
    return _write_again(sketch, line)


def write_between(sketch: Sketch) -> bool:
    """Write an earlier line once more after a write to what it reads."""
    lines = [line for line in sketch.lines if line.operands and FLOAT.fits(line.operands[0].object, [])]
    if not lines:
        return False
    line: Line = sketch.choices.recent(lines)
    write = WRITTEN.at(sketch.choices.below(WRITTEN.total))
    return sketch.perform(write, None, line.operands[:1]) and _write_again(sketch, line)


def _write_again(sketch: Sketch, line: Line) -> bool:
    if line.text.startswith("self."):
        sketch.features.add("shared-module")
    return sketch.append(line.text, line.operands, line.run, line.tags, line.targets is None)


def call_again(sketch: Sketch) -> bool:
    """Call an earlier module, on any value that fits, now and then on the same one."""
    if not sketch.modules:
        return False
    held = sketch.choices.recent(sketch.modules)
    return _call_again(sketch, held, held.calls[-1][0] if held.calls and sketch.choices.sometimes(3) else None)


def _call_again(sketch: Sketch, held: Held, value: Value | None) -> bool:
    operand = held.operation.operands[0]
    if value is None or not operand.fits(value.object, []):
        value = sketch.operand(operand, [])
    if value is None:
        return False
    sketch.features.add("shared-module")
    return sketch.call(held, [value])


def make_sibling(sketch: Sketch) -> bool:
    """Make a layer like an earlier one, call it on the same value, and most often combine both results.

    Its settings are the same, all but one, or its own.
    """
    layers = [held for held in sketch.modules if "layer" in held.operation.tags and held.calls]
    if not layers:
        return False
    like = sketch.choices.recent(layers)
    given, one = like.calls[0]
    kind = sketch.choices.below(6)
    if kind == 5 or like.form is None:
        return sketch.perform(like.operation, None, [given])
    if not sketch.write(like.form if kind < 3 else sketch.vary(like.form, [given]), [given]):
        return False
    sketch.features.add("parallel-layers")
    other = sketch.values[-1]
    if sketch.choices.mostly(4):
        sketch.attempt(functools.partial(_combine, sketch, one, other))
    return True


def _combine(sketch: Sketch, one: Value, other: Value) -> bool:
    form = sketch.choices.pick(("{0} + {1}", "{0} * {1}.sigmoid()", "torch.cat([{0}, {1}], dim=-1)"))
    function = compiled(form)
    return sketch.append(form.format(one.name, other.name), [one, other], lambda objects: function(objects, {}))


def read_optional(sketch: Sketch) -> bool:
    """Add an input that may be None, and use it where it is not."""
    if sketch.inner or len(sketch.inputs) >= MOST_INPUTS:
        return False
    base = sketch.operand(FLOAT, [])
    if base is None:
        return False
    is_passed = sketch.choices.below(3) < 2 or not all(part.passed for part in sketch.inputs)
    recipe = draw_tensor(sketch.choices, tuple(base.object.shape), base.object.dtype, hostile=sketch.hostile)
    given = sketch.input(recipe, default="None", passed=is_passed)
    sketch.features.add("optional-input")
    text = f"{base.name} if {given.name} is None else {base.name} + {given.name}"
    operands = [base, given] if is_passed else [base]
    return sketch.append(text, operands, lambda objects: sum(objects[1:], objects[0]))


def tie_weights(sketch: Sketch) -> bool:
    """Make a layer like an earlier one, with the same weight, and call it."""
    linear = [held for held in sketch.modules if isinstance(held.module, nn.Linear)]
    if not linear:
        return False
    held = sketch.choices.recent(linear)
    layer = held.module
    assert isinstance(layer, nn.Linear)
    value = sketch.operand(held.operation.operands[0], [])
    if value is None or value.object.shape[-1:] != (layer.in_features,):
        return False
    twin = nn.Linear(layer.in_features, layer.out_features, dtype=layer.weight.dtype)
    twin.weight = layer.weight
    name = f"tied{next(sketch.numbers)}"
    suffix = "" if layer.weight.dtype is torch.float32 else f", dtype={layer.weight.dtype}"
    made = f"nn.Linear({layer.in_features}, {layer.out_features}{suffix})"
    done = sketch.hold(Held(name, twin, held.operation, made), [value])
    sketch.state.append(f"self.{name}.weight = self.{held.name}.weight")
    sketch.features.add("tied-weights")
    return done


def nest(sketch: Sketch, step: Callable[[Sketch], object]) -> bool:
    """Define a module of up to four lines, and call it."""
    if sketch.inner:
        return False
    given = sketch.operand(VECTORS, [])
    if given is None:
        return False
    outer = given.object
    name = f"Block{len(sketch.nested)}"
    inner = Sketch(sketch.choices, name, sketch.hostile, inner=True, features=sketch.features, imports=sketch.imports)
    inner.constants, inner.calm = sketch.constants, sketch.calm
    inner.values.append(Value("x", outer.clone()))
    for _ in range(4):
        step(inner)
    result = [value for value in inner.values if value.traced and isinstance(value.object, torch.Tensor)][-1]
    if not inner.lines:
        return False
    attribute = f"block{next(sketch.numbers)}"
    sketch.nested.append(inner)
    inner.result = result
    sketch.state.append(f"self.{attribute} = {name}()")
    sketch.features.add("nested-module")
    tags = frozenset({"nested-module"}).union(*(line.tags & {"in-place", "random"} for line in inner.lines))
    held = Held(attribute, lambda x: inner.replay(x, result), Production(("nn.Module",), (FLOAT,), (), tags))
    sketch.modules.append(held)
    return sketch.call(held, [given])


def follow(sketch: Sketch, chain: Chain) -> bool:
    """Write operations one after the other, now and then not all of them.

    Each is on the result of the one before it, or now and then on what the first one read; where it takes more, these
    are often other values of the chain: ``x * rsqrt(mean(x))``.
    """
    values: list[Value] = []
    for left, alternatives in zip(range(len(chain) - 1, -1, -1), chain, strict=True):
        if not values and left and not sketch.choices.mostly(16):
            continue
        if values and not sketch.choices.mostly(8):
            break
        if sketch.attempt(functools.partial(_write_one, sketch, alternatives, chain, values)):
            line = sketch.lines[-1]
            values = [*(values or line.operands[:1]), *(made(line.targets)[:1] or sketch.values[-1:])]
    return bool(values)


def _takes(choice: SpelledRow, value: Value) -> bool:
    return bool(choice.row.operands) and choice.row.operands[0].fits(value.object, [])


def _start(sketch: Sketch, chain: Chain) -> Value | None:
    """A value that all operations of a chain could begin with, if there is one or can be made."""
    operands = [alternatives[0].row.operands[0] for alternatives in chain if alternatives[0].row.operands]
    suitable = [value for value in sketch.values if all(operand.fits(value.object, []) for operand in operands)]
    if suitable or len(operands) < 2:
        return sketch.choices.recent(suitable) if suitable else None
    hardest = min(operands, key=lambda operand: sum(operand.fits(value.object, []) for value in sketch.values))
    return sketch.operand(hardest, [])


def _write_one(sketch: Sketch, alternatives: Sequence[SpelledRow], chain: Chain, values: list[Value]) -> bool:
    """Do what one of the choices says, now and then by calling a module once more that an earlier one has made."""
    first = values[0 if sketch.choices.sometimes(6) else -1] if values else _start(sketch, chain)
    fitting = [choice for choice in alternatives if first is not None and _takes(choice, first)]
    choice = sketch.choices.pick(fitting or alternatives)
    called = [held for held in sketch.modules if held.operation is choice.row]
    if called and sketch.choices.sometimes(3):
        return _call_again(sketch, sketch.choices.recent(called), first)
    return write(sketch, choice.row, choice.spelling, [] if first is None else [first], values)


def write(
    sketch: Sketch, row: Production, spelling: str, first: Sequence[Value] = (), others: Sequence[Value] = ()
) -> bool:
    """Do what a row says; in place of a formula, or beside it on the same values, mostly write a sibling of it."""
    kinds = siblings(row, spelling) if row.tags >= FORMULA else ()
    kind = sketch.choices.below(6) if kinds else 0
    if kind == 0:
        return sketch.perform(row, spelling, first, others)
    sibling = sketch.choices.pick(sketch.choices.pick(kinds))
    if kind < 5:
        return sketch.perform(sibling, None, first, others)
    done = sketch.perform(row, spelling, first, others)
    if done:
        sketch.attempt(functools.partial(sketch.perform, sibling, None, sketch.lines[-1].operands))
    return done
