"""The four promises of ``overlap`` on random programs and a simulated network."""

from __future__ import annotations

import copy
import random

import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from fx.passes import OverlapCommunication
from fx.passes.machinery.overlap_limits import live_bytes, sizes_of
from fx.pipelines.rewriting import make_edits
from tests.fx.passes.simulated_network import CHANNELS, Network, programs, run

LIMITS = st.builds(OverlapCommunication, in_flight=st.integers(1, 4), memory=st.sampled_from((1.0, 1.5, 100.0)))


def equal(one, other) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one, other)


def started(network: Network, channel: str) -> list[int]:
    return [number for what, through, number in network.events if (what, through) == ("start", channel)]


@settings(deadline=None)
@given(programs(), LIMITS, st.integers(0, 2**16), st.integers(0, 20))
def test_results_writes_and_random_numbers_are_the_same_whenever_the_network_reads_its_arguments(
    program, pass_, lateness, fuel
):
    expected, plain = run(program)
    changed = copy.deepcopy(program)
    make_edits(pass_, changed, fuel)  # also if it is stopped after some edits
    changed.graph.lint()
    actual, overlapped = run(changed, late=lambda number: bool(lateness >> number & 1))
    assert equal(actual, expected)
    for channel in CHANNELS:
        assert started(overlapped, channel) == started(plain, channel)
    assert overlapped.running == 0
    assert overlapped.most <= pass_.in_flight + 1  # with one that the program waits for at once


@settings(deadline=None)
@given(programs(), LIMITS)
def test_the_schedule_depends_on_the_program_alone_and_nothing_is_left_to_overlap(program, pass_):
    first, other = pass_(copy.deepcopy(program)), pass_(copy.deepcopy(program))
    assert first.code == other.code
    if pass_.memory > 10:  # else the values live now allow more
        assert not make_edits(pass_, first)


@settings(deadline=None)
@given(programs(), LIMITS)
def test_live_memory_stays_below_the_factor_times_the_originals(program, pass_):
    nodes = list(program.graph.nodes)
    original = max(live_bytes(nodes, sizes_of(nodes)).values())
    pass_(program)
    nodes = list(program.graph.nodes)
    sizes = sizes_of(nodes)
    for node in nodes:  # a handle holds its argument, and the result counts from the start on
        if node.target.__class__.__name__ == "function" and node.target.__name__ == "wait":
            sizes[node] = 0
    assert max(live_bytes(nodes, sizes).values()) <= max(pass_.memory * original, original)


@settings(deadline=None)
@given(st.data(), LIMITS, st.integers(0, 2**16))
def test_ranks_that_run_different_programs_with_the_same_calls_never_hang(data, pass_, seed):
    """Collectives match one after the other in each group: each ends when all ranks have started it."""
    calls = data.draw(st.lists(st.sampled_from(CHANNELS), min_size=1, max_size=6))
    ranks = [data.draw(programs(calls)) for _ in range(2)]
    assert_ends([run(pass_(rank))[1].events for rank in ranks], random.Random(seed))


def assert_ends(ranks: list[list[tuple[str, str, int]]], delays: random.Random) -> None:
    """Let ranks go on in an order that is drawn, until all are done."""
    at = [0] * len(ranks)
    begun = [dict.fromkeys(CHANNELS, 0) for _ in ranks]
    place = [{} for _ in ranks]
    while any(step < len(events) for step, events in zip(at, ranks, strict=True)):
        ready = [
            rank
            for rank in range(len(ranks))
            if at[rank] < len(ranks[rank]) and may_go_on(rank, ranks, at, begun, place)
        ]
        assert ready, f"each waits for another one: {[events[step:] for step, events in zip(at, ranks, strict=True)]}"
        rank = delays.choice(ready)
        what, channel, number = ranks[rank][at[rank]]
        if what == "start":
            place[rank][number] = begun[rank][channel]
            begun[rank][channel] += 1
        at[rank] += 1


def may_go_on(rank, ranks, at, begun, place) -> bool:
    what, channel, number = ranks[rank][at[rank]]
    return what == "start" or all(other[channel] > place[rank][number] for other in begun)
