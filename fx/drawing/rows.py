"""Rows: the layers of operations and the order in each (layered layout after Sugiyama, Tagawa and Toda, 1981).

Each cluster is laid out by itself, as a box in the rows of the cluster around it, so that opening or closing a cluster
moves only the items around it. All steps take time in proportion to the number of edges, except for sorting.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fx.drawing.clusters import Cluster, all_clusters, shared_length

LONGEST_BENT = 6
"""The most rows that an edge spans with a bend in each row between; longer edges run beside the rows, in a lane."""
_SWEEPS = 4
"""The number of sweeps that sort rows by their neighbours, down and up in turn; the best result is kept."""

NODE, CLUSTER, ENTRY, EXIT, BEND = range(5)
"""Kinds of items: a node, a cluster, the entry of a value into a cluster, its exit, and a bend of an edge."""

Edge = tuple[int, int, int]
"""A node, its reader, and a bit for each state of the program that has this edge."""


@dataclass(slots=True)
class Rows:
    """The rows of one cluster."""

    cluster: Cluster
    """The cluster."""
    kinds: list[int] = field(default_factory=list[int])
    """The kind of each item."""
    refs: list[int] = field(default_factory=list[int])
    """The number of its node or cluster; for an entry, exit or bend the number of the node with the value."""
    rows: list[list[int]] = field(default_factory=list[list[int]])
    """Items, from left to right, in rows from top to bottom."""
    links: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    """Edges between neighbouring rows: the two items, the node with the value, and the bits of states."""
    lanes: list[tuple[int, int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int, int]])
    """The same for longer edges and upward edges, with the number of the lane."""

    def used(self, states: int) -> set[int]:
        """Return the items at which edges of these states start or end, or through which they go."""
        items = {item for tail, head, _, there in self.links if there & states for item in (tail, head)}
        items.update(item for tail, head, _, there, _ in self.lanes if there & states for item in (tail, head))
        return items

    @property
    def lane_count(self) -> int:
        """The number of lanes."""
        return 1 + max((lane for *_, lane in self.lanes), default=-1)


_Member = tuple[int, int]
"""An item of a cluster before it has a number: its kind and the number to which it refers."""


def make_rows(root: Cluster, edges: Iterable[Edge], stays_on_top: Callable[[int], bool]) -> list[Rows]:
    """Lay out each cluster in rows.

    Args:
        root: the nodes in clusters.
        edges: the edges between nodes.
        stays_on_top: returns whether a node without inputs stays in the first row, as inputs of a program do; others
            go down to their readers.

    Returns:
        The rows of each cluster, by its number.
    """
    clusters = all_clusters(root)
    local = _edges_by_cluster(clusters, edges)
    return [_rows_of(cluster, local[cluster.number], stays_on_top) for cluster in clusters]


def _edges_by_cluster(
    clusters: Sequence[Cluster], edges: Iterable[Edge]
) -> list[dict[tuple[_Member, _Member, int], int]]:
    """Return the parts of edges inside each cluster, with their bits of states."""
    around: dict[int, tuple[int, ...]] = {clusters[0].number: (clusters[0].number,)}
    home: dict[int, tuple[int, ...]] = {}
    for cluster in clusters:
        chain = around[cluster.number]
        for member in cluster.members:
            if isinstance(member, Cluster):
                around[member.number] = (*chain, member.number)
            else:
                home[member] = chain
    local: list[dict[tuple[_Member, _Member, int], int]] = [{} for _ in clusters]
    for read, reader, states in edges:
        outer, inner = home[read], home[reader]
        shared = shared_length(outer, inner)
        tail: _Member = (NODE, read)
        for number in reversed(outer[shared:]):
            _add(local[number], tail, (EXIT, read), read, states)
            tail = (CLUSTER, number)
        head: _Member = (NODE, reader)
        for number in reversed(inner[shared:]):
            _add(local[number], (ENTRY, read), head, read, states)
            head = (CLUSTER, number)
        _add(local[outer[shared - 1]], tail, head, read, states)
    return local


def _add(edges: dict[tuple[_Member, _Member, int], int], tail: _Member, head: _Member, value: int, states: int) -> None:
    key = (tail, head, value)
    edges[key] = edges.get(key, 0) | states


def _rows_of(
    cluster: Cluster, edges: Mapping[tuple[_Member, _Member, int], int], stays_on_top: Callable[[int], bool]
) -> Rows:
    rows = Rows(cluster)
    number: dict[_Member, int] = {}

    def item(member: _Member) -> int:
        if member not in number:
            number[member] = len(rows.kinds)
            rows.kinds.append(member[0])
            rows.refs.append(member[1])
        return number[member]

    for tail, _, _ in edges:
        if tail[0] == ENTRY:
            item(tail)
    for member in cluster.members:
        item((CLUSTER, member.number) if isinstance(member, Cluster) else (NODE, member))
    for _, head, _ in edges:
        if head[0] == EXIT:
            item(head)
    local = [(item(tail), item(head), value, states) for (tail, head, value), states in edges.items()]
    ranks = _ranks(rows, local, stays_on_top)
    rows.rows = [[] for _ in range(max(ranks, default=-1) + 1)]
    for number_of_item, rank in enumerate(ranks):
        rows.rows[rank].append(number_of_item)
    _route(rows, local, ranks)
    _order(rows)
    return rows


def _ranks(rows: Rows, edges: Sequence[tuple[int, int, int, int]], stays_on_top: Callable[[int], bool]) -> list[int]:
    """Return the row of each item: below its inputs; constants just above their readers.

    Items are numbered in an order in which they can run; edges against it, of nodes that a pass moved, do not count.
    """
    count = len(rows.kinds)
    inputs: list[list[int]] = [[] for _ in range(count)]
    users: list[list[int]] = [[] for _ in range(count)]
    for tail, head, _, _ in edges:
        if tail < head:
            inputs[head].append(tail)
            users[tail].append(head)
    first = 1 if ENTRY in rows.kinds else 0
    ranks = [0] * count
    is_constant = [False] * count
    for item in range(count):
        kind, ref = rows.kinds[item], rows.refs[item]
        if kind == ENTRY:
            continue
        ranks[item] = max((ranks[read] + 1 for read in inputs[item]), default=first)
        is_constant[item] = all(is_constant[read] for read in inputs[item]) and not (kind == NODE and stays_on_top(ref))
    for item in range(count - 1, -1, -1):
        if is_constant[item] and users[item]:
            ranks[item] = min(ranks[user] for user in users[item]) - 1
    last = max((ranks[item] for item in range(count) if rows.kinds[item] != EXIT), default=0)
    for item in range(count):
        if rows.kinds[item] == EXIT:
            ranks[item] = last + 1
    return ranks


def _route(rows: Rows, edges: Sequence[tuple[int, int, int, int]], ranks: Sequence[int]) -> None:
    """Turn short edges into links between neighbouring rows, and long ones into lanes; edges of a value share both."""
    bends: dict[tuple[int, int, int], int] = {}
    links: dict[tuple[int, int, int], int] = {}
    long: list[tuple[int, int, int, int]] = []
    for tail, head, value, states in edges:
        span = ranks[head] - ranks[tail]
        if not 1 <= span <= LONGEST_BENT:
            long.append((tail, head, value, states))
            continue
        above = tail
        for rank in range(ranks[tail] + 1, ranks[head]):
            key = (tail, value, rank)
            if key not in bends:
                bends[key] = len(rows.kinds)
                rows.kinds.append(BEND)
                rows.refs.append(value)
                rows.rows[rank].append(bends[key])
            links[above, bends[key], value] = links.get((above, bends[key], value), 0) | states
            above = bends[key]
        links[above, head, value] = links.get((above, head, value), 0) | states
    rows.links = [(tail, head, value, states) for (tail, head, value), states in links.items()]
    lane_of = _lanes(long, ranks)
    rows.lanes = [(tail, head, value, states, lane_of[tail, value]) for tail, head, value, states in long]


def _lanes(edges: Iterable[tuple[int, int, int, int]], ranks: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return a lane for each value that needs one, so that spans in the same lane do not overlap."""
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for tail, head, value, _ in edges:
        low, high = spans.get((tail, value), (ranks[tail], ranks[tail]))
        spans[tail, value] = min(low, ranks[head]), max(high, ranks[head])
    lanes: dict[tuple[int, int], int] = {}
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for key, (low, high) in sorted(spans.items(), key=lambda span: (span[1], span[0])):
        while busy and busy[0][0] < low:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (high, lane))
        lanes[key] = lane
    return lanes


