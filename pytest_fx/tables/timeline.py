"""The timeline figure: a panel for each program, a lane for each kind of work, and time in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pytest_fx.tables.documents import Section
from pytest_fx.tables.figure import LOOK, STYLE, as_svg
from pytest_fx.tables.table import Timeline

Event: TypeAlias = tuple[str, float, float]
"""Kind, begin and end."""

_LANE, _GAP, _HEAD, _FOOT, _WIDTH = 0.2, 0.45, 1.05, 0.6, 8.4
"""Inches: height of a lane, space between panels, space above and below all panels, and width of the figure."""


def draw_timeline(section: Section) -> str:
    """Return the timeline of a section as SVG."""
    timeline, drawn = section.table.timeline, section.timeline
    assert timeline is not None  # the caller checks both
    assert drawn is not None
    _, row, programs = drawn
    lanes = {name: place_in_lanes(events, tuple(timeline.kinds)) for name, events in programs.items()}
    with mpl.rc_context(STYLE):
        return as_svg(_figure(section, timeline, row, lanes))


def place_in_lanes(events: Sequence[Event], kinds: Sequence[str]) -> list[tuple[int, Event]]:
    """Return the events with the numbers of their lanes. A kind has a lane for each overlapping event, at least one."""
    placed: list[tuple[int, Event]] = []
    first = 0
    for kind in kinds:
        ends = [0.0]
        for event in sorted((event for event in events if event[0] == kind), key=lambda event: event[1]):
            free = next((lane for lane, end in enumerate(ends) if end <= event[1]), len(ends))
            ends[free:] = [event[2], *ends[free + 1 :]]
            placed.append((first + free, event))
        first += len(ends)
    return placed


def _figure(section: Section, timeline: Timeline, row: str, lanes: dict[str, list[tuple[int, Event]]]) -> Figure:
    counts = {name: max((lane for lane, _ in placed), default=0) + 1 for name, placed in lanes.items()}
    height = _HEAD + _FOOT + sum(count * _LANE + _GAP for count in counts.values())
    longest = max(end for placed in lanes.values() for _, (_, _, end) in placed)
    figure = Figure(figsize=(_WIDTH, height))
    figure.text(0.15 / _WIDTH, 1 - 0.2 / height, timeline.title, size=12.5, weight="bold", va="top")
    figure.text(0.15 / _WIDTH, 1 - 0.45 / height, f"{row}; {section.machine}", size=9, color="#5b616b", va="top")
    top = height - _HEAD
    axes: Axes | None = None
    for name, placed in lanes.items():
        body = counts[name] * _LANE
        axes = figure.add_axes((0.8 / _WIDTH, (top - body) / height, (_WIDTH - 1.1) / _WIDTH, body / height))
        _draw_panel(axes, timeline, name, placed, longest, counts[name])
        top -= body + _GAP
    if axes is not None:
        axes.set_xlabel("milliseconds")
    figure.legend(
        handles=[Patch(label=kind, **LOOK[role]) for kind, role in timeline.kinds.items()],
        loc="upper left", bbox_to_anchor=(0.05 / _WIDTH, 1 - 0.62 / height), ncols=len(timeline.kinds), frameon=False,
        fontsize=9,
    )  # fmt: skip
    return figure


def _draw_panel(
    axes: Axes, timeline: Timeline, name: str, placed: list[tuple[int, Event]], longest: float, lanes: int
) -> None:
    for lane, (kind, begin, end) in placed:
        axes.barh(lane, end - begin, left=begin, height=0.8, linewidth=0.6, **LOOK[timeline.kinds[kind]])
    axes.set_xlim(0, longest * 1.02)
    axes.set_ylim(lanes - 0.5, -0.5)
    axes.set_yticks([(lanes - 1) / 2], [name])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#e4e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
