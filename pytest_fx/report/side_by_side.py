"""Two programs as rows of a table: lines that belong together side by side, long stretches of equal ones left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

CONTEXT = 3
"""Equal lines that are shown around others."""
MOST_LINES = 400
"""Rows that are shown of two programs, around the first wrong node."""
LONGEST_LINE = 400
"""Characters of a line that are shown."""
MOST_COMPARED = 6000
"""Lines of both programs from which on they are put side by side by number: finding what moved takes too long."""

Row = tuple[int, str, int, str]
"""Number and text of a line before and of one after; the number is 0 where there is none."""


def side_by_side(
    before: str, after: str | None, marks: tuple[int | None, int | None] = (None, None)
) -> tuple[list[Row | int], int]:
    """Return rows, with a number in the place of so many equal ones, and how many rows were left out at the ends.

    ``marks`` are the lines of the first wrong node, which are shown whatever is left out.

    >>> side_by_side("a\\nb", "a\\nc")
    ([(1, 'a', 1, 'a'), (2, 'b', 2, 'c')], 0)
    """
    rows = list(_rows(before.splitlines(), [] if after is None else after.splitlines()))
    is_kept = [row[1] != row[3] or (row[0] or -1) == marks[0] or (row[2] or -1) == marks[1] for row in rows]
    marked = next(
        (place for place, row in enumerate(rows) if _is_marked(row, marks)), is_kept.index(True) if any(is_kept) else 0
    )
    shown: list[Row | int] = []
    first = max(0, min(marked - MOST_LINES // 2, len(rows) - MOST_LINES))
    last = min(len(rows), first + MOST_LINES)
    equal = 0
    for place in range(first, last):
        if any(is_kept[max(0, place - CONTEXT) : place + CONTEXT + 1]) or (place == 0 and rows[0][1]):
            if equal:
                shown.append(equal)
            equal = 0
            number, text, other, text_after = rows[place]
            shown.append((number, text[:LONGEST_LINE], other, text_after[:LONGEST_LINE]))
        else:
            equal += 1
    if equal:
        shown.append(equal)
    return shown, first + len(rows) - last


def _is_marked(row: Row, marks: tuple[int | None, int | None]) -> bool:
    return (row[2] > 0 and row[2] == marks[1]) or (row[0] > 0 and row[0] == marks[0])


def _rows(before: Sequence[str], after: Sequence[str]) -> Iterator[Row]:
    for start, end, other_start, other_end in _blocks(before, after):
        for offset in range(max(end - start, other_end - other_start)):
            here, there = start + offset, other_start + offset
            number, text = (here + 1, before[here]) if here < end else (0, "")
            other, text_after = (there + 1, after[there]) if there < other_end else (0, "")
            yield number, text, other, text_after


def _blocks(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    if len(before) + len(after) > MOST_COMPARED:
        yield 0, len(before), 0, len(after)
        return
    for _, *block in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        yield block[0], block[1], block[2], block[3]