def _order(layout: Rows) -> None:
    """Sort rows by the mean place of neighbours, down and up in turn; keep the order with the fewest crossings."""
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for tail, head, _, _ in layout.links:
        above.setdefault(head, []).append(tail)
        below.setdefault(tail, []).append(head)
    best, fewest = layout.rows, _crossings(layout.rows, below)
    rows = [list(row) for row in layout.rows]
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        neighbours = above if sweep % 2 == 0 else below
        place = {item: number for row in rows for number, item in enumerate(row)}
        for row in rows if sweep % 2 == 0 else reversed(rows):
            _sort_row(row, neighbours, place)
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    layout.rows = best


def _sort_row(row: list[int], neighbours: Mapping[int, list[int]], place: dict[int, int]) -> None:
    if len(row) > 1:

        def mean_place(item: int) -> float:
            items = neighbours.get(item)
            return sum(place[neighbour] for neighbour in items) / len(items) if items else place[item]

        target = {item: mean_place(item) for item in row}
        row.sort(key=lambda item: (target[item], place[item]))
        place.update((item, number) for number, item in enumerate(row))


def _crossings(rows: Sequence[Sequence[int]], below: Mapping[int, list[int]]) -> int:
    """Return the number of crossings of links."""
    count = 0
    for row, after in itertools.pairwise(rows):
        place = {item: number for number, item in enumerate(after)}
        earlier_heads: list[int] = []
        for item in row:
            heads = sorted(place[head] for head in below.get(item, ()))
            for head in heads:
                count += len(earlier_heads) - bisect_right(earlier_heads, head)
            for head in heads:
                insort(earlier_heads, head)
    return count
