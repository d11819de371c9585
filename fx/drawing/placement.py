"""Placement: where the items of rows stand, in points (isotonic regression, by pooling adjacent violators).

The same is written in JavaScript (``page/placement.js``) for modules that a reader opens and closes; a test holds the
two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fx.drawing.rows import BEND, CLUSTER, ENTRY, EXIT, NODE, Rows

GAP, ROW_GAP, LANE, PADDING, TITLE = 16.0, 30.0, 10.0, 12.0, 18.0
"""Room between neighbours of a row, between rows, between lanes, around the rows of a cluster, and for its title."""
_SWEEPS = 5
"""How often rows are moved toward their neighbours, downwards and upwards in turn; the last goes down, as one reads."""

Size = tuple[float, float]
"""Width and height."""


@dataclass(slots=True)
class Placed:
    """Where the items of one cluster stand."""

    width: float = 0.0
    """Its width."""
    height: float = 0.0
    """Its height."""
    x: dict[int, float] = field(default_factory=dict[int, float])
    """The middle of each item, from the left side of the cluster."""
    top: list[float] = field(default_factory=list[float])
    """Where each row begins, from the top of the cluster."""
    bottom: list[float] = field(default_factory=list[float])
    """Where each row ends."""
    row: dict[int, int] = field(default_factory=dict[int, int])
    """The row of each item."""
    sizes: dict[int, Size] = field(default_factory=dict[int, Size])
    """The size of each item."""
    lane: float = 0.0
    """Where the first lane is."""
    ports: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])
    """For each entry and exit, by its kind and value, its place from the middle of the cluster."""


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
        node_size: the size of a node; None for one that is not there.
        box_size: the size of a cluster that is closed; None for an open one.
        title_width: how wide the title of a cluster is.
        states: bits of the states of the program that are placed together.

    Returns:
        The places in each open cluster in which something is, by its number.
    """
    placed: dict[int, Placed] = {}
    for number in range(len(all_rows) - 1, -1, -1):
        if box_size(number) is None:
            found = _place(all_rows[number], node_size, box_size, placed, states)
            if found is not None:
                _widen(found, title_width(number))
                placed[number] = found
    return placed


def _widen(made: Placed, width: float) -> None:
    """Let a cluster be as wide as its title."""
    more = (width - made.width) / 2
    if more > 0:
        made.width = width
        made.lane += more
        for item in made.x:
            made.x[item] += more


def _place(
    rows: Rows,
    node_size: Callable[[int], Size | None],
    box_size: Callable[[int], Size | None],
    placed: Mapping[int, Placed],
    states: int,
) -> Placed | None:
    made = Placed()
    shown: list[list[int]] = []
    used = rows.used(states)
    there = False
    for row in rows.rows:
        items: list[int] = []
        for item in row:
            kind, ref = rows.kinds[item], rows.refs[item]
            # What is neither node nor cluster is where an edge passes, as wide as it takes to tell edges apart.
            size: Size | None = (8.0, 0.0) if item in used else None
            if kind == NODE:
                size = node_size(ref)
            elif kind == CLUSTER:
                size = (placed[ref].width, placed[ref].height) if ref in placed else box_size(ref)
            if size is not None:
                made.sizes[item] = size
                items.append(item)
                there = there or kind in (NODE, CLUSTER)
        shown.append(items)
    if not there:
        return None
    y = PADDING + (TITLE if rows.cluster.number else 0.0)
    for number, items in enumerate(shown):
        height = max((made.sizes[item][1] for item in items), default=0.0)
        made.top.append(y)
        made.bottom.append(y + height)
        y += height + (ROW_GAP if items else 0.0)
        for item in items:
            made.row[item] = number
    made.height = y - ROW_GAP + PADDING
    _place_across(rows, shown, made, placed, states)
    return made


def _place_across(
    rows: Rows, shown: Sequence[list[int]], made: Placed, placed: Mapping[int, Placed], states: int
) -> None:
    above: dict[int, list[tuple[int, float, float]]] = {}
    below: dict[int, list[tuple[int, float, float]]] = {}
    fed = {edge[1] for edge in (*rows.links, *rows.lanes) if edge[3] & states}
    for tail, head, value, there in rows.links:
        if there & states and tail in made.sizes and head in made.sizes:
            # what reads constants stands below its other inputs, and they stand aside
            weight = 1.0 if tail in fed or rows.kinds[tail] == ENTRY else 0.1
            weight *= 4.0 if rows.kinds[tail] == rows.kinds[head] == BEND else 1.0
            shift = port(rows, placed, tail, EXIT, value) - port(rows, placed, head, ENTRY, value)
            above.setdefault(head, []).append((tail, shift, weight))
            below.setdefault(tail, []).append((head, -shift, weight))
    x = made.x
    for items in shown:
        right = 0.0
        for item in items:
            x[item] = right + made.sizes[item][0] / 2
            right += made.sizes[item][0] + GAP
        for item in items:
            x[item] -= (right - GAP) / 2
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for items in shown if sweep % 2 == 0 else reversed(shown):
            _place_row(items, x, made.sizes, neighbours)
    left = min(x[item] - made.sizes[item][0] / 2 for item in x)
    right = max(x[item] + made.sizes[item][0] / 2 for item in x)
    for item in x:
        x[item] += PADDING - left
    made.lane = right - left + PADDING + LANE
    made.width = right - left + 2 * PADDING + LANE * rows.lane_count
    for item in x:
        if rows.kinds[item] in (ENTRY, EXIT):
            made.ports[rows.kinds[item], rows.refs[item]] = x[item] - made.width / 2


def port(rows: Rows, placed: Mapping[int, Placed], item: int, kind: int, value: int) -> float:
    """Return how far from the middle of an item the edge of a value begins (an exit) or ends (an entry)."""
    if rows.kinds[item] != CLUSTER or rows.refs[item] not in placed:
        return 0.0
    return placed[rows.refs[item]].ports.get((kind, value), 0.0)


def _place_row(
    items: Sequence[int],
    x: dict[int, float],
    sizes: Mapping[int, Size],
    neighbours: Mapping[int, Sequence[tuple[int, float, float]]],
) -> None:
    """Move the items of a row as near to the middle of their neighbours as their order and sizes let them."""
    blocks: list[list[float]] = []  # mean, weight, number of items
    offsets: list[float] = []
    offset = 0.0
    for number, item in enumerate(items):
        if number:
            offset += (sizes[items[number - 1]][0] + sizes[item][0]) / 2 + GAP
        offsets.append(offset)
        total = 0.0
        wanted = 0.0
        for other, shift, weight in neighbours.get(item, ()):
            total += weight
            wanted += (x[other] + shift) * weight
        if total:
            wanted /= total
        else:
            wanted, total = x[item], 0.05
        blocks.append([wanted - offset, total, 1.0])
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
