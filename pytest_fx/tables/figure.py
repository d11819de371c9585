"""The figure of a table: horizontal bars, ours beside the paper's, or a scatter plot.

The SVG is deterministic: equal numbers give equal files.
"""

from __future__ import annotations

import io
import re
import textwrap
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from pytest_fx.tables.documents import NOT_YET, Section
from pytest_fx.tables.table import Chart, Entry, Role, Series

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "pytest-fx",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": "#8a8f98",
    "axes.labelcolor": "#3b4048",
    "xtick.color": "#5b616b",
    "ytick.color": "#1f2328",
    "text.color": "#1f2328",
    "hatch.linewidth": 0.8,
}
LOOK: dict[Role, dict[str, Any]] = {
    "ours": {"facecolor": "#0b6e99", "edgecolor": "#0b6e99"},
    "baseline": {"facecolor": "#5b616b", "edgecolor": "#5b616b"},
    "peer": {"facecolor": "#e0943a", "edgecolor": "#e0943a"},
    "paper": {"facecolor": "white", "edgecolor": "#8a8f98", "hatch": "////"},
}
"""Colours of the roles. They also differ in lightness, and the paper's by hatching, for readers without colour."""
_BEHIND_TEXT = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
"""A white box behind numbers, so that lines do not cross them."""
_BAR = 0.22
"""Height of a bar in inches."""
_GAP = 0.2
"""Space between two groups in inches."""
_HEAD, _FOOT = 1.05, 0.65
"""Space above and below the groups in inches, for title and legend, and for the axis."""
_WIDTH = 8.4
_LINE = 0.16
"""Height of a line of text in inches."""
_CHARACTER = 0.076
"""Average width of a character in inches, in the names of rows."""
_NAME, _REASON = 43, 62
"""Characters in a line of a row's name, and of the reason why it has no bar."""
_ROOM = 1.16
"""Length of the axis in lengths of the longest bar or interval: the number is beside it."""
_MOST = 1.5
"""Lengths of the longest bar at which longer intervals are cut off, since they would make all bars short."""
_LONG = 2e3
"""Ratio of the ends of a logarithmic axis above which it has ticks at powers of ten only."""


def draw(section: Section) -> str:
    """Return the figure of one machine's measurements as SVG."""
    with mpl.rc_context(STYLE):
        return as_svg(_figure(section))


def as_svg(figure: Figure) -> str:
    """Return a figure as SVG text, without date or creator, in the current style."""
    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _figure(section: Section) -> Figure:
    chart = section.table.chart
    return _points(section, chart, chart.over) if chart.over is not None else _groups_of_bars(section, chart)


def _groups_of_bars(section: Section, chart: Chart) -> Figure:
    chosen = [entry for entry in section.entries if re.search(chart.rows, entry.name)] or section.entries
    drawn = [(entry, [bar for bar in chart.series if bar.number in entry.all_numbers]) for entry in chosen]
    groups = [(entry, bars) for entry, bars in drawn if bars or entry.reason not in (None, NOT_YET)]
    heights = [_height(entry, bars) for entry, bars in groups]
    body = sum(heights)
    height = body + _HEAD + _FOOT
    figure = Figure(figsize=(_WIDTH, height))
    widest = max(len(line) for entry, _ in groups for line in textwrap.wrap(entry.name, _NAME))
    margin = 0.2 + widest * _CHARACTER
    axes = figure.add_axes((margin / _WIDTH, _FOOT / height, (_WIDTH - margin - 0.35) / _WIDTH, body / height))
    _scale(axes, section, body)
    _draw_groups(axes, section, groups, heights)
    _head(figure, section, height)
    return figure


