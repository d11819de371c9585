"""The families of rows, and how often each is chosen."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fx.operators.facts import Family, Operator
from fx.operators.families import operators
from fx.operators.python import BY_FUNCTION
from pytest_fx.generation.elementwise_rows import DTYPES, ELEMENTS, LOSSES, PAIRS, SCALARS
from pytest_fx.generation.formula_rows import FORMULAS
from pytest_fx.generation.layer_rows import DENSE, FUNCTIONAL, MODULES, NORMS, POOLS
from pytest_fx.generation.operands import BOOLEAN, FLOAT, IMAGES, MASK, OTHER_FLOAT, SEQUENCES, VOLUMES
from pytest_fx.generation.productions import Operand, Production, spell
from pytest_fx.generation.rare_rows import RARE
from pytest_fx.generation.shape_rows import FACTORIES, JOINS, PRODUCTS, REDUCTIONS, SIZES, VIEWS
from pytest_fx.generation.spelled_targets import path_of, targets_of
from pytest_fx.generation.state_rows import CHECKS, RANDOMS, STATES, WRITES


@dataclass(frozen=True, slots=True)
class Weighted:
    """Rows of which one is chosen by its weight."""

    rows: tuple[Production, ...]
    """The rows; the first one is the simplest."""
    ends: tuple[int, ...]
    """The sums of the weights up to and including each row."""

    def at(self, number: int) -> Production:
        """Return the row for a number below ``total``."""
        return self.rows[bisect.bisect_right(self.ends, number)]

    @property
    def total(self) -> int:
        """The sum of the weights."""
        return self.ends[-1]


def weighted(rows: list[Production]) -> Weighted:
    """Return a weighted choice of rows."""
    return Weighted(tuple(rows), tuple(itertools.accumulate(row.weight for row in rows)))


_OPERANDS: dict[Family, tuple[Operand, ...]] = {
    **dict.fromkeys(("activation", "function"), (FLOAT,)),
    **dict.fromkeys(("arithmetic", "comparison", "extreme"), (FLOAT, OTHER_FLOAT)),
    "logic": (BOOLEAN, MASK),
}
_WINDOWS: dict[Family, tuple[int, ...]] = {"average pooling": (2,), "max pooling": (2,)}
"""Families of windows over images, with the arguments that all of them need; a row says how many dimensions."""
_IMAGES = {1: SEQUENCES, 2: IMAGES, 3: VOLUMES}
_MARGIN = 0.1
"""The least distance of an operand from the ends of its domain, where the function is infinite."""


def productions_of_others(rows: Iterable[Production]) -> list[Production]:
    """Return rows for the elementwise operators and the windows that none of ``rows`` calls."""
    called = {
        target
        for row in rows
        for spelling in (*row.spellings, row.call)
        for target in targets_of(spelling, len(row.operands))
    }
    others = (
        row
        for row in operators(*_OPERANDS, *_WINDOWS)
        if not row.draws and called.isdisjoint((*row.functions, *row.modules, *row.method_names))
    )
    return [production for row in others for production in _productions(row)]


def _productions(row: Operator) -> Iterator[Production]:
    """Yield the function of an operator, and the modules that call it and need no further arguments."""
    operands = _OPERANDS.get(row.family) or (_IMAGES[row.dims or 0],)
    needs = row.needs or _WINDOWS.get(row.family, ())
    texts = [_within(row.domain, f"{{{place}}}") for place in range(len(operands))]
    python, path = BY_FUNCTION.get(row.function), path_of(row.function)
    if python is not None:
        yield Production((python.template.format(*texts),), operands)
    elif path is not None:
        arguments = ", ".join((*texts, *map(spell, needs)))
        yield Production((f"{path[0]}({arguments}{{*}})",), operands, imports=path[1])
    if not needs:
        names = (f"nn.{kind.__name__}" for kind in row.modules if kind.__module__.startswith("torch.nn."))
        yield from (Production((name,), operands) for name in names)


def _within(domain: tuple[float | None, float | None], operand: str) -> str:
    """Return an expression of an operand whose elements lie in a domain."""
    low, high = domain
    if low is None or high is None:
        above = operand if low is None else f"{operand}.abs() + {low + _MARGIN:g}"
        return above if high is None else f"{high - _MARGIN:g} - {operand}.abs()"
    scaled = f"{operand}.sigmoid()" if high - low == 1 else f"{operand}.sigmoid() * {high - low:g}"
    return f"{scaled} {'-' if low < 0 else '+'} {abs(low):g}" if low else scaled


FAMILIES: dict[str, tuple[int, Weighted]] = {
    "elements": (10, weighted(ELEMENTS)),
    "scalars": (7, weighted(SCALARS)),
    "pairs": (12, weighted(PAIRS)),
    "views": (11, weighted(VIEWS)),
    "joins": (5, weighted(JOINS)),
    "reductions": (5, weighted(REDUCTIONS)),
    "products": (5, weighted(PRODUCTS)),
    "dense": (8, weighted(DENSE)),
    "norms": (6, weighted(NORMS)),
    "functional": (3, weighted(FUNCTIONAL)),
    "pools": (3, weighted(POOLS)),
    "modules": (6, weighted(MODULES)),
    "formulas": (4, weighted(FORMULAS)),
    "losses": (1, weighted(LOSSES)),
    "writes": (5, weighted(WRITES)),
    "states": (3, weighted(STATES)),
    "checks": (1, weighted(CHECKS)),
    "randoms": (2, weighted(RANDOMS)),
    "sizes": (3, weighted(SIZES)),
    "factories": (2, weighted(FACTORIES)),
    "dtypes": (4, weighted(DTYPES)),
}
_listed = [row for _, family in FAMILIES.values() for row in family.rows]
FAMILIES["operators"] = (4, weighted(productions_of_others(_listed)))
"""All rows by family: how often the family is chosen, and its rows."""

ROWS = [row for _, family in FAMILIES.values() for row in family.rows]
"""All rows in one list."""
FAMILIES["rare"] = (0, weighted(RARE))  # only in campaigns
