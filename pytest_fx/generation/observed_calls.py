"""A call of a row on new operands, and what it shows of the operator: writes, shared memory, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import torch

from pytest_fx.generation.productions import Choices, Operand, Production, SeededChoices, compiled
from pytest_fx.generation.tensor_expressions import draw_tensor


@dataclass(slots=True)
class _Scratch:
    """What rows see of a program that has nothing in it yet."""

    choices: Choices
    """Decides."""
    constants: tuple[float | str, ...] = ()
    """Nothing is asked for."""
    sizes: Sequence[int] = ()
    """There is no latest value."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call showed."""

    tags: frozenset[str]
    """``"in-place"``, ``"view"`` and ``"random"``, where it did so."""
    form: str
    """How the result becomes one that programs hold."""


def call_row(row: Production, operands: tuple[Operand, ...], seed: int) -> Outcome | str:
    """Call a row once; return what it showed, or the type of a result that programs cannot hold."""
    drawing = _Scratch(SeededChoices(Random(seed)))
    objects: list[Any] = []
    for operand in operands:
        wanted = operand.new_tensor(drawing, objects)
        assert wanted is not None
        recipe = draw_tensor(drawing.choices, wanted.shape, wanted.dtype, limit=wanted.limit)
        objects.append(eval(recipe.text, {"torch": torch}))
    drawing.sizes = objects[0].shape if objects else (2, 3)
    options = {argument.name: argument.draw(drawing, objects) for argument in row.arguments}
    run = compiled(row.spellings[0], row.imports)
    if row.call:
        module = run([], options).eval()
        run, options = compiled(row.call), {"module": module}
    torch.default_generator.manual_seed(0)
    result = run(objects, options)
    form = _form_of_result(result)
    if form is None:
        return type(result).__name__
    written = [place for place, value in enumerate(objects) if value._version]
    if any(written):
        raise NotImplementedError("writes to another operand than the first")
    tags = {"in-place"} if written else set[str]()
    if not written:
        shares = _memory(result) & _memory(objects)
        torch.default_generator.manual_seed(1)
        again = run(objects, options)
        tags |= {"view"} if shares else set()
        tags |= set() if _equal(result, again) else {"random"}
    return Outcome(frozenset(tags), form)


def _form_of_result(result: Any) -> str | None:
    """Return what has to be done with a result for a program to hold it; None where that is not possible."""
    if isinstance(result, tuple | list):
        parts = [_form_of_result(part) for part in cast("Sequence[Any]", result)]
        if not parts or None in parts:
            return None
        return "{}" if set(parts) == {"{}"} else cast("str", parts[0]).format("{}[0]")
    if not isinstance(result, torch.Tensor) or result.is_nested:
        return None
    if result.is_complex():
        return "torch.view_as_real({})"
    if result.is_quantized:
        return "{}.dequantize()"
    return "{}" if result.layout is torch.strided else "{}.to_dense()"


def _memory(value: Any) -> set[int]:
    if isinstance(value, tuple | list):
        return {memory for part in cast("Sequence[Any]", value) for memory in _memory(part)}
    is_strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return {value.untyped_storage().data_ptr()} - {0} if is_strided else set()


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list):
        return all(map(_equal, cast("Sequence[Any]", one), other))
    if not isinstance(one, torch.Tensor) or one.layout is not torch.strided or one.is_quantized:
        return True
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
