"""How the table at the end of a run fits a terminal: side by side, below the model's name, or in parts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from pytest_fx.report.columns import Markup, SummaryColumn
from pytest_fx.report.rows import WRONG, SummaryRow, verdict_of

GAP = "  "
"""What stands between two columns."""
MARK = "!"
"""What a row begins with whose program is wrong, in a column of its own."""
NARROWEST_NAME = 24
"""Columns that the names of programs have at least, if they are longer."""
LONGEST_NAME = 40
"""Columns that they have at most where a table does not fit in one part."""
_WRONG: Markup = {"red": True, "bold": True}
_HEADING: Markup = {"bold": True}

Line = list[tuple[str, Markup]]
"""A line of the terminal: texts, each with its markup."""


@dataclass(frozen=True, slots=True)
class CellColumn:
    """One column, cell by cell."""

    heading: str
    """What stands above it."""
    cells: Sequence[str]
    """What it shows of each row."""
    markups: Sequence[Markup]
    """How each cell is written."""
    width: int
    """Characters in its longest line."""


def format_rows(
    rows: Sequence[SummaryRow], columns: Sequence[SummaryColumn], width: int | None = None, *, verbose: bool = False
) -> list[Line]:
    """Return the lines of the table, none longer than ``width`` if that is given.

    Optional columns that say nothing are left out, and without ``verbose`` those that a terminal of that width does not
    have. Where the table is wider, rows stand below the names of their models, long names are broken, and columns that
    do not fit follow below in another part.
    """
    shown = [column for column in columns if column.is_shown(width or 0, verbose=verbose)]
    filled = [column for column in (_filled(column, rows, verbose=verbose) for column in shown) if column is not None]
    is_wrong = [verdict_of(row) == WRONG for row in rows]
    marks = CellColumn("", [MARK if wrong else "" for wrong in is_wrong], [_WRONG] * len(rows), 1)
    marked = [marks, *filled] if any(is_wrong) else filled
    if width is None or _total(marked) <= width:
        return _lines(marked, dict.fromkeys(range(len(rows)), ""))
    model, program, *others = filled
    marks = CellColumn("", marks.cells, marks.markups, 1 if any(is_wrong) else 0)
    lines: list[Line] = []
    for part in _parts([marks, program], others, width):
        lines += [[]] if lines else []
        # Below the first part, rows with nothing in its columns are left out.
        places = [
            place for place in range(len(rows)) if not lines or any(column.cells[place] != "-" for column in part[2:])
        ]
        lines += _lines(part, _heads(model.cells, places))
    return lines


def text_of(line: Line) -> str:
    """Return a line without its markup."""
    return "".join(text for text, _ in line)


def _filled(column: SummaryColumn, rows: Sequence[SummaryRow], *, verbose: bool) -> CellColumn | None:
    """The cells of a column; None for an optional one that shows nothing."""
    cells = [column.shown(row, verbose=verbose) for row in rows]
    if column.optional and all(cell == "-" for cell in cells):
        return None
    markups = [_WRONG if verdict_of(row) == WRONG else column.markup(row) for row in rows]
    return CellColumn(column.heading, cells, markups, max(map(len, (column.heading, *cells))))


def _total(columns: Sequence[CellColumn]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _parts(names: list[CellColumn], others: list[CellColumn], width: int) -> Iterator[list[CellColumn]]:
    """Yield the columns of one table after the other, all with the names of programs, none wider than ``width``."""
    marks, program = names
    taken = _total([marks, *others]) + len(GAP)
    if taken + min(program.width, NARROWEST_NAME) <= width:
        yield [marks, _broken(program, width - taken), *others]
        return
    program = _broken(program, min(LONGEST_NAME, width // 2))
    part = [marks, program]
    for column in others:
        if _total([*part, column]) > width and len(part) > 2:
            yield part
            part = [marks, program]
        part.append(_broken(column, width - _total(part) - len(GAP)))
    yield part


def _broken(column: CellColumn, width: int) -> CellColumn:
    """The column with cells that are longer than ``width`` in several lines."""
    width = max(min(column.width, width), 1)
    heading, *cells = ["\n".join(_wrapped(cell, width)) for cell in (column.heading, *column.cells)]
    return CellColumn(heading, cells, column.markups, width)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=GAP if width > len(GAP) + 1 else "", break_on_hyphens=False)


def _heads(models: Sequence[str], places: Sequence[int]) -> dict[int, str]:
    """The places of rows that are shown, and the name of the model above the first row of each."""
    shown = [models[place] for place in places]
    return {place: "" if shown[:at][-1:] == [shown[at]] else shown[at] for at, place in enumerate(places)}


def _lines(columns: Sequence[CellColumn], heads: Mapping[int, str]) -> list[Line]:
    """The heading and the rows of one table, where ``heads`` has a name with the name of the model above."""
    plain: list[Markup] = [{}] * len(columns)
    lines = _row([column.heading for column in columns], plain, columns)
    for place, model in heads.items():
        if model:
            lines.append([(model, _HEADING)])
        cells = [column.cells[place] for column in columns]
        lines += _row(cells, [column.markups[place] for column in columns], columns)
    return lines


def _row(cells: Sequence[str], markups: Sequence[Markup], columns: Sequence[CellColumn]) -> list[Line]:
    """The lines of one row: as many as its highest cell has."""
    lines: list[Line] = []
    for parts in zip_longest(*(cell.split("\n") for cell in cells), fillvalue=""):
        last = max((place for place, part in enumerate(parts) if part), default=0)
        line: Line = []
        for place, part in enumerate(parts[: last + 1]):
            line.append((part, markups[place] if part else {}))
            if place < last:
                line.append((" " * (columns[place].width - len(part)) + GAP, {}))
        lines.append(line)
    return lines
