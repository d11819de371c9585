"""The table of operators: each operator once, with its spellings, its family, and facts about its result.

Ranks, layers, fusing, folding, aliases, quantization, lowering, the matcher and the generator read it, so they all know
an operator once it has a row here. Schemas declare the writes of operators and the memory of their results
(:mod:`fx.operators.effects`, :mod:`fx.operators.sharing`); the table has the facts that schemas lack. Operators without
special treatment anywhere have no row. The rows are in :mod:`fx.operators.operator_rows`, the columns in
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
"""Methods that convert to a dtype; they may return the tensor itself if it has that dtype."""

_table: list[Operator] = []
_pure: dict[Any, Operator] = {}
_in_place: dict[Any, Operator] = {}


def register_operator(row: Operator) -> Operator:
    """Add an operator to the table and return it.

    If it is not a function of torch, its effects still have to be declared with :func:`fx.register_effect`. An engine
    that can compute it needs a converter.

    Raises:
        ValueError: one of its spellings belongs to another operator.
    """
    duplicates = [(spelling, _pure[spelling]) for spelling in row.spellings if spelling in _pure]
    if duplicates:
        spelling, other = duplicates[0]
        raise ValueError(f"{spelling!r} is a spelling of the operator {other.function!r}, too")
    _table.append(row)
    _pure.update(dict.fromkeys(row.spellings, row))
    _in_place.update(dict.fromkeys(row.in_place_spellings, row))
    return row


for _row in ROWS:
    register_operator(_row)


def find_operator(target: Any) -> Operator | None:
    """Return the operator of ``target``, a function, a module class or the name of a method, or None."""
    try:
        return _pure.get(target)
    except TypeError:  # unhashable, as a callable object may be
        return None


def find_in_place(target: Any) -> Operator | None:
    """Return the operator that ``target``, a function or the name of a method, computes in place, or None."""
    try:
        return _in_place.get(target)
    except TypeError:
        return None


def operators(*families: Family) -> Iterator[Operator]:
    """Return the rows of these families, or all rows, in the order of the table."""
    return (row for row in _table if not families or row.family in families)


def is_one_of(target: Any, *families: Family) -> bool:
    """Return whether ``target``, a function, a module class or a method's name, is an operator of these families."""
    row = find_operator(target)
    return row is not None and row.family in families
