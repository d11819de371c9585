"""Rows: which operations stand below which, and in which order (layered layout after Sugiyama, Tagawa and Toda, 1981).

Each cluster is laid out by itself, as a box in the rows of the cluster around it, so that opening or closing one moves
only what is around it. All steps take time in proportion to the edges, but for sorting.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fx.drawing.clusters import Cluster, all_clusters, shared_length

LONGEST_BENT = 6
"""Edges over more rows than these run beside the rows, in a lane; others get a bend in each row between."""
_SWEEPS = 4
"""How often rows are sorted by their neighbours, downwards and upwards in turn; the best of them is kept."""

NODE, CLUSTER, ENTRY, EXIT, BEND = range(5)
"""Kinds of items: a node, a cluster, where a value comes into a cluster or leaves it, and a bend of an edge."""

Edge = tuple[int, int, int]
"""The node that is read, the node that reads it, and a bit for each state of the program in which it does."""


@dataclass(slots=True)
class Rows:
    """The rows of one cluster."""

    cluster: Cluster
    """The cluster."""
    kinds: list[int] = field(default_factory=list[int])
    """The kind of each item."""
    refs: list[int] = field(default_factory=list[int])
    """The number of its node or cluster; of an entry, exit or bend that of the node whose value it is for."""
    rows: list[list[int]] = field(default_factory=list[list[int]])
    """Items, from left to right, in rows from top to bottom."""
    links: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    """From an item to one of the next row: both, the node whose value it is, and its bits of states."""
    lanes: list[tuple[int, int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int, int]])
    """The same for longer edges, and edges upward, with the number of the lane."""

    def used(self, states: int) -> set[int]:
        """The items that edges of some states begin or end at, or go through."""
        found = {item for tail, head, _, there in self.links if there & states for item in (tail, head)}
        found.update(item for tail, head, _, there, _ in self.lanes if there & states for item in (tail, head))
        return found

    @property
    def lane_count(self) -> int:
        """Return how many lanes there are."""
        return 1 + max((lane for *_, lane in self.lanes), default=-1)


_Member = tuple[int, int]
"""An item of a cluster before it has a number: its kind and the number it refers to."""


def make_rows(root: Cluster, edges: Iterable[Edge], stays_on_top: Callable[[int], bool]) -> list[Rows]:
    """Lay out each cluster in rows.

    Args:
        root: the nodes in clusters.
        edges: which node reads which.
        stays_on_top: whether a node without inputs stays in the first row, as inputs of a program do; others go down
            to what reads them.

    Returns:
        The rows of each cluster, by its number.
    """
    clusters = all_clusters(root)
    local = _edges_by_cluster(clusters, edges)
    return [_rows_of(cluster, local[cluster.number], stays_on_top) for cluster in clusters]


def _edges_by_cluster(
    clusters: Sequence[Cluster], edges: Iterable[Edge]
) -> list[dict[tuple[_Member, _Member, int], int]]:
    """The parts of edges that are inside each cluster, with their bits of states."""
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
    made = Rows(cluster)
    number: dict[_Member, int] = {}

    def item(member: _Member) -> int:
        if member not in number:
            number[member] = len(made.kinds)
            made.kinds.append(member[0])
            made.refs.append(member[1])
        return number[member]

    for tail, _, _ in edges:
        if tail[0] == ENTRY:
            item(tail)
    for one in cluster.members:
        item((CLUSTER, one.number) if isinstance(one, Cluster) else (NODE, one))
    for _, head, _ in edges:
        if head[0] == EXIT:
            item(head)
    local = [(item(tail), item(head), value, states) for (tail, head, value), states in edges.items()]
    ranks = _ranks(made, local, stays_on_top)
    made.rows = [[] for _ in range(max(ranks, default=-1) + 1)]
    for one, rank in enumerate(ranks):
        made.rows[rank].append(one)
    _route(made, local, ranks)
    _order(made)
    return made


def _ranks(made: Rows, edges: Sequence[tuple[int, int, int, int]], stays_on_top: Callable[[int], bool]) -> list[int]:
    """The row of each item: below all that it reads, and constants just above what reads them.

    Items are numbered in an order in which they can run; edges against it, of nodes that a pass moved, do not count.
    """
    count = len(made.kinds)
    inputs: list[list[int]] = [[] for _ in range(count)]
    users: list[list[int]] = [[] for _ in range(count)]
    for tail, head, _, _ in edges:
        if tail < head:
            inputs[head].append(tail)
            users[tail].append(head)
    first = 1 if ENTRY in made.kinds else 0
    ranks = [0] * count
    is_constant = [False] * count
    for one in range(count):
        kind, ref = made.kinds[one], made.refs[one]
        if kind == ENTRY:
            continue
        ranks[one] = max((ranks[read] + 1 for read in inputs[one]), default=first)
        is_constant[one] = all(is_constant[read] for read in inputs[one]) and not (kind == NODE and stays_on_top(ref))
    for one in range(count - 1, -1, -1):
        if is_constant[one] and users[one]:
            ranks[one] = min(ranks[user] for user in users[one]) - 1
    last = max((ranks[one] for one in range(count) if made.kinds[one] != EXIT), default=0)
    for one in range(count):
        if made.kinds[one] == EXIT:
            ranks[one] = last + 1
    return ranks


def _route(made: Rows, edges: Sequence[tuple[int, int, int, int]], ranks: Sequence[int]) -> None:
    """Make links between neighbouring rows of short edges, and lanes of long ones; edges of one value share both."""
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
                bends[key] = len(made.kinds)
                made.kinds.append(BEND)
                made.refs.append(value)
                made.rows[rank].append(bends[key])
            links[above, bends[key], value] = links.get((above, bends[key], value), 0) | states
            above = bends[key]
        links[above, head, value] = links.get((above, head, value), 0) | states
    made.links = [(tail, head, value, states) for (tail, head, value), states in links.items()]
    lane_of = _lanes(long, ranks)
    made.lanes = [(tail, head, value, states, lane_of[tail, value]) for tail, head, value, states in long]


def _lanes(edges: Iterable[tuple[int, int, int, int]], ranks: Sequence[int]) -> dict[tuple[int, int], int]:
    """A lane for each value that takes one, none of them with two values beside each other."""
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


def _order(made: Rows) -> None:
    """Sort rows by the mean place of neighbours, down and up again; keep the order with the fewest crossings."""
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for tail, head, _, _ in made.links:
        above.setdefault(head, []).append(tail)
        below.setdefault(tail, []).append(head)
    best, fewest = made.rows, _crossings(made.rows, below)
    rows = [list(row) for row in made.rows]
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        neighbours = above if sweep % 2 == 0 else below
        place = {item: number for row in rows for number, item in enumerate(row)}
        for row in rows if sweep % 2 == 0 else reversed(rows):
            _sort_row(row, neighbours, place)
        found = _crossings(rows, below)
        if found < fewest:
            best, fewest = [list(row) for row in rows], found
    made.rows = best


def _sort_row(row: list[int], neighbours: Mapping[int, list[int]], place: dict[int, int]) -> None:
    if len(row) > 1:
        wanted = {
            item: sum(place[one] for one in found) / len(found) if (found := neighbours.get(item)) else place[item]
            for item in row
        }
        row.sort(key=lambda item: (wanted[item], place[item]))
        place.update((item, number) for number, item in enumerate(row))


def _crossings(rows: Sequence[Sequence[int]], below: Mapping[int, list[int]]) -> int:
    """Return how many links cross each other."""
    count = 0
    for row, after in itertools.pairwise(rows):
        place = {item: number for number, item in enumerate(after)}
        seen: list[int] = []
        for item in row:
            heads = sorted(place[head] for head in below.get(item, ()))
            for head in heads:
                count += len(seen) - bisect_right(seen, head)
            for head in heads:
                insort(seen, head)
    return count
