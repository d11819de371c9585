"""Steps that are more than an operation: repeated lines, modules called again, tied weights, nested modules."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

from .bias import Chain
from .operands import FLOAT, VECTORS
from .operations import Operation
from .sketch import Held, Line, Sketch, Value


def repeat_line(sketch: Sketch) -> bool:
    """Write an earlier line once more, with the same operands: a common subexpression, a module called twice."""
    if not sketch.lines:
        return False
    line: Line = sketch.choices.recent(sketch.lines)
    if line.text.startswith("self."):
        sketch.features.add("shared-module")
    return sketch.append(line.text, line.operands, line.run, line.tags, line.targets is None)


def call_again(sketch: Sketch) -> bool:
    """Call an earlier module, on another value where one fits."""
    if not sketch.modules:
        return False
    held = sketch.choices.recent(sketch.modules)
    value = sketch.operand(held.operation.operands[0], [])
    if value is None:
        return False
    sketch.features.add("shared-module")
    return sketch.call(held, [value])


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
    sketch.state.append(f"self.{name} = nn.Linear({layer.in_features}, {layer.out_features}{suffix})")
    sketch.state.append(f"self.{name}.weight = self.{held.name}.weight")
    sketch.features.add("tied-weights")
    again = Held(name, twin, held.operation)
    sketch.modules.append(again)
    return sketch.call(again, [value])


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
    held = Held(attribute, lambda x: inner.replay(x, result), Operation(("nn.Module",), (FLOAT,), (), tags))
    sketch.modules.append(held)
    return sketch.call(held, [given])


def follow(sketch: Sketch, chain: Chain) -> bool:
    """Write operations one after the other, each on the result of the one before it."""
    first: Value | None = None
    for alternatives in chain:
        if first is not None and not sketch.choices.mostly(8):
            break
        choice = sketch.choices.pick(alternatives)
        if not sketch.attempt(functools.partial(sketch.perform, choice.row, choice.spelling, first)):
            break
        first = sketch.values[-1]
    return first is not None
