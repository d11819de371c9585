"""Tables of the evaluation, by name: the rows to measure, their formats, and the claims of the paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fx.registry import Registry
from pytest_fx.errors import TableError

Role = Literal["ours", "baseline", "peer", "paper"]
"""The source of a series' numbers; each source has its own colour in every figure."""


class NotRun(Exception):
    """A row cannot be measured here. Documents show the message, which is the reason, in place of its numbers."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of an evaluation."""

    size: str = "full"
    """``"full"``, or ``"small"`` for the small siblings of zoo models."""
    rounds: int = 30
    """Pairs of calls in each timing."""
    seed: int = 0
    """The seed of the inputs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row to measure."""

    name: str
    """The name of the row in the table. It is the same in every run and on every machine."""
    measure: Callable[[], Mapping[str, Any]]
    """The function that returns its values, such as counts and lists of seconds, or raises :class:`NotRun`."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """All that the values depend on beside code, versions and machine. After a change the row is measured again."""
    timed: bool = False
    """Whether times are taken, which other work on the machine would distort."""
    on_gpu: bool = False
    """Whether it needs a GPU. It is listed under machines with a GPU; without a record of any, under every machine."""
    stands_for: str = ""
    """The row of full size whose claims this small row answers where that row was not measured; empty for none."""

    @property
    def keyword(self) -> str:
        """The name with hyphens in place of spaces and signs, for the option ``-k`` of pytest.

        >>> Row("resnet50, CPU, 1 thread, batch 1", dict).keyword
        'resnet50-CPU-1-thread-batch-1'
        """
        return re.sub(r"[^\w.+]+", "-", self.name).strip("-")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the Markdown."""

    heading: str
    """The heading of the column."""
    template: str
    """The cell: a format string over the row's numbers, those of the paper as ``paper_…``: ``"{seconds:.3f}"``."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of the paper that the table tests."""

    sentence: str
    """The sentence, as in the paper."""
    paper: str
    """Its number, in short."""
    found: Mapping[str, str]
    """Our result: for each row that it is taken from, a format string over the row's numbers."""


@dataclass(frozen=True, slots=True)
class Series:
    """The bars of one colour."""

    label: str
    """The label in the legend."""
    number: str
    """The name of the number that is the length of a bar."""
    role: Role
    """The source of the numbers."""
    low: str | None = None
    """The name of the number where the error bar begins; None without error bars."""
    high: str | None = None
    """The name of the number where the error bar ends."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The figure: a group of horizontal bars or dots for each row, or a scatter plot with a point for each row."""

    title: str
    """The title of the figure."""
    axis: str
    """The label of the axis: the quantity and its unit."""
    series: tuple[Series, ...]
    """The bars of a group."""
    template: str = "{:g}"
    """The format of the number at a bar's end."""
    reference: tuple[float, str] | None = None
    """The position of a reference line, and its label in the legend."""
    logarithmic: bool = False
    """Whether the axis is logarithmic; numbers are then dots, because a bar would have to begin at zero."""
    rows: str = ""
    """A regular expression that selects rows by name, for a table with too many rows to draw."""
    over: Series | None = None
    """The horizontal axis of a scatter plot: a point on the diagonal has equal numbers here and in ``series``."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A second figure: a timeline of one call of each program of a row, with a lane for each kind of work.

    Its data is ``values["timeline"]``: for each program a list of ``[kind, begin, end]``, in milliseconds from the
    start of the call.
    """

    title: str
    """The title of the figure."""
    rows: tuple[str, ...]
    """Rows that can be drawn, in order of preference; the first with a recorded timeline is drawn."""
    kinds: Mapping[str, Role]
    """The lanes from top to bottom, each with the look of its bars. Overlapping bars of a lane are stacked."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the evaluation, with its figure."""

    name: str
    """The name on the command line and of the files."""
    title: str
    """The title in the documents."""
    section: str
    """The section of the paper."""
    protocol: str
    """The method of measurement, in Markdown."""
    claims: tuple[Claim, ...]
    """The claims of the paper that it tests."""
    rows: Callable[[Scale], Sequence[Row]]
    """The function that returns its rows, in order. It must be fast, and return the same names on every machine."""
    columns: tuple[Column, ...]
    """The columns of the Markdown table."""
    chart: Chart
    """The figure."""
    totals: Callable[[Sequence[Entry]], Sequence[Entry]] = lambda entries: ()
    """The function that computes rows from the measured ones, such as the median of all; shown below them."""
    numbers: Callable[[Mapping[str, Any]], Mapping[str, float]] = dict
    """The function from a row's values to its reported numbers, such as the mean of its samples."""
    timeline: Timeline | None = None
    """The timeline figure, if the table has one."""
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """The paper's numbers by row, under the same names as ours."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A reported row, with numbers or with the reason why there are none."""

    name: str
    """The row's name."""
    numbers: Mapping[str, float]
    """Our numbers; empty if the row was not run."""
    paper: Mapping[str, float]
    """The paper's numbers; empty if it has none."""
    reason: str | None
    """The reason why there are no numbers; None if there are numbers."""
    stands_for: str = ""
    """The row of full size whose claims it answers where that row was not measured; empty for none."""

    @property
    def all_numbers(self) -> dict[str, float]:
        """Our numbers, and those of the paper as ``paper_…``."""
        return {**self.numbers, **{f"paper_{name}": number for name, number in self.paper.items()}}

    def format(self, template: str) -> str | None:
        """Return ``template`` filled with the row's numbers, or None if it uses a number that the row lacks.

        >>> Entry("fx", {"nodes": 444}, {}, None).format("{nodes:,} nodes")
        '444 nodes'
        """
        try:
            return template.format_map(self.all_numbers)
        except KeyError:
            return None


_tables: Registry[Table] = Registry("table", "tables", TableError)


def register_table(table: Table) -> Table:
    """Register ``table`` under its name and return it.

    Raises :class:`~pytest_fx.errors.TableError` if the name is already registered.
    """
    _tables.register(table.name, table)
    return table


def get_table(name: str) -> Table:
    """Return the table registered as ``name``.

    Raises :class:`~pytest_fx.errors.TableError`, with the nearest names, if there is none.
    """
    return _tables.get(name)


def list_tables() -> list[str]:
    """Return the names of all tables in alphabetical order."""
    return _tables.names()
