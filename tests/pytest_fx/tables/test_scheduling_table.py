"""The table of scheduling: small models are measured against their own server, and no process is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

import fx
from pytest_fx.processes.child import ChildEnded
from pytest_fx.tables import NotRun, Scale, get_table, parameter_server
from pytest_fx.tables.rows import scheduling

if (why := parameter_server.unavailable()) is not None:
    pytest.skip(why, allow_module_level=True)

SMALL = "3 tables of 30 rows, bottom 16"


def rows():
    return {row.name: row for row in get_table("scheduling").rows(Scale(size="small", rounds=2))}


def processes_of_this_one():
    """Return the processes that it or one of its children has started, including zombies."""
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


def runs(process):
    """Return whether a process is there and has not ended; who adopts it may reap it later."""
    status = Path(f"/proc/{process}/status")
    try:
        return "(zombie)" not in status.read_text()
    except OSError:
        return False


def test_a_small_model_fetches_the_same_and_is_timed_before_and_after_the_pass():
    row = rows()[SMALL]
    values = row.measure()
    numbers = get_table("scheduling").numbers(values)
    assert row.timed
    assert [len(values[name]) for name in ("before", "after", "work", "fetches")] == [2] * 4
    assert (numbers["same"], numbers["moved"], numbers["fetches_count"]) == (32, 3, 3)
    assert numbers["over_ideal_low"] <= numbers["over_ideal"] <= numbers["over_ideal_high"]
    assert numbers["before_queries"] > 0


@pytest.mark.parametrize(
    "order, seconds",
    [
        ("fetch fetch work", 16.0),  # 5 + 5 + 6
        ("start start work wait wait", 7.0),  # the second is served at 7, when the work is done
        ("start work wait start wait", 11.0),
        ("start start wait wait work", 13.0),
    ],
)
def test_a_query_is_estimated_from_one_fetch_and_those_of_a_busy_server(order, seconds):
    graph, begun, done = fx.Graph(), [], []
    for word in order.split():
        if word == "work":
            done.append(graph.call_function(torch.relu, (), name="relu"))
        elif word == "fetch":
            done.append(graph.call_function(parameter_server.fetch, ()))
        elif word == "start":
            begun.append(graph.call_function(parameter_server.start_fetch, ()))
        else:
            done.append(graph.call_function(parameter_server.wait_for_vectors, (begun.pop(0),)))
    graph.output(done)
    times = scheduling.FetchTimes(alone=5.0, served=2.0)
    assert times.of(fx.GraphModule({}, graph), {"relu": 6.0}) == seconds


def test_one_query_is_watched_before_and_after_for_the_timeline():
    timeline = rows()[SMALL].measure()["timeline"]
    for events in timeline.values():
        assert [kind for kind, _, _ in events].count("fetch") == 3
        assert all(0 <= begin <= end for _, begin, end in events)
    fetches = {name: [event for event in events if event[0] == "fetch"] for name, events in timeline.items()}
    (_, _, first_ends), (_, second_begins, _), _ = fetches["before"]
    assert second_begins >= first_ends
    (_, _, first_ends), (_, second_begins, _), _ = fetches["after"]
    assert second_begins < first_ends


def test_fewer_fetches_in_flight_are_requested_by_the_row():
    numbers = get_table("scheduling").numbers(rows()[f"{SMALL}, 2 in flight"].measure())
    assert (numbers["moved"], numbers["fetches_count"]) == (2, 3)


def test_without_rpc_the_reason_is_in_the_row(monkeypatch):
    monkeypatch.setattr(parameter_server.rpc, "is_available", lambda: False)
    with pytest.raises(NotRun, match=r"^not run: this build of torch has no torch\.distributed\.rpc$"):
        rows()[SMALL].measure()


def test_a_measurement_that_fails_or_hangs_leaves_no_process(monkeypatch, tmp_path):
    before = processes_of_this_one()
    noted = tmp_path / "server"

    def fails(*args):
        raise ValueError("no time")

    def hangs(*args):
        noted.write_text(str(processes_of_this_one()[0]))
        signal.pause()

    monkeypatch.setattr(scheduling, "_time", fails)
    with pytest.raises(ChildEnded, match="status 1"):
        rows()[SMALL].measure()
    monkeypatch.setattr(scheduling, "_time", hangs)
    for limit in (2.0, 8.0, 32.0):  # on a loaded machine the client takes seconds until it measures
        monkeypatch.setattr(scheduling, "_LIMIT", limit)
        with pytest.raises(ChildEnded, match=f"longer than {limit:g} s"):
            rows()[SMALL].measure()
        assert processes_of_this_one() == before
        if noted.exists():
            break
    until = time.monotonic() + 20
    while runs(int(noted.read_text())):
        assert time.monotonic() < until
        time.sleep(0.02)
