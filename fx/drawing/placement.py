"""Placement: the coordinates of the items of rows, in points (isotonic regression, by pooling adjacent violators).

``page/placement.js`` has the same algorithm in JavaScript, for modules that a reader opens and closes; a test compares
the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fx.drawing.rows import BEND, CLUSTER, ENTRY, EXIT, NODE, Rows

GAP, ROW_GAP, LANE, PADDING, TITLE = 16.0, 30.0, 10.0, 12.0, 18.0
"""Room between neighbours of a row, between rows, between lanes, around the rows of a cluster, and for its title."""
_SWEEPS = 5
"""The number of sweeps that move rows toward their neighbours, down and up in turn; the last goes down."""

Size = tuple[float, float]
"""Width and height."""


@dataclass(slots=True)
class Placed:
    """The coordinates of the items of one cluster."""

    width: float = 0.0
    """Its width."""
    height: float = 0.0
    """Its height."""
    x: dict[int, float] = field(default_factory=dict[int, float])
    """The middle of each item, from the left side of the cluster."""
    top: list[float] = field(default_factory=list[float])
    """The upper end of each row, from the top of the cluster."""
    bottom: list[float] = field(default_factory=list[float])
    """The lower end of each row."""
    row: dict[int, int] = field(default_factory=dict[int, int])
    """The row of each item."""
    sizes: dict[int, Size] = field(default_factory=dict[int, Size])
    """The size of each item."""
    lane: float = 0.0
    """The place of the first lane."""
    ports: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """The distance of each entry and exit, by its kind and value, from the middle of the cluster."""


def place_clusters(
    all_rows: Sequence[Rows],
    node_size: Callable[[int], Size | None],
    box_size: Callable[[int], Size | None],
    title_width: Callable[[int], float],
    states: int = 1,
) -> dict[int, Placed]:
    """Place the items of every open cluster.

    Args:
        all_rows: the rows of each cluster, outer ones first.
        node_size: the size of a node; None for a node that is not there.
        box_size: the size of a closed cluster; None for an open one.
        title_width: the width of the title of a cluster.
        states: bits of the states of the program to place together.

    Returns:
        The coordinates in each open cluster that is not empty, by its number.
    """
    placed: dict[int, Placed] = {}
    for number in range(len(all_rows) - 1, -1, -1):
        if box_size(number) is None:
            cluster = _place(all_rows[number], node_size, box_size, placed, states)
            if cluster is not None:
                _widen(cluster, title_width(number))
                placed[number] = cluster
    return placed


def _widen(cluster: Placed, width: float) -> None:
    """Widen a cluster to the width of its title."""
    more = (width - cluster.width) / 2
    if more > 0:
        cluster.width = width
        cluster.lane += more
        for item in cluster.x:
            cluster.x[item] += more


def _place(
    rows: Rows,
    node_size: Callable[[int], Size | None],
    box_size: Callable[[int], Size | None],
    placed: Mapping[int, Placed],
    states: int,
) -> Placed | None:
    cluster = Placed()
    visible_rows: list[list[int]] = []
    used = rows.used(states)
    there = False
    for row in rows.rows:
        items: list[int] = []
        for item in row:
            kind, ref = rows.kinds[item], rows.refs[item]
            # Other items than nodes and clusters are places where an edge passes, wide enough to distinguish edges.
            size: Size | None = (8.0, 0.0) if item in used else None
            if kind == NODE:
                size = node_size(ref)
            elif kind == CLUSTER:
                size = (placed[ref].width, placed[ref].height) if ref in placed else box_size(ref)
            if size is not None:
                cluster.sizes[item] = size
                items.append(item)
                there = there or kind in (NODE, CLUSTER)
        visible_rows.append(items)
    if not there:
        return None
    y = PADDING + (TITLE if rows.cluster.number else 0.0)
    for number, items in enumerate(visible_rows):
        height = max((cluster.sizes[item][1] for item in items), default=0.0)
        cluster.top.append(y)
        cluster.bottom.append(y + height)
        y += height + (ROW_GAP if items else 0.0)
        for item in items:
            cluster.row[item] = number
    cluster.height = y - ROW_GAP + PADDING
    _place_across(rows, visible_rows, cluster, placed, states)
    return cluster


def _place_across(
    rows: Rows, visible_rows: Sequence[list[int]], cluster: Placed, placed: Mapping[int, Placed], states: int
) -> None:
    above: dict[int, list[tuple[int, float, float]]] = {}
    below: dict[int, list[tuple[int, float, float]]] = {}
    fed = {edge[1] for edge in (*rows.links, *rows.lanes) if edge[3] & states}
    for tail, head, value, there in rows.links:
        if there & states and tail in cluster.sizes and head in cluster.sizes:
            # a reader of constants is placed below its other inputs, and the constants beside it
            weight = 1.0 if tail in fed or rows.kinds[tail] == ENTRY else 0.1
            weight *= 4.0 if rows.kinds[tail] == rows.kinds[head] == BEND else 1.0
            shift = port(rows, placed, tail, EXIT, value) - port(rows, placed, head, ENTRY, value)
            above.setdefault(head, []).append((tail, shift, weight))
            below.setdefault(tail, []).append((head, -shift, weight))
    x = cluster.x
    for items in visible_rows:
        rightmost = 0.0
        for item in items:
            x[item] = rightmost + cluster.sizes[item][0] / 2
            rightmost += cluster.sizes[item][0] + GAP
        for item in items:
            x[item] -= (rightmost - GAP) / 2
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for items in visible_rows if sweep % 2 == 0 else reversed(visible_rows):
            _place_row(items, x, cluster.sizes, neighbours)
    leftmost = min(x[item] - cluster.sizes[item][0] / 2 for item in x)
    rightmost = max(x[item] + cluster.sizes[item][0] / 2 for item in x)
    for item in x:
        x[item] += PADDING - leftmost
    cluster.lane = rightmost - leftmost + PADDING + LANE
    cluster.width = rightmost - leftmost + 2 * PADDING + LANE * rows.lane_count
    for item in x:
        if rows.kinds[item] in (ENTRY, EXIT):
            cluster.ports[rows.kinds[item], rows.refs[item]] = x[item] - cluster.width / 2


def port(rows: Rows, placed: Mapping[int, Placed], item: int, kind: int, value: int) -> float:
    """Return the distance from the middle of an item at which the edge of a value starts (exit) or ends (entry)."""
    if rows.kinds[item] != CLUSTER or rows.refs[item] not in placed:
        return 0.0
    return placed[rows.refs[item]].ports.get((kind, value), 0.0)


def _place_row(
    items: Sequence[int],
    x: dict[int, float],
    sizes: Mapping[int, Size],
    neighbours: Mapping[int, Sequence[tuple[int, float, float]]],
) -> None:
    """Move the items of a row as near to the middle of their neighbours as their order and sizes allow."""
    blocks: list[list[float]] = []  # mean, weight, number of items
    offsets: list[float] = []
    offset = 0.0
    for number, item in enumerate(items):
        if number:
            offset += (sizes[items[number - 1]][0] + sizes[item][0]) / 2 + GAP
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
