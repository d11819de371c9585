"""Reports for people: sizes and counts with their units, and tables that fit a line of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_WIDTH = 80


def in_bytes(size: float) -> str:
    """Spell a number of bytes in a unit that suits it.

    >>> in_bytes(1536)
    '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def in_units(count: float, unit: str = "") -> str:
    """Spell a count with three digits and a prefix.

    >>> in_units(8_178_892_800, "FLOP")
    '8.18 GFLOP'
    """
    for prefix in ("", "k", "M", "G", "T"):
        if abs(count) < 999.5:
            return f"{count:.3g} {prefix}{unit}".rstrip()
        count /= 1000
    return f"{count:.3g} P{unit}"


def in_seconds(seconds: float) -> str:
    """Spell a time with three digits in a unit that suits it.

    >>> in_seconds(0.0123)
    '12.3 ms'
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]], width: int = _WIDTH) -> list[str]:
    """Return the lines of a table: the first column left-aligned and cut to fit ``width``, the others right-aligned.

    >>> print(*table_lines(["node", "bytes"], [["relu", "4 KiB"]]), sep="\\n")
    node  bytes
    relu  4 KiB
    """
    all_rows = [tuple(header), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*all_rows, strict=True)]
    first = min(widths[0], max(8, width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    names = [ending(row[0], first).ljust(first) for row in all_rows]
    return [
        "  ".join([name, *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for name, row in zip(names, all_rows, strict=True)
    ]


def ending(text: str, width: int) -> str:
    """Return ``text``, or its end, which distinguishes names and paths."""
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"
