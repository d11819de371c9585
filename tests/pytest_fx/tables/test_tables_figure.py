"""Figures: the same numbers give the same file, and everything in it is said."""

import re
from dataclasses import replace

import pytest

from pytest_fx.tables import Entry, Series
from pytest_fx.tables.documents import Section

pytest.importorskip("matplotlib")
from pytest_fx.tables import figure

ENTRIES = (
    Entry("daisy", {"petals": 33, "petals_low": 31, "petals_high": 36}, {"petals": 34}, None),
    Entry("rose", {}, {}, "not run: no garden"),
)
LONG = (
    Entry("daisy, " * 12, {"petals": 19.5}, {}, None),
    Entry("rose, " * 12, {}, {"petals": 34}, "not run: no garden " * 12),
)
"""Rows whose name and reason take lines, and a number beside the line to compare with."""


@pytest.fixture
def section(petals):
    def section(entries=ENTRIES, **chart):
        table = replace(petals, chart=replace(petals.chart, **chart))
        return Section(table, "Abacus, 2 cores", entries, ())

    return section


def texts(svg):
    return re.findall(r"<!-- (.*?) -->", svg)


def test_the_same_numbers_give_the_same_file_without_a_date(section):
    first = figure.draw(section())
    assert figure.draw(section()) == first
    assert "<dc:date>" not in first and first.startswith("<?xml")


def test_title_machine_axis_series_rows_numbers_and_reasons_are_written(section):
    labels = texts(figure.draw(section(reference=(20.0, "a dozen and a half"))))
    for text in (
        *("Petals by flower", "Abacus, 2 cores", "petals", "here", "the paper", "a dozen and a half"),
        *("daisy", "rose", "33", "34", "not run: no garden"),
    ):
        assert text in labels


def test_ours_and_the_papers_look_different_and_only_ours_has_an_error_bar(section):
    axes = figure._figure(section()).axes[0]
    ours, papers = (container for container in axes.containers if hasattr(container, "patches"))
    assert (ours.patches[0].get_width(), papers.patches[0].get_width()) == (33, 34)
    assert ours.patches[0].get_hatch() is None and papers.patches[0].get_hatch()
    (errors,) = (container for container in axes.containers if not hasattr(container, "patches"))
    (bar,) = errors.lines[2]
    assert bar.get_segments()[0][:, 0].tolist() == [31, 36]


def test_an_interval_much_longer_than_all_bars_is_cut_off_with_a_mark(section):
    wide = Entry("daisy", {"petals": 33, "petals_low": 31, "petals_high": 3600}, {"petals": 34}, None)
    axes = figure._figure(section((wide, *ENTRIES[1:]))).axes[0]
    assert axes.get_xlim()[1] == pytest.approx(34 * 1.5 * 1.16)
    (mark,) = (line for line in axes.lines if line.get_marker() == ">")
    assert mark.get_xdata() == [34 * 1.5]
    marks = [line.get_marker() for line in figure._figure(section()).axes[0].lines]
    assert ">" not in marks


def test_on_a_logarithmic_axis_numbers_are_dots(section):
    axes = figure._figure(section(logarithmic=True)).axes[0]
    assert axes.get_xscale() == "log"
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"] == [33, 34]


def test_only_rows_that_are_requested_are_drawn_if_there_are_any(section):
    assert "rose" not in texts(figure.draw(section(rows="^dai")))
    assert "rose" in texts(figure.draw(section(rows="^tulip")))


def test_one_number_over_another_is_a_point_for_each_row_that_has_both_with_the_diagonal(section):
    across = Series("counted twice", "petals_high", "baseline")
    drawn = figure._figure(section(over=across))
    points = [line for line in drawn.axes[0].lines if line.get_marker() == "o"]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in points if len(line.get_xdata())] == [(36, 34), (36, 33)]
    assert "as counted twice" in [text.get_text() for text in drawn.legends[0].get_texts()]
    assert drawn.axes[0].get_xlim() == drawn.axes[0].get_ylim()


@pytest.mark.parametrize("entries", [ENTRIES, LONG], ids=["short", "long"])
def test_nothing_overlaps_and_nothing_is_cut_off(section, entries):
    drawn = figure._figure(section(entries, reference=(20.0, "a dozen and a half")))
    drawn.canvas.draw()
    (number,) = (text for text in drawn.axes[0].texts if text.get_text() in ("33", "19.5"))
    line = drawn.axes[0].transData.transform((20.0, 0))[0]
    assert not number.get_window_extent().x0 < line < number.get_window_extent().x1
    boxes = [
        text.get_window_extent() for text in (*drawn.axes[0].texts, *drawn.texts, *drawn.axes[0].get_yticklabels())
    ]
    boxes.append(drawn.legends[0].get_window_extent())
    for position, box in enumerate(boxes):
        assert drawn.bbox.contains(box.x0, box.y0) and drawn.bbox.contains(box.x1, box.y1)
        assert not any(box.overlaps(other) for other in boxes[position + 1 :])
