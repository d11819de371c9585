"""Heat maps of errors: a small grid of levels, which fits on a page whatever the size of the tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

MOST_ROWS, MOST_COLUMNS = 32, 64
"""Largest number of rows and of columns of cells in a heat map."""
LEVELS = 9
"""Number of levels of cells with wrong elements, by the logarithm of the largest error in a cell."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The places and sizes of errors in a tensor: the largest error in each part of it.

    >>> errors = torch.tensor([[0.0, 1.0], [0.1, 10.0]])
    >>> HeatMap.of(errors, errors > 0.05).cells
    ('05', '19')
    """

    shape: tuple[int, ...]
    """The shape of the tensor."""
    down: tuple[int, ...]
    """Sizes of its first dimensions, which run down the map; the others run across."""
    cells: tuple[str, ...]
    """A string for each row with a digit for each cell: 0 where nothing is wrong, or the level of its largest error."""
    smallest: float
    """The error that level 1 begins at."""
    largest: float
    """The largest error, which has the highest level; infinite if a NaN or infinity is on one side only."""

    @classmethod
    def of(cls, errors: torch.Tensor, wrong: torch.Tensor) -> HeatMap:
        """Return the map of ``errors``, counting only elements that are ``wrong``."""
        shape = tuple(errors.shape)
        split = _split(shape)
        grid = errors.detach().to(torch.float64).masked_fill(~wrong, 0.0)
        height, width = math.prod(shape[:split]), math.prod(shape[split:])
        size = min(height, MOST_ROWS), min(width, MOST_COLUMNS)
        if 0 in size:
            return cls(shape, shape[:split], (), 0.0, 0.0)
        pooled = torch.nn.functional.adaptive_max_pool2d(grid.reshape(1, 1, height, width), size)[0, 0]
        rows: list[list[float]] = pooled.tolist()
        finite_errors = [error for row in rows for error in row if 0.0 < error < math.inf]
        smallest, largest = min(finite_errors, default=math.inf), max(finite_errors, default=math.inf)
        cells = tuple("".join(str(_level(error, smallest, largest)) for error in row) for row in rows)
        return cls(shape, shape[:split], cells, smallest, max(map(max, rows)))


def _split(shape: Sequence[int]) -> int:
    """Return how many dimensions run down so that the map is nearest to a square; none if there is only one."""
    sizes = range(1, len(shape))
    return min(
        sizes,
        key=lambda split: abs(math.log((math.prod(shape[:split]) or 1) / (math.prod(shape[split:]) or 1))),
        default=0,
    )


def _level(error: float, smallest: float, largest: float) -> int:
    if error == 0.0:
        return 0
    if error >= largest:
        return LEVELS
    return 1 + round((LEVELS - 1) * math.log(error / smallest) / math.log(largest / smallest))
