"""The table of operators: each of them once, with its spellings, its family, and what is known of its result.

Ranks, layers, fusing, folding, aliases, quantization, lowering, the matcher and the generator read it, so that an
operator that is added here is known to all of them. Schemas tell what operators write and what their results share
(:mod:`fx.operators.effects`, :mod:`fx.operators.sharing`); here is what they do not tell. Operators that nobody treats
in a special way have no row. The rows are in :mod:`fx.operators.operator_rows`, the columns in
:mod:`fx.operators.facts`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fx.operators.facts import Family, Operator
from fx.operators.operator_rows import ROWS

CASTS: dict[str, torch.dtype] = {
    "float": torch.float32, "double": torch.float64, "half": torch.float16, "bfloat16": torch.bfloat16,
    "int": torch.int32, "long": torch.int64, "short": torch.int16, "char": torch.int8, "byte": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip
"""Methods that convert to a dtype, which may return the very tensor that has it already."""

_table: list[Operator] = []
_pure: dict[Any, Operator] = {}
_in_place: dict[Any, Operator] = {}


def register_operator(row: Operator) -> Operator:
    """Add an operator to the table and return it.

    What it does besides computing its result is still for :func:`fx.register_effect` to say, if it is not a function of
    torch. An engine that can compute it needs a converter.

    Raises:
        ValueError: one of its spellings is another operator's.
    """
    taken = [(one, _pure[one]) for one in row.spellings if one in _pure]
    if taken:
        spelling, other = taken[0]
        raise ValueError(f"{spelling!r} is a spelling of the operator {other.function!r}, too")
    _table.append(row)
    _pure.update(dict.fromkeys(row.spellings, row))
    _in_place.update(dict.fromkeys(row.in_place_spellings, row))
    return row


for _row in ROWS:
    register_operator(_row)


def find_operator(target: Any) -> Operator | None:
    """The operator that ``target`` computes, a function, a class of modules or the name of a method; else None."""
    try:
        return _pure.get(target)
    except TypeError:  # unhashable, as a callable object may be
        return None


def find_in_place(target: Any) -> Operator | None:
    """The operator whose result a function, or a method of that name, writes over its first operand; else None."""
    try:
        return _in_place.get(target)
    except TypeError:
        return None


def operators(*families: Family) -> Iterator[Operator]:
    """The rows of some families, or all, in the order of the table."""
    return (row for row in _table if not families or row.family in families)


def is_one_of(target: Any, *families: Family) -> bool:
    """Return whether a function, a class of modules, or a method of that name computes an operator of some families."""
    row = find_operator(target)
    return row is not None and row.family in families
