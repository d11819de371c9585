"""Appearance: colours, sizes and the lines of text in the box of a node. Drawings can be read without colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fx.drawing.clusters import Cluster
from fx.drawing.drawn_program import DrawnNode
from fx.drawing.placement import Size
from fx.naming.tables import ending, in_bytes, in_seconds, in_units

FILLS = {
    "placeholder": "#d6e6f5",
    "get_attr": "#ececec",
    "call_function": "#e2f0d9",
    "call_method": "#fff2cc",
    "call_module": "#e8dff5",
    "output": "#f8dcd9",
}
"""The fill of nodes by opcode."""
STROKES = {"removed": "#c0392b", "added": "#1e8449", "changed": "#b9770e", "moved": "#2471a3"}
"""The frame of nodes by the edit of a pass."""
CHARACTER, LINE, MARGIN = 6.1, 13.0, 8.0
"""Width of a character at 10 points, height of a line, and room around text."""
_SCALE = ((255, 247, 236), (253, 187, 132), (239, 101, 72))
_LONGEST_TITLE = 34


@dataclass(frozen=True, slots=True)
class Figure:
    """A number for each node, which colours it."""

    name: str
    """Its name: ``"time"``."""
    unit: str
    """Its unit: ``"s"``, ``"FLOP"``, ``"B"``; empty for a number alone."""
    values: Mapping[str, float]
    """The numbers, by the names of nodes; nodes may be missing."""

    def written(self, value: float) -> str:
        """Return a number with its unit.

        >>> Figure("time", "s", {}).written(0.00025)
        '250 µs'
        """
        if self.unit == "s":
            return in_seconds(value) if value else "0 s"
        if self.unit == "B":
            return in_bytes(value)
        if self.unit:
            return in_units(value, self.unit)
        return f"{value:.3g}"

    @property
    def is_logarithmic(self) -> bool:
        """True if colours are on a logarithmic scale: if the largest number is at least 1000 times the smallest."""
        positive = [value for value in self.values.values() if value > 0 and math.isfinite(value)]
        return bool(positive) and max(positive) >= 1000 * min(positive)

    def fills(self) -> dict[str, str]:
        """Return the fill of each node with a number: from pale, the least, to red, the most."""
        return {name: scaled(share) for name, share in self.shares().items()}

    def shares(self) -> dict[str, float]:
        """Return the number of each node on a scale from the least, 0, to the most, 1."""
        finite = [value for value in self.values.values() if math.isfinite(value)]
        logarithmic = self.is_logarithmic
        least = min((value for value in finite if value > 0), default=1.0) if logarithmic else 0.0
        most = max(finite, default=0.0)
        return {name: self._share(value, least, most, logarithmic) for name, value in self.values.items()}

    def legend(self) -> list[tuple[str, str]]:
        """Return fills with their meanings: the least, the middle of the scale, and the most."""
        if not self.values:
            return [("#ffffff", f"{self.name}: none")]
        positive = [value for value in self.values.values() if value > 0]
        first = self.written(min(positive) if self.is_logarithmic else 0.0)
        most = max(self.values.values())
        how = f"{self.name}{', logarithmic' if self.is_logarithmic else ''}: {first}"
        return [(scaled(0.0), how), (scaled(0.5), ""), (scaled(1.0), self.written(most))]

    @staticmethod
    def _share(value: float, least: float, most: float, logarithmic: bool) -> float:
        if not math.isfinite(value):
            return 1.0
        if value <= 0 or most <= 0:
            return 0.0
        if logarithmic:
            return math.log(value / least) / math.log(most / least) if most > least else 1.0
        return value / most


def scaled(share: float) -> str:
    """Return the colour of a share between 0 and 1."""
    place = min(max(share, 0.0), 1.0) * 2
    start, end = (_SCALE[0], _SCALE[1]) if place <= 1 else (_SCALE[1], _SCALE[2])
    part = place if place <= 1 else place - 1
    return "#" + "".join(f"{round(low + (high - low) * part):02x}" for low, high in zip(start, end, strict=True))


@dataclass(frozen=True, slots=True)
class Labels:
    """The choice of text in the boxes of nodes."""

    shapes: bool = False
    """Sizes and types of values."""
    lines: bool = False
    """The user's file and line."""
    figure: Figure | None = None
    """The figure that colours nodes; its numbers are written, too."""

    def of(self, node: DrawnNode) -> list[str]:
        """Return the lines in the box of a node."""
        title = ending(node.title, _LONGEST_TITLE)
        text = [title] if node.name == node.title else [title, ending(node.name, _LONGEST_TITLE)]
        if self.shapes and node.shape:
            text.append(ending(f"{node.shape} {node.dtype}".rstrip(), _LONGEST_TITLE))
        if self.lines and node.file:
            text.append(ending(node.place, _LONGEST_TITLE))
        if self.figure is not None and node.name in self.figure.values:
            text.append(self.figure.written(self.figure.values[node.name]))
        return text


def box_of(lines: Sequence[str]) -> Size:
    """Return the size of a box with lines of text."""
    return 2 * MARGIN + CHARACTER * max(map(len, lines), default=0), MARGIN + LINE * len(lines)


def title_of(cluster: Cluster) -> str:
    """Return the title at the top of a cluster."""
    if not cluster.number:
        return ""
    path = ending(cluster.path, 40)
    return f"{path}  {cluster.title}" if cluster.title else path
