"""fx.drawing.rows and fx.drawing.placement: the places of nodes."""

from __future__ import annotations

import itertools
import sys

import pytest
from drawn_models import random_rows

from fx.drawing.clusters import make_clusters
from fx.drawing.placement import GAP, place_clusters
from fx.drawing.rows import BEND, CLUSTER, ENTRY, EXIT, NODE, make_rows

SEEDS = range(12)


def rank_of(rows):
    return {item: number for number, row in enumerate(rows.rows) for item in row}


@pytest.mark.parametrize("seed", SEEDS)
def test_links_lead_to_the_next_row_and_every_edge_is_drawn(seed):
    all_rows, edges = random_rows(seed)
    reached = set()
    for rows in all_rows:
        rank = rank_of(rows)
        assert sorted(rank) == list(range(len(rows.kinds)))
        assert all(rank[head] == rank[tail] + 1 for tail, head, _, _ in rows.links)
        for tail, head, value, _ in [*rows.links, *(lane[:4] for lane in rows.lanes)]:
            assert rows.kinds[tail] in (NODE, CLUSTER) or rows.refs[tail] == value
            if rows.kinds[head] == NODE:
                reached.add((value, rows.refs[head]))
    assert reached == {(tail, head) for tail, head, _ in edges}


@pytest.mark.parametrize("seed", SEEDS)
def test_lanes_of_different_values_do_not_overlap(seed):
    for rows in random_rows(seed)[0]:
        rank, spans = rank_of(rows), {}
        for tail, head, value, _, lane in rows.lanes:
            low, high = spans.get((lane, tail, value), (rank[tail], rank[tail]))
            spans[lane, tail, value] = min(low, rank[head]), max(high, rank[head])
        for (first, (low, high)), (other, (start, end)) in itertools.combinations(spans.items(), 2):
            assert first[0] != other[0] or high < start or end < low


@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_in_a_row_do_not_overlap_and_clusters_enclose_their_nodes(seed):
    all_rows, _ = random_rows(seed)
    sizes = {node: (30.0 + node % 7 * 10, 20.0 + node % 3) for node in range(60)}
    placed = place_clusters(all_rows, sizes, [100.0 * (number % 2) for number in range(len(all_rows))])
    assert placed.keys() == set(range(len(all_rows)))
    for number, cluster in placed.items():
        assert cluster.width >= 100.0 * (number % 2)
        for row in all_rows[number].rows:
            for left, right in itertools.pairwise(row):
                room = (cluster.sizes[left][0] + cluster.sizes[right][0]) / 2 + GAP
                assert cluster.x[right] - cluster.x[left] >= room - 1e-6
        for item, middle in enumerate(cluster.x):
            half = cluster.sizes[item][0] / 2
            assert middle - half > 0 and middle + half < cluster.width
            assert cluster.top[item] + cluster.sizes[item][1] < cluster.height


def test_constants_are_above_their_readers_and_inputs_on_top():
    root = make_clusters([()] * 5, {}, range(5), [[]] * 5)
    rows = make_rows(root, [(0, 1, 1), (1, 3, 1), (2, 3, 1), (3, 4, 1)], lambda node: node == 0)[0]
    assert [sorted(rows.refs[item] for item in row if rows.kinds[item] == NODE) for row in rows.rows] == [
        [0], [1, 2], [3], [4]
    ]  # fmt: skip


def test_edges_across_the_frame_of_a_cluster_have_a_place_on_it():
    root = make_clusters([(), ("a",), ("a",), ()], {}, range(4), [[], [0], [1], [2]])
    inside = make_rows(root, [(0, 1, 1), (0, 2, 1), (1, 2, 1), (2, 3, 1)], lambda node: node == 0)[1]
    assert [(kind, ref) for kind, ref in zip(inside.kinds, inside.refs, strict=True) if kind in (ENTRY, EXIT)] == [
        (ENTRY, 0), (EXIT, 2)
    ]  # fmt: skip


def test_a_lane_is_free_again_below_its_last_edge():
    root = make_clusters([()] * 41, {}, range(41), [[]] * 41)
    chain = [(node, node + 1, 1) for node in range(40)]
    rows = make_rows(root, [*chain, (0, 10, 1), (10, 20, 1), (25, 35, 1)], lambda node: True)[0]
    assert [(tail, lane) for tail, _, _, _, lane in rows.lanes] == [(0, 0), (10, 1), (25, 0)]


def test_crossings_are_sorted_out():
    edges = [(0, 5, 1), (1, 4, 1), (2, 3, 1)]
    rows = make_rows(make_clusters([()] * 6, {}, range(6), [[]] * 6), edges, lambda node: True)[0]
    place = {rows.refs[item]: number for row in rows.rows for number, item in enumerate(row)}
    assert [place[head] for head in (5, 4, 3)] == [place[tail] for tail in (0, 1, 2)]


def test_a_chain_is_drawn_in_one_line():
    edges = [(node, node + 1, 1) for node in range(9)]
    all_rows = make_rows(make_clusters([()] * 10, {}, range(10), [[]] * 10), edges, lambda node: True)
    placement = place_clusters(all_rows, {node: (40.0 + node, 20.0) for node in range(10)}, [0.0])[0]
    assert max(placement.x) - min(placement.x) < 1e-6
    assert BEND not in all_rows[0].kinds


def test_four_times_the_nodes_take_about_four_times_the_steps():
    def steps(count):
        edges = [(max(0, node - 1 - node % 9 * 40), node, 1) for node in range(1, count)]
        inputs = [[tail] for tail, _, _ in [(0, 0, 0), *edges]]
        paths = [(f"m{node // 50}",) for node in range(count)]
        calls = 0

        def count_calls(frame, event, argument):
            nonlocal calls
            calls += 1

        sys.setprofile(count_calls)
        try:
            all_rows = make_rows(make_clusters(paths, {}, range(count), inputs), edges, lambda node: False)
            place_clusters(all_rows, dict.fromkeys(range(count), (40.0, 20.0)), [0.0] * len(all_rows))
        finally:
            sys.setprofile(None)
        return calls

    assert steps(2000) < 7 * steps(500)  # 16 if each node were visited
