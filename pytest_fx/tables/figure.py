"""The figure of a table: horizontal bars, ours beside the paper's, as an SVG that is the same for the same numbers."""

from __future__ import annotations

import io
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
"""Told apart without colour too: by lightness, and the paper's by its hatching."""
_BEHIND_TEXT = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
"""Keeps lines out of numbers."""
_BAR = 0.22
"""Height of a bar in inches."""
_GAP = 0.2
"""Space between two groups in inches."""
_HEAD, _FOOT = 1.05, 0.65
"""Space above and below the groups in inches, for title and legend, and for the axis."""
_WIDTH = 8.4
_LONG = 2e3
"""Ratio of the ends of a logarithmic axis from which on it has room for powers of ten only."""


def draw(section: Section) -> str:
    """Return the SVG of what one machine measured."""
    with mpl.rc_context(STYLE):
        return as_svg(_figure(section))


def as_svg(figure: Figure) -> str:
    """Return the text of a figure, the same for the same figure, in the style that is set."""
    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _figure(section: Section) -> Figure:
    chart = section.table.chart
    drawn = [(entry, _bars(entry, chart.series)) for entry in section.entries]
    groups = [(entry, bars) for entry, bars in drawn if bars or entry.reason not in (None, NOT_YET)]
    heights = [_BAR * _places(entry, bars) + _GAP for entry, bars in groups]
    body = sum(heights)
    height = body + _HEAD + _FOOT
    figure = Figure(figsize=(_WIDTH, height))
    widest = max(len(entry.name) for entry, _ in groups)
    left = 0.2 + widest * 0.076
    axes = figure.add_axes((left / _WIDTH, _FOOT / height, (_WIDTH - left - 0.35) / _WIDTH, body / height))
    figure.text(0.15 / _WIDTH, 1 - 0.2 / height, chart.title, size=12.5, weight="bold", va="top")
    figure.text(0.15 / _WIDTH, 1 - 0.45 / height, section.machine, size=9, color="#5b616b", va="top")
    _scale(axes, section, body)
    _draw_groups(axes, section, groups, heights)
    _legend(figure, section, 1 - 0.62 / height)
    return figure


def _bars(entry: Entry, series: tuple[Series, ...]) -> list[Series]:
    return [bar for bar in series if bar.number in entry.all_numbers]


def _scale(axes: Axes, section: Section, body: float) -> None:
    """Set up the axes: room for the longest bar and the number beside it, and grid lines behind the bars."""
    chart = section.table.chart
    numbers: list[float] = [
        entry.all_numbers[name]
        for entry in section.entries
        for bar in chart.series
        for name in (bar.number, bar.high)
        if name in entry.all_numbers
    ]
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
        axes.set_xlim(0, largest * 1.16)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_ylim(body, 0)
    axes.set_xlabel(chart.axis)
    axes.grid(axis="x", color="#e4e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    if chart.reference is not None:
        axes.axvline(chart.reference[0], color="#3b4048", linewidth=1, linestyle=(0, (4, 3)), zorder=1)


def _draw_groups(axes: Axes, section: Section, groups: list[tuple[Entry, list[Series]]], heights: list[float]) -> None:
    """Draw the bars of each group below each other; the reason why there are none of ours stands in their place."""
    top, middles = 0.0, list[float]()
    for (entry, bars), height in zip(groups, heights, strict=True):
        middles.append(top + height / 2)
        places = [top + _GAP / 2 + _BAR * (position + 0.5) for position in range(_places(entry, bars))]
        if entry.reason is not None:
            axes.annotate(
                _brief(entry.reason), (0, places.pop(0)), xycoords=axes.get_yaxis_transform(), xytext=(6, 0),
                textcoords="offset points", va="center", size=8.5, style="italic", color="#5b616b",
                bbox=_BEHIND_TEXT, zorder=2.5,
            )  # fmt: skip
        for place, bar in zip(places, bars, strict=True):
            _draw_bar(axes, entry, bar, place, section.table.chart)
        top += height
    axes.set_yticks(middles, [entry.name for entry, _ in groups])


def _places(entry: Entry, bars: list[Series]) -> int:
    """Return how many lines a group takes."""
    return len(bars) + (entry.reason is not None)


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
        axes.errorbar(
            length, place, xerr=[[max(0.0, length - low)], [max(0.0, high - length)]],
            ecolor="#1f2328", elinewidth=1, capsize=2.5, zorder=3,
        )  # fmt: skip
        end = max(length, high)
    axes.annotate(
        chart.template.format(length), (end, place), xytext=(6, 0), textcoords="offset points", va="center", size=8.5,
        bbox=_BEHIND_TEXT, zorder=2.5,
    )  # fmt: skip


def _legend(figure: Figure, section: Section, top: float) -> None:
    """Name the colours that occur, and the line to compare with, in one line above the bars."""
    chart = section.table.chart
    used = [bar for bar in chart.series if any(bar.number in entry.all_numbers for entry in section.entries)]
    handles: list[Any] = [
        Line2D([], [], marker="o", linestyle="", color=LOOK[bar.role]["edgecolor"], markersize=6.5, label=bar.label)
        if chart.logarithmic
        else Patch(label=bar.label, **LOOK[bar.role])
        for bar in used
    ]
    if chart.reference is not None:
        handles.append(Line2D([], [], color="#3b4048", linewidth=1, linestyle=(0, (4, 3)), label=chart.reference[1]))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.05 / _WIDTH, top), ncols=len(handles), frameon=False,
        handlelength=1.6, columnspacing=1.6, fontsize=9,
    )  # fmt: skip


def _brief(reason: str) -> str:
    return reason if len(reason) <= 70 else f"{reason[:69]}…"
