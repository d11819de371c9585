"""Layout of the table at the end of a run: all columns side by side, below model names, or in several parts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from pytest_fx.report.columns import Markup, SummaryColumn
from pytest_fx.report.rows import WRONG, SummaryRow, verdict_of

GAP = "  "
"""The space between two columns."""
MARK = "!"
"""The mark of a wrong program, in a separate first column."""
NARROWEST_NAME = 24
"""Minimum width of the column of program names if some are longer, in characters."""
LONGEST_NAME = 40
"""Maximum width of the column of program names in a table of several parts, in characters."""
_WRONG: Markup = {"red": True, "bold": True}
_HEADING: Markup = {"bold": True}

Line = list[tuple[str, Markup]]
"""A line of the terminal: texts, each with its markup."""


@dataclass(frozen=True, slots=True)
class CellColumn:
    """One column, cell by cell."""

    heading: str
    """The heading of the column."""
    cells: Sequence[str]
    """The text of the cell of each row."""
    markups: Sequence[Markup]
    """The colours of each cell."""
    width: int
    """Characters in its longest line."""


def format_rows(
    rows: Sequence[SummaryRow], columns: Sequence[SummaryColumn], width: int | None = None, *, verbose: bool = False
) -> list[Line]:
    """Return the lines of the table, none longer than ``width`` if that is given.

    Empty optional columns are left out, and, without ``verbose``, columns for wider terminals. If the table is too
    wide, the rows of each model are listed below its name, long names are wrapped, and columns that do not fit follow
    in another part below.
    """
    visible = [column for column in columns if column.is_shown(width or 0, verbose=verbose)]
    filled = [column for column in (_filled(column, rows, verbose=verbose) for column in visible) if column is not None]
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
        # The parts after the first leave out rows whose cells there are all empty.
        places = [
            place for place in range(len(rows)) if not lines or any(column.cells[place] != "-" for column in part[2:])
        ]
        lines += _lines(part, _heads(model.cells, places))
    return lines


def text_of(line: Line) -> str:
    """Return a line without its markup."""
    return "".join(text for text, _ in line)


def _filled(column: SummaryColumn, rows: Sequence[SummaryRow], *, verbose: bool) -> CellColumn | None:
    """Return the column with its cells; None for an optional column without content."""
    cells = [column.shown(row, verbose=verbose) for row in rows]
    if column.optional and all(cell == "-" for cell in cells):
        return None
    markups = [_WRONG if verdict_of(row) == WRONG else column.markup(row) for row in rows]
    return CellColumn(column.heading, cells, markups, max(map(len, (column.heading, *cells))))


def _total(columns: Sequence[CellColumn]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _parts(names: list[CellColumn], others: list[CellColumn], width: int) -> Iterator[list[CellColumn]]:
    """Yield the columns of each part, which begins with the program names and is at most ``width`` wide."""
    marks, program = names
    others_width = _total([marks, *others]) + len(GAP)
    if others_width + min(program.width, NARROWEST_NAME) <= width:
        yield [marks, _broken(program, width - others_width), *others]
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
    """Return the column with cells that are longer than ``width`` wrapped."""
    width = max(min(column.width, width), 1)
    heading, *cells = ["\n".join(_wrapped(cell, width)) for cell in (column.heading, *column.cells)]
    return CellColumn(heading, cells, column.markups, width)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=GAP if width > len(GAP) + 1 else "", break_on_hyphens=False)


def _heads(models: Sequence[str], places: Sequence[int]) -> dict[int, str]:
    """Map each shown row to the model name to print above it: empty unless it is the first row of its model."""
    names = [models[place] for place in places]
    return {place: "" if names[:at][-1:] == [names[at]] else names[at] for at, place in enumerate(places)}


def _lines(columns: Sequence[CellColumn], heads: Mapping[int, str]) -> list[Line]:
    """Return the lines of one part: headings, then rows, each below the model name that ``heads`` has for it."""
    plain: list[Markup] = [{}] * len(columns)
    lines = _row([column.heading for column in columns], plain, columns)
    for place, model in heads.items():
        if model:
            lines.append([(model, _HEADING)])
        cells = [column.cells[place] for column in columns]
        lines += _row(cells, [column.markups[place] for column in columns], columns)
    return lines


def _row(cells: Sequence[str], markups: Sequence[Markup], columns: Sequence[CellColumn]) -> list[Line]:
    """Return the lines of one row: as many as its tallest cell has."""
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
