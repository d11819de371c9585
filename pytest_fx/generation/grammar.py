"""The families of rows, with how often each is chosen."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

from pytest_fx.generation.elementwise_rows import DTYPES, ELEMENTS, LOSSES, PAIRS, SCALARS
from pytest_fx.generation.formula_rows import FORMULAS
from pytest_fx.generation.layer_rows import DENSE, FUNCTIONAL, MODULES, NORMS, POOLS
from pytest_fx.generation.operator_productions import productions_of_others
from pytest_fx.generation.productions import Production
from pytest_fx.generation.shape_rows import JOINS, PRODUCTS, REDUCTIONS, SIZES, VIEWS
from pytest_fx.generation.state_rows import CHECKS, RANDOMS, STATES, WRITES


@dataclass(frozen=True, slots=True)
class Weighted:
    """Rows out of which one is chosen by its weight."""

    rows: tuple[Production, ...]
    """The rows; the first one is the simplest."""
    ends: tuple[int, ...]
    """The sums of the weights up to and including each row."""

    def at(self, number: int) -> Production:
        """The row for a number below ``total``."""
        return self.rows[bisect.bisect_right(self.ends, number)]

    @property
    def total(self) -> int:
        """The sum of the weights."""
        return self.ends[-1]


def weighted(rows: list[Production]) -> Weighted:
    """Make a choice of rows."""
    return Weighted(tuple(rows), tuple(itertools.accumulate(row.weight for row in rows)))


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
    "dtypes": (4, weighted(DTYPES)),
}
_known = [row for _, family in FAMILIES.values() for row in family.rows]
FAMILIES["operators"] = (4, weighted(productions_of_others(_known)))
"""All rows: how often a family is chosen, and its rows."""

ROWS = [row for _, family in FAMILIES.values() for row in family.rows]
"""All rows in one list."""
