"""Placement: the coordinates of the items of rows, in points (isotonic regression, by pooling adjacent violators)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fx.drawing.rows import BEND, CLUSTER, ENTRY, EXIT, NODE, Rows

GAP, ROW_GAP, LANE, PADDING, TITLE = 16.0, 30.0, 10.0, 12.0, 18.0
"""Room between neighbours of a row, between rows, between lanes, around the rows of a cluster, and for its title."""
_SWEEPS = 5
"""The number of sweeps that move rows toward their neighbours, down and up in turn; the last goes down."""

Size = tuple[float, float]
"""Width and height."""
_Neighbours = Mapping[int, Sequence[tuple[int, float, float]]]
"""For each item, its neighbours in the rows above or below, each with a shift and a weight."""


@dataclass(slots=True)
class Placed:
    """The coordinates of the items of one cluster."""

    sizes: list[Size]
    """The size of each item."""
    x: list[float]
    """The middle of each item, from the left side of the cluster."""
    top: list[float]
    """The upper end of each item, from the top of the cluster."""
    bottom: list[float]
    """The lower end of the row of each item."""
    width: float = 0.0
    """Its width."""
    height: float = 0.0
    """Its height."""
    lane: float = 0.0
    """The place of the first lane."""
    ports: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """The distance of each entry and exit, by its kind and value, from the middle of the cluster."""


def place_clusters(
    all_rows: Sequence[Rows], node_sizes: Mapping[int, Size], least_widths: Sequence[float]
) -> dict[int, Placed]:
    """Place the items of every cluster.

    Args:
        all_rows: the rows of each cluster, outer ones first.
        node_sizes: the size of each node.
        least_widths: the least width of each cluster: that of its title.

    Returns:
        The coordinates in each cluster, by its number.
    """
    placed: dict[int, Placed] = {}
    sizes: dict[int, Size] = {}
    for number in range(len(all_rows) - 1, -1, -1):
        cluster = place_cluster(all_rows[number], node_sizes, sizes, least_widths[number], placed)
        placed[number], sizes[number] = cluster, (cluster.width, cluster.height)
    return placed


def place_cluster(
    rows: Rows,
    node_sizes: Mapping[int, Size],
    cluster_sizes: Mapping[int, Size],
    least_width: float,
    placed: Mapping[int, Placed],
) -> Placed:
    """Place the items of one cluster.

    Edges lead to the entries of the clusters in it that are ``placed``, and to the middle of others.
    """
    sizes_of = {NODE: node_sizes, CLUSTER: cluster_sizes}
    items = zip(rows.kinds, rows.refs, strict=True)
    # at other items an edge passes; they are wide enough to distinguish edges
    sizes = [sizes_of[kind][ref] if kind in sizes_of else (8.0, 0.0) for kind, ref in items]
    x, top, bottom = ([0.0] * len(sizes) for _ in range(3))
    y = PADDING + (TITLE if rows.cluster.number else 0.0)
    for row in rows.rows:
        end = y + max((sizes[item][1] for item in row), default=0.0)
        for item in row:
            top[item], bottom[item] = y, end
        y = end + (ROW_GAP if row else 0.0)
    cluster = Placed(sizes, x, top, bottom, height=max(y - ROW_GAP, PADDING) + PADDING)
    _place_across(rows, cluster, placed, least_width)
    return cluster


def _place_across(rows: Rows, cluster: Placed, placed: Mapping[int, Placed], least_width: float) -> None:
    """Place the items of each row beside each other, near to their neighbours in other rows."""
    above: dict[int, list[tuple[int, float, float]]] = {}
    below: dict[int, list[tuple[int, float, float]]] = {}
    fed = {edge[1] for edge in (*rows.links, *rows.lanes)}
    for tail, head, value, _ in rows.links:
        # a reader of constants is placed below its other inputs, and the constants beside it
        weight = 1.0 if tail in fed or rows.kinds[tail] == ENTRY else 0.1
        weight *= 4.0 if rows.kinds[tail] == rows.kinds[head] == BEND else 1.0
        shift = port(rows, placed, tail, EXIT, value) - port(rows, placed, head, ENTRY, value)
        above.setdefault(head, []).append((tail, shift, weight))
        below.setdefault(tail, []).append((head, -shift, weight))
    x, widths = cluster.x, [size[0] for size in cluster.sizes]
    for items in rows.rows:
        start = -sum(widths[item] + GAP for item in items) / 2 + GAP / 2
        for item in items:
            x[item] = start + widths[item] / 2
            start += widths[item] + GAP
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for items in rows.rows if sweep % 2 == 0 else reversed(rows.rows):
            _place_row(items, x, widths, neighbours)
    leftmost = min((middle - width / 2 for middle, width in zip(x, widths, strict=True)), default=0.0)
    inner = max((middle + width / 2 for middle, width in zip(x, widths, strict=True)), default=0.0) - leftmost
    width = inner + 2 * PADDING + LANE * rows.lane_count
    first = PADDING + max(least_width - width, 0.0) / 2
    cluster.width = max(width, least_width)
    cluster.lane = first + inner + LANE
    cluster.x = [middle - leftmost + first for middle in x]
    for middle, kind, ref in zip(cluster.x, rows.kinds, rows.refs, strict=True):
        if kind in (ENTRY, EXIT):
            cluster.ports[kind, ref] = middle - cluster.width / 2


def port(rows: Rows, placed: Mapping[int, Placed], item: int, kind: int, value: int) -> float:
    """Return the distance from the middle of an item at which the edge of a value starts (exit) or ends (entry)."""
    is_open = rows.kinds[item] == CLUSTER and rows.refs[item] in placed
    return placed[rows.refs[item]].ports.get((kind, value), 0.0) if is_open else 0.0


def _place_row(items: Sequence[int], x: list[float], widths: Sequence[float], neighbours: _Neighbours) -> None:
    """Move the items of a row as near to the middle of their neighbours as their order and widths allow."""
    blocks: list[list[float]] = []  # mean, weight, number of items
    offsets: list[float] = []
    offset = 0.0
    for number, item in enumerate(items):
        if number:
            offset += (widths[items[number - 1]] + widths[item]) / 2 + GAP
        offsets.append(offset)
        total = 0.0
        target = 0.0
        for other, shift, weight in neighbours.get(item, ()):
            total += weight
            target += (x[other] + shift) * weight
        if total:
            target /= total
        else:
            target, total = x[item], 0.05
        blocks.append([target - offset, total, 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, weight, count = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * weight) / (last[1] + weight)
            last[1] += weight
            last[2] += count
    number = 0
    for mean, _, count in blocks:
        for _ in range(int(count)):
            x[items[number]] = mean + offsets[number]
            number += 1
