"""Two programs as rows of a table, with matching lines side by side and long equal stretches left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

CONTEXT = 3
"""Number of equal lines shown around different ones."""
MOST_LINES = 400
"""Maximum number of rows shown, around the first wrong node."""
LONGEST_LINE = 400
"""Maximum length of a shown line, in characters."""
MOST_COMPARED = 6000
"""Maximum number of lines of both programs for a diff; longer ones, where it is slow, are paired by line number."""

Row = tuple[int, str, int, str]
"""Number and text of a line before and of one after; the number of a missing line is 0."""


def side_by_side(
    before: str, after: str | None, marks: tuple[int | None, int | None] = (None, None)
) -> tuple[list[Row | int], int]:
    """Return the rows, and the number of rows left out at both ends; an integer replaces that many equal rows.

    ``marks`` are the lines of the first wrong node, which are always shown.

    >>> side_by_side("a\\nb", "a\\nc")
    ([(1, 'a', 1, 'a'), (2, 'b', 2, 'c')], 0)
    """
    rows = list(_rows(before.splitlines(), [] if after is None else after.splitlines()))
    is_kept = [row[1] != row[3] or (row[0] or -1) == marks[0] or (row[2] or -1) == marks[1] for row in rows]
    marked = next(
        (place for place, row in enumerate(rows) if _is_marked(row, marks)), is_kept.index(True) if any(is_kept) else 0
    )
    visible: list[Row | int] = []
    first = max(0, min(marked - MOST_LINES // 2, len(rows) - MOST_LINES))
    last = min(len(rows), first + MOST_LINES)
    equal = 0
    for place in range(first, last):
        if any(is_kept[max(0, place - CONTEXT) : place + CONTEXT + 1]) or (place == 0 and rows[0][1]):
            if equal:
                visible.append(equal)
            equal = 0
            number, text, other, text_after = rows[place]
            visible.append((number, text[:LONGEST_LINE], other, text_after[:LONGEST_LINE]))
        else:
            equal += 1
    if equal:
        visible.append(equal)
    return visible, first + len(rows) - last


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
