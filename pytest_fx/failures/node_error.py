"""What each node of a transformed program makes of its inputs, beside the original."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fx.provenance import SourceLocation
from pytest_fx.harness.equality import Difference, Leaf
from pytest_fx.harness.heat_map import HeatMap

Limit = Callable[[Leaf, float], torch.Tensor]
"""From a value beside its reference, and eager's own largest error there, to the error that each element may have."""


def any_error(leaf: Leaf, eager: float) -> torch.Tensor:
    """A limit for passes that promise a ratio for the whole program, and so none for a node but to stay finite."""
    return torch.full_like(leaf.errors, torch.finfo(leaf.errors.dtype).max)


@dataclass(frozen=True, slots=True)
class NodeError:
    """What one node of the transformed program makes of its inputs."""

    node: str
    """The node as printed."""
    original: str
    """Name of the node of the original whose value it should have."""
    origins: frozenset[str]
    """Names of all nodes of the original whose work it does."""
    where: SourceLocation | None
    """The user's line that the node comes from."""
    inherited: float
    """Largest change of its value that wrong inputs cause; 0 where all inputs are right."""
    made: float
    """Largest error of its value when it is given the right inputs."""
    eager: float | None
    """Largest error that eager makes there in the working dtype, given the right inputs; None if that is not known."""
    scale: float
    """Largest magnitude of the value."""
    difference: Difference | None = None
    """The worst element, where the error that the node adds is larger than allowed."""
    heat_map: HeatMap | None = None
    """Where in the tensor of that element errors are larger than allowed."""
    ulps: int | None = None
    """The error that the node adds at its largest, in steps of the value's dtype; None for integers and NaNs."""
    in_float64: bool = False
    """Whether values are those that both programs have when they are run in float64, whatever dtype they are in."""
    mismatch: str | None = None
    """Why the values cannot be compared at all: another structure, shape or dtype, or the node raises."""
    excused: bool = False
    """Whether what goes wrong here does no harm: the value is right, or only right values are computed of it."""

    @property
    def wrong(self) -> bool:
        """Return whether more goes wrong here than is allowed."""
        return not self.excused and (self.difference is not None or self.mismatch is not None)

    def __str__(self) -> str:
        lines = [self.node]
        if self.where is not None:
            lines.append(f"  where  {self.where}")
        if self.mismatch is not None:
            lines.append(f"  why    {self.mismatch}")
            return "\n".join(lines)
        found = self.difference
        if found is not None:
            place = f"{self.original}{found.path}{found.element}"
            lines.append(f"  value  {place} is {found.expected!r} in the original, {found.actual!r} here")
            extent = f"{found.extent}: {found.steps}".removesuffix(": ")
            if self.in_float64:
                extent = f"{found.count_wrong}, both in float64"
            lines.append(f"         {extent}")
        if found is not None and found.sqnr_db is None:  # integers have no error that could be more or less
            return "\n".join(lines)
        own = "" if self.eager is None else f", rounding {self.eager:.2g}"
        lines.append(f"  error  added by this node {self.made:.2g}, by its inputs {self.inherited:.2g}{own}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Localization:
    """The errors of all nodes that could be compared, in the order of the transformed program."""

    errors: tuple[NodeError, ...]
    """One entry for each node that stands for one of the original."""

    @property
    def first_wrong(self) -> NodeError | None:
        """The first node that makes an error of its own; what is wrong behind it may be its doing."""
        return next((error for error in self.errors if error.wrong), None)

    @property
    def largest(self) -> NodeError | None:
        """The node that makes the largest finite error for the size of its value."""
        finite = (error for error in self.errors if math.isfinite(error.made))
        return max(finite, key=lambda error: error.made / (error.scale or 1.0), default=None)
