"""Timelines of calls."""

from dataclasses import replace

import pytest

from pytest_fx.tables import Timeline
from pytest_fx.tables.documents import read_sections, write_documents

pytest.importorskip("matplotlib")
from pytest_fx.tables import timeline


def test_a_timeline_is_drawn_of_the_first_row_that_has_one_and_shown(petals, register, write, tmp_path):
    chart = Timeline("When petals fall", ("rose", "daisy"), {"work": "ours", "fetch": "paper"})
    register(replace(petals, timeline=chart, numbers=lambda values: {"petals": values["petals"]}))

    def documents(figures=()):
        return write_documents(read_sections(tmp_path), frozenset(figures))

    events = {"before": [["work", 0.0, 2.0], ["fetch", 2.0, 3.5]], "after": [["fetch", 0.0, 1.5], ["work", 0.1, 2.0]]}
    write("rose", {"petals": 5, "timeline": {"before": [["work", 0.0]]}})
    write("daisy", {"petals": 34, "timeline": events})
    name = "petals-timeline-abacus-2-cores.svg"
    assert name not in documents()["petals.md"]
    assert f"![When petals fall: daisy]({name})" in documents([name])["petals.md"]
    (section,) = read_sections(tmp_path)["petals"]
    assert section.timeline == (name, "daisy", events)
    drawn = timeline.draw_timeline(section)
    assert drawn == timeline.draw_timeline(section)
    for text in ("When petals fall", "daisy; Abacus, 2 cores", "before", "after", "milliseconds", "work", "fetch"):
        assert f"<!-- {text} -->" in drawn


def test_events_that_overlap_have_lanes_of_their_own():
    events = [("fetch", 0.0, 2.0), ("fetch", 1.0, 3.0), ("fetch", 2.0, 4.0), ("work", 0.0, 4.0)]
    placed = timeline.place_in_lanes(events, ("work", "fetch"))
    assert [lane for lane, _ in placed] == [0, 1, 2, 1]
