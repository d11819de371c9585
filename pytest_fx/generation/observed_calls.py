"""A call of a row on new operands, and the properties that it shows: writes, shared memory, random numbers."""

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
    """The view of rows on an empty program."""

    choices: Choices
    """The source of decisions."""
    constants: tuple[float | str, ...] = ()
    """Empty: no arguments are asked for."""
    sizes: Sequence[int] = ()
    """The sizes of the latest value; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The properties that a call showed."""

    tags: frozenset[str]
    """``"in-place"``, ``"view"`` and ``"random"``, if they apply."""
    form: str
    """The expression that turns the result into one that programs hold."""


def call_row(row: Production, operands: tuple[Operand, ...], seed: int) -> Outcome | str:
    """Call a row once; return its outcome, or the type of a result that programs cannot hold."""
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
    """Return an expression that turns a result into one that programs hold; None if that is impossible."""
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


def _equal(result: Any, other: Any) -> bool:
    if isinstance(result, tuple | list):
        return all(map(_equal, cast("Sequence[Any]", result), other))
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided or result.is_quantized:
        return True
    return result.shape == other.shape and torch.equal(result.nan_to_num(), other.nan_to_num())
