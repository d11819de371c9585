"""Comments of verbose generated code, for ``print_readable``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fx.node import Node


@dataclass
class Comments:
    """Comments of verbose code: the user's line above the nodes that it made, shapes behind them."""

    include_stride: bool
    """Strides beside shapes."""
    include_device: bool
    """Devices beside shapes."""
    colored: bool
    """Terminal colours."""
    additional_meta: tuple[str, ...]
    """Keys of ``meta`` to show."""
    _previous: str | None = None

    def above(self, node: Node) -> str:
        """A comment line where this node's origin differs from the one before it."""
        if node.op in ("placeholder", "output") or node.source is None:
            return ""
        source = node.source
        origin = f"# File: {source.place} in {source.function}, code: {source.text}"
        if origin == self._previous:
            return ""
        self._previous = origin
        return f"\n{self._paint(_one_line(origin), '2')}\n"

    def behind(self, node: Node) -> str:
        """A comment with what is known of the node's value."""
        notes: list[str] = []
        value: Any = node.meta.get("val", node.meta.get("tensor_meta"))
        shape: Any = getattr(value, "shape", None)
        if shape is not None:
            notes.append(f"{getattr(value, 'dtype', '')}{list(shape)}")
            if self.include_stride:
                stride: Any = getattr(value, "stride", ())
                steps: Any = stride() if callable(stride) else stride
                notes.append(f"stride {list(steps)}")
            if self.include_device and hasattr(value, "device"):
                notes.append(f"device {value.device}")
        notes += [f"{key}: {node.meta[key]}" for key in self.additional_meta if key in node.meta]
        return f"  {self._paint(_one_line('# ' + ', '.join(notes)), '34')}" if notes else ""

    def _paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colored else text


def _one_line(comment: str) -> str:
    """A comment that stays one: whatever ends a line in Python source becomes a blank."""
    return " ".join(comment.split("\0", maxsplit=1)[0].splitlines())
