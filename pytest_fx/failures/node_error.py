"""The error that each node of a transformed program adds to that of its inputs, beside the original."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fx.provenance import SourceLocation
from pytest_fx.harness.equality import Difference, Leaf
from pytest_fx.harness.heat_map import HeatMap

Limit = Callable[[Leaf, float], torch.Tensor]
"""From a value beside its reference, and eager's own largest error there, to the error allowed for each element."""


def any_error(leaf: Leaf, eager: float) -> torch.Tensor:
    """Return a limit that any finite error meets: a ratio for the whole program bounds no single node."""
    return torch.full_like(leaf.errors, torch.finfo(leaf.errors.dtype).max)


@dataclass(frozen=True, slots=True)
class NodeError:
    """The error of one node of the transformed program: the part that its inputs cause, and the part that it adds."""

    node: str
    """The node as printed."""
    original: str
    """Name of the node of the original whose value it should have."""
    origins: frozenset[str]
    """Names of all nodes of the original whose work it does."""
    where: SourceLocation | None
    """The user's line that the node comes from."""
    inherited: float
    """Largest change of its value caused by wrong inputs; 0 if all inputs are right."""
    made: float
    """Largest error of its value on the right inputs."""
    eager: float | None
    """Largest error that eager makes there in the working dtype, on the right inputs; None if it is unknown."""
    scale: float
    """Largest magnitude of the value."""
    difference: Difference | None = None
    """The worst element, if the error that the node adds exceeds the limit."""
    heat_map: HeatMap | None = None
    """The places in the tensor of that element where errors exceed the limit."""
    ulps: int | None = None
    """The largest error that the node adds, in steps of the value's dtype; None for integers and NaNs."""
    in_float64: bool = False
    """True if the values are from a run of both programs in float64, whatever their own dtype."""
    mismatch: str | None = None
    """The reason why the values cannot be compared: another structure, shape or dtype, or the node raises."""
    excused: bool = False
    """True if the error does no harm: the value is right, or only right values are computed from it."""

    @property
    def wrong(self) -> bool:
        """Return whether the node is to blame: its error exceeds the limit, or cannot be measured, and does harm."""
        return not self.excused and (self.difference is not None or self.mismatch is not None)

    def __str__(self) -> str:
        lines = [self.node]
        if self.where is not None:
            lines.append(f"  where  {self.where}")
        if self.mismatch is not None:
            lines.append(f"  why    {self.mismatch}")
            return "\n".join(lines)
        worst = self.difference
        if worst is not None:
            place = f"{self.original}{worst.path}{worst.element}"
            lines.append(f"  value  {place} is {worst.expected!r} in the original, {worst.actual!r} here")
            extent = f"{worst.extent}: {worst.steps}".removesuffix(": ")
            if self.in_float64:
                extent = f"{worst.count_wrong}, both in float64"
            lines.append(f"         {extent}")
        if worst is not None and worst.sqnr_db is None:  # an error of integers has no size
            return "\n".join(lines)
        own = "" if self.eager is None else f", rounding {self.eager:.2g}"
        lines.append(f"  error  added by this node {self.made:.2g}, by its inputs {self.inherited:.2g}{own}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Localization:
    """The errors of all nodes that could be compared, in the order of the transformed program."""

    errors: tuple[NodeError, ...]
    """One entry for each node that matches one of the original."""

    @property
    def first_wrong(self) -> NodeError | None:
        """The first node that adds an error of its own; later errors may follow from it."""
        return next((error for error in self.errors if error.wrong), None)

    @property
    def largest(self) -> NodeError | None:
        """The node that adds the largest finite error, relative to its value."""
        finite = (error for error in self.errors if math.isfinite(error.made))
        return max(finite, key=lambda error: error.made / (error.scale or 1.0), default=None)