def _points(section: Section, chart: Chart, over: Series) -> Figure:
    """Draw a scatter plot of each series over ``over``: a point for each row, logarithmic axes, and the diagonal."""
    height = _WIDTH - 0.35 + _HEAD + _FOOT - 1.2
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((0.85 / _WIDTH, _FOOT / height, (_WIDTH - 1.2) / _WIDTH, (height - _HEAD - _FOOT) / height))
    axes.set(xscale="log", yscale="log", xlabel=f"{over.label}, {chart.axis}", ylabel=chart.axis)
    numbers: list[float] = []
    for bar in reversed(chart.series):  # the first is on top
        rows = [entry.all_numbers for entry in section.entries if {bar.number, over.number} <= {*entry.all_numbers}]
        across, up = ([row[name] for row in rows] for name in (over.number, bar.number))
        numbers += [*across, *up]
        if bar.low is not None and bar.high is not None:
            low, high = ([row.get(name, row[bar.number]) for row in rows] for name in (bar.low, bar.high))
            axes.vlines(across, low, high, color=LOOK[bar.role]["edgecolor"], linewidth=0.8, alpha=0.5, zorder=2)
        axes.plot(across, up, "o", color=LOOK[bar.role]["edgecolor"], markersize=4.5, zorder=3)
    ends = min(numbers) / 1.5, max(numbers) * 1.5
    axes.set(xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(color="#e4e6ea", linewidth=0.8)
    axes.plot(ends, ends, color="#3b4048", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.set_axisbelow(True)
    _head(figure, section, height)
    return figure


def _head(figure: Figure, section: Section, height: float) -> None:
    """Write the title, the machine and the legend."""
    figure.text(0.15 / _WIDTH, 1 - 0.2 / height, section.table.chart.title, size=12.5, weight="bold", va="top")
    figure.text(0.15 / _WIDTH, 1 - 0.45 / height, section.machine, size=9, color="#5b616b", va="top")
    _legend(figure, section, 1 - 0.62 / height)


def _scale(axes: Axes, section: Section, body: float) -> None:
    """Set up the axes: room for the longest bar and the number beside it, and grid lines behind the bars."""
    chart = section.table.chart
    lengths, highs = (
        [entry.all_numbers[name] for entry in section.entries for name in names if name in entry.all_numbers]
        for names in ([bar.number for bar in chart.series], [bar.high for bar in chart.series])
    )
    numbers = [*lengths, *highs]
    marked = [chart.reference[0]] if chart.reference is not None else []
    largest = max([*numbers, *marked])
    if chart.logarithmic:
        smallest = min(number for number in numbers if number > 0)
        axes.set_xscale("log")
        is_long = largest / smallest > _LONG
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if is_long else (1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(smallest / 1.6, largest * (largest / smallest) ** 0.16)
    else:
        axes.set_xlim(0, min(largest, _MOST * max(lengths + marked)) * _ROOM)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_ylim(body, 0)
    axes.set_xlabel(chart.axis)
    axes.grid(axis="x", color="#e4e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    if chart.reference is not None:
        axes.axvline(chart.reference[0], color="#3b4048", linewidth=1, linestyle=(0, (4, 3)), zorder=1)


def _draw_groups(axes: Axes, section: Section, groups: list[tuple[Entry, list[Series]]], heights: list[float]) -> None:
    """Draw the bars of each group below each other, and above them the reason why bars of ours are missing."""
    top, middles = 0.0, list[float]()
    for (entry, bars), height in zip(groups, heights, strict=True):
        middles.append(top + height / 2)
        reason = _reason(entry)
        begin = top + (height - _BAR * len(bars) - _LINE * len(reason)) / 2
        if reason:
            axes.annotate(
                "\n".join(reason), (0, begin + _LINE * len(reason) / 2), xycoords=axes.get_yaxis_transform(),
                xytext=(6, 0), textcoords="offset points", va="center", size=8.5, style="italic", color="#5b616b",
                bbox=_BEHIND_TEXT, zorder=2.5,
            )  # fmt: skip
        for position, bar in enumerate(bars):
            place = begin + _LINE * len(reason) + _BAR * (position + 0.5)
            _draw_bar(axes, entry, bar, place, section.table.chart)
        top += height
    axes.set_yticks(middles, ["\n".join(textwrap.wrap(entry.name, _NAME)) for entry, _ in groups])


def _height(entry: Entry, bars: list[Series]) -> float:
    """Return the height of a group in inches: its bars and its reason, or its name if that is higher."""
    name = len(textwrap.wrap(entry.name, _NAME))
    return _GAP + max(_BAR * len(bars) + _LINE * len(_reason(entry)), _LINE * name)


def _draw_bar(axes: Axes, entry: Entry, bar: Series, place: float, chart: Chart) -> None:
    numbers = entry.all_numbers
    length = numbers[bar.number]
    if chart.logarithmic:  # a bar would have to begin at zero
        axes.plot([length], [place], "o", color=LOOK[bar.role]["edgecolor"], markersize=6.5, zorder=2)
    else:
        axes.barh(place, length, height=_BAR * 0.82, linewidth=0.9, zorder=2, **LOOK[bar.role])
    end = length
    if bar.low in numbers and bar.high in numbers:
        low, high = numbers[bar.low], numbers[bar.high]
        edge = axes.get_xlim()[1] / _ROOM
        if high > edge and not chart.logarithmic:
            high = edge
            axes.plot([edge], [place], ">", color="#1f2328", markersize=5, zorder=3)
        axes.errorbar(
            length, place, xerr=[[max(0.0, length - low)], [max(0.0, high - length)]],
            ecolor="#1f2328", elinewidth=1, capsize=2.5, zorder=3,
        )  # fmt: skip
        end = max(length, high)
    number = chart.template.format(length)
    axes.annotate(
        number, (_beside_line(axes, end, number, chart), place), xytext=(6, 0), textcoords="offset points", va="center",
        size=8.5, bbox=_BEHIND_TEXT, zorder=2.5,
    )  # fmt: skip


def _beside_line(axes: Axes, end: float, number: str, chart: Chart) -> float:
    """Return the position of ``number``: right of ``end``, or right of the reference line if they would overlap."""
    if chart.reference is None or end >= chart.reference[0]:
        return end
    line = chart.reference[0]
    points = [axes.transData.transform((place, 0))[0] for place in (end, line)]
    inches = (points[1] - points[0]) / mpl.rcParams["figure.dpi"]
    return end if inches > 0.12 + 0.068 * len(number) else line


def _legend(figure: Figure, section: Section, top: float) -> None:
    """Draw the legend in one line above the bars: the colours in use, and the reference line."""
    chart = section.table.chart
    used = [bar for bar in chart.series if any(bar.number in entry.all_numbers for entry in section.entries)]
    handles: list[Any] = [
        Line2D([], [], marker="o", linestyle="", color=LOOK[bar.role]["edgecolor"], markersize=6.5, label=bar.label)
        if chart.logarithmic or chart.over is not None
        else Patch(label=bar.label, **LOOK[bar.role])
        for bar in used
    ]
    line = f"as {chart.over.label}" if chart.over is not None else chart.reference and chart.reference[1]
    if line is not None:
        handles.append(Line2D([], [], color="#3b4048", linewidth=1, linestyle=(0, (4, 3)), label=line))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.05 / _WIDTH, top), ncols=len(handles), frameon=False,
        handlelength=1.6, columnspacing=1.6, fontsize=9,
    )  # fmt: skip


def _reason(entry: Entry) -> list[str]:
    """Return the lines of the reason why bars of ours are missing."""
    return [] if entry.reason is None else textwrap.wrap(entry.reason, _REASON, max_lines=3, placeholder=" …")
