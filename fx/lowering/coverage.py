"""The coverage of a lowering: the operations that the backend takes, their share of the work, and why others stay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fx.naming.tables import in_bytes
from fx.provenance import SourceLocation


@dataclass(frozen=True, slots=True)
class Placement:
    """The place where one operation runs: a region of the backend, or eager Python."""

    node: str
    """Name of its node in the canonical form of the program."""
    target: str
    """The name of the function, method or module that it calls."""
    region: str | None
    """The region that holds it, or ``None`` if it stays in eager Python."""
    reason: str | None
    """The reason why it stays in eager Python; ``None`` if it does not."""
    flops: int | None
    """Floating-point operations, where shapes are known."""
    where: SourceLocation | None
    """The user's line, if known."""


@dataclass(frozen=True, slots=True)
class CoveredRegion:
    """One region."""

    name: str
    """The submodule that it becomes."""
    nodes: int
    """Operations in it."""
    flops: int | None
    """Floating-point operations, where shapes are known."""
    bytes_in: int | None
    """Bytes that it takes in a run, where shapes are known."""
    bytes_out: int | None
    """Bytes that it returns in a run, where shapes are known."""
    failure: str | None = None
    """The reason why it could not be built and runs in eager Python after all; ``None`` if it was built."""
    note: str | None = None
    """The backend's note on the module that it built (:meth:`fx.lowering.Backend.describe`)."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of a program that a backend takes. Printing it shows the totals, the regions and each refusal."""

    backend: str
    """The name of the backend."""
    placements: tuple[Placement, ...]
    """Every operation but inputs, constants and the output, in program order."""
    parts: tuple[CoveredRegion, ...]
    """The regions, in the order of their first operations."""
    notes: tuple[str, ...] = ()
    """Further notes, such as that the backend is not available on this machine."""

    @property
    def refused(self) -> tuple[Placement, ...]:
        """The operations that stay in eager Python."""
        return tuple(placement for placement in self.placements if placement.region is None)

    @property
    def node_share(self) -> float:
        """The part of the operations that the backend takes, from 0 to 1."""
        return 1 - len(self.refused) / len(self.placements) if self.placements else 0.0

    @property
    def flop_share(self) -> float | None:
        """The part of the floating-point operations that it takes, from 0 to 1; ``None`` if shapes are unknown."""
        if not self.placements or any(placement.flops is None for placement in self.placements):
            return None
        total = sum(placement.flops or 0 for placement in self.placements)
        return sum(placement.flops or 0 for placement in self.placements if placement.region) / total if total else 0.0

    @property
    def boundary_bytes(self) -> int | None:
        """Bytes that cross between regions and eager Python in a run; ``None`` if shapes are unknown."""
        sizes = [size for part in self.parts for size in (part.bytes_in, part.bytes_out)]
        return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)

    def __str__(self) -> str:
        lowered = len(self.placements) - len(self.refused)
        lines = [f"{self.backend} takes {lowered} of {len(self.placements)} operations ({self.node_share:.0%})"]
        if (share := self.flop_share) is not None:
            lines[0] += f", {share:.1%} of the floating-point operations"
        if self.parts and (crossing := self.boundary_bytes) is not None:
            lines[0] += f"; {in_bytes(crossing)} cross the boundary"
        lines += [f"  {_part(part)}" for part in self.parts]
        reasons = Counter((placement.target, placement.reason) for placement in self.refused)
        first = {(placement.target, placement.reason): placement for placement in reversed(self.refused)}
        for (target, reason), count in reasons.items():
            placement = first[target, reason]
            times = f" x{count}" if count > 1 else ""
            place = f" ({placement.where.place})" if placement.where is not None else ""
            lines.append(f"  eager    {target}{times}: {reason}{place}")
        lines += [f"  note     {note}" for note in self.notes]
        return "\n".join(lines)


def _part(part: CoveredRegion) -> str:
    text = f"{part.name:<8} {part.nodes} operation{'s' if part.nodes != 1 else ''}"
    if part.flops is not None:
        text += f", {part.flops / 1e6:,.3g} MFLOP"
    if part.bytes_in is not None and part.bytes_out is not None:
        text += f", {in_bytes(part.bytes_in)} in, {in_bytes(part.bytes_out)} out"
    if part.failure is not None:
        return f"{text}: not built, {part.failure}"
    return text if part.note is None else f"{text}; {part.note}"
