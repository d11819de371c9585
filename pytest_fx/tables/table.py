"""Tables of the evaluation, by name: rows to measure, how they are formatted, and what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fx.registry import Registry
from pytest_fx.errors import TableError

Role = Literal["ours", "baseline", "peer", "paper"]
"""Whose numbers a series shows; each has its own colour in every figure."""


class NotRun(Exception):
    """A row cannot be measured here. The message is the reason, which stands in the place of its numbers."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large an evaluation is."""

    size: str = "full"
    """``"full"``, or ``"small"`` for the small siblings of zoo models."""
    rounds: int = 30
    """Pairs of calls in each timing."""
    seed: int = 0
    """Where the inputs are drawn from."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row to measure."""

    name: str
    """What it is called, in this table and in every run: it does not depend on the machine."""
    measure: Callable[[], Mapping[str, Any]]
    """Returns its values, such as counts and lists of seconds; raises :class:`NotRun` where there can be none."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """All that the values depend on beside the code, the versions and the machine. With others it is measured again."""
    timed: bool = False
    """Whether times are taken, which means nothing beside other work."""
    on_gpu: bool = False
    """Whether it is of a GPU: shown under the machines that have one, or under each where nothing of one is
    recorded.
    """


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the Markdown."""

    heading: str
    """What stands above it."""
    template: str
    """Its cell as a format string over the row's numbers, those of the paper under ``paper_…``: ``"{seconds:.3f}"``."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the paper that the table puts to the test."""

    sentence: str
    """What the paper says."""
    paper: str
    """Its number, in short."""
    found: Mapping[str, str]
    """What is found here: by row a format string over its numbers."""


@dataclass(frozen=True, slots=True)
class Series:
    """The bars of one colour."""

    label: str
    """What the legend calls them."""
    number: str
    """The number that is their length."""
    role: Role
    """Whose they are."""
    low: str | None = None
    """The number where the error bar begins."""
    high: str | None = None
    """The number where it ends."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The figure: horizontal bars or dots, a group for each row; or a point for each row, one number over another."""

    title: str
    """What it shows."""
    axis: str
    """What the length of a bar is, with its unit."""
    series: tuple[Series, ...]
    """The bars of a group."""
    template: str = "{:g}"
    """The format of the number at a bar's end."""
    reference: tuple[float, str] | None = None
    """Where a line is drawn to compare with, and what it stands for."""
    logarithmic: bool = False
    """Whether equal lengths are equal ratios; numbers are dots then, because a bar would have to begin at zero."""
    rows: str = ""
    """The regular expression found in the names of its rows, where the table has more than can be looked at."""
    over: Series | None = None
    """What is to the right, where rows are points: the closer to the diagonal, the nearer the numbers of ``series``."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A second figure: what ran when in one call of each program of a row, a lane for each of several kinds.

    It is in ``values["timeline"]``: for each program a list of ``[kind, begin, end]``, in milliseconds from its start.
    """

    title: str
    """What it shows."""
    rows: tuple[str, ...]
    """The rows that it may be drawn of; the first that has one is."""
    kinds: Mapping[str, Role]
    """The lanes from above, each with the look of its bars; bars of one lane that overlap stand below each other."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the evaluation, with its figure."""

    name: str
    """What the command line and the files call it."""
    title: str
    """What the documents call it."""
    section: str
    """Where the paper has it."""
    protocol: str
    """How its rows are measured, in Markdown."""
    claims: tuple[Claim, ...]
    """What the paper says about it."""
    rows: Callable[[Scale], Sequence[Row]]
    """Its rows, in order. Called to learn the names as well, so it must be quick and the same on every machine."""
    columns: tuple[Column, ...]
    """How the Markdown shows a row."""
    chart: Chart
    """How the figure shows the rows."""
    totals: Callable[[Sequence[Entry]], Sequence[Entry]] = lambda entries: ()
    """Rows that are worked out of those that were measured, such as the median of all: shown below them."""
    numbers: Callable[[Mapping[str, Any]], Mapping[str, float]] = dict
    """From a row's values to the numbers that are reported of it, such as the mean of its samples."""
    timeline: Timeline | None = None
    """What ran when, where a table shows it."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """The paper's numbers by row, under the names that ours have."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row as it is reported: with numbers, or with the reason why there are none."""

    name: str
    """The row's name."""
    numbers: Mapping[str, float]
    """Ours; empty where it was not run."""
    paper: Mapping[str, float]
    """The paper's; empty where it has none."""
    reason: str | None
    """Why there are no numbers, if there are none."""

    @property
    def all_numbers(self) -> dict[str, float]:
        """Ours, and the paper's under ``paper_…``."""
        return {**self.numbers, **{f"paper_{name}": number for name, number in self.paper.items()}}

    def format(self, template: str) -> str | None:
        """Return ``template`` filled with the row's numbers, or None if it asks for one that there is not.

        >>> Entry("fx", {"nodes": 444}, {}, None).format("{nodes:,} nodes")
        '444 nodes'
        """
        try:
            return template.format_map(self.all_numbers)
        except KeyError:
            return None


_tables: Registry[Table] = Registry("table", "tables", TableError)


def register_table(table: Table) -> Table:
    """Make ``table`` known under its name and return it.

    Raises :class:`~pytest_fx.errors.TableError` if another table has the name already.
    """
    _tables.register(table.name, table)
    return table


def get_table(name: str) -> Table:
    """Return the table registered as ``name``.

    Raises :class:`~pytest_fx.errors.TableError`, which lists the nearest names, if there is none.
    """
    return _tables.get(name)


def list_tables() -> list[str]:
    """Return the names of all tables in alphabetical order."""
    return _tables.names()
