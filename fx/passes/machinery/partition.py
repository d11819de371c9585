"""Partitioning of supported operations into regions, as large as the order of the program allows.

Operations get *levels*. An operation has the highest level of its inputs; one that stays in eager Python and uses a
value of a region is one level higher. Supported operations of one level that pass values to one another, or read the
same value, form one region. A path that leaves a region climbs to a higher level, so it cannot come back. A second
sweep, from the end, lifts a region to a higher level where that joins it with a region that it feeds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fx.graph import Graph
from fx.node import Node
from fx.passes.machinery.regions import find_constraints

_EVERYWHERE = ("get_attr",)
"""Operations without a place of their own: each region that uses the value fetches it."""


def find_regions(graph: Graph, supported: Collection[Node]) -> list[list[Node]]:
    """Divide the supported operations of a program into regions, each in program order; linear in the graph's size.

    A region can run as a whole: no value leaves it, passes through another operation and comes back, and no two effects
    whose order matters are reordered.

    >>> import torch, fx
    >>> graph = fx.symbolic_trace(lambda x: torch.relu(x).exp().neg() + x.sin()).graph
    >>> x, relu, exp, neg, sin, add, output = graph.nodes
    >>> find_regions(graph, {relu, exp, sin, add})
    [[relu, exp, sin], [add]]
    """
    chosen = frozenset(supported)
    order = [node for node in graph.nodes if node.op not in _EVERYWHERE]
    before = _earlier(graph, order)
    levels = _levels(order, before, chosen)
    groups = _Groups(node for node in order if node in chosen)
    _join_neighbours(order, before, chosen, levels, groups)
    _lift(order, before, chosen, levels, groups)
    return groups.lists()


def _earlier(graph: Graph, order: Iterable[Node]) -> dict[Node, list[Node]]:
    """Map each operation to those it must follow: the producers of its inputs, and effects it may not overtake."""
    before = {node: [value for value in node.all_input_nodes if value.op not in _EVERYWHERE] for node in order}
    for earlier, later in find_constraints(graph):
        if earlier in before and later in before:
            before[later].append(earlier)
    return before


def _levels(order: Iterable[Node], before: Mapping[Node, list[Node]], chosen: Collection[Node]) -> dict[Node, int]:
    """Return the lowest possible level of each operation."""
    levels: dict[Node, int] = {}
    for node in order:
        outside = node not in chosen
        levels[node] = max((levels[earlier] + (outside and earlier in chosen) for earlier in before[node]), default=0)
    return levels


class _Groups:
    """A partition of operations into disjoint sets (union-find)."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._parent = {node: node for node in nodes}

    def find(self, node: Node) -> Node:
        """Return the representative of the group of ``node``: its first operation."""
        parent = self._parent
        while (above := parent[node]) is not node:
            parent[node] = parent[above]
            node = above
        return node

    def join(self, node: Node, other: Node) -> None:
        """Merge two groups."""
        first, second = sorted((self.find(node), self.find(other)))
        self._parent[second] = first

    def lists(self) -> list[list[Node]]:
        """Return the groups, in the order of their first operations."""
        members: dict[Node, list[Node]] = {}
        for node in self._parent:
            members.setdefault(self.find(node), []).append(node)
        return list(members.values())


def _join_neighbours(
    order: Iterable[Node],
    before: Mapping[Node, list[Node]],
    chosen: Collection[Node],
    levels: Mapping[Node, int],
    groups: _Groups,
) -> None:
    """Join operations of one level if one follows the other, or if both read the same value from outside."""
    readers: dict[tuple[Node, int], Node] = {}
    for node in order:
        if node in chosen:
            for used in before[node]:
                if used not in chosen or levels[used] != levels[node]:
                    groups.join(node, readers.setdefault((used, levels[node]), node))
                else:
                    groups.join(node, used)


def _lift(
    order: list[Node],
    before: Mapping[Node, list[Node]],
    chosen: Collection[Node],
    levels: dict[Node, int],
    groups: _Groups,
) -> None:
    """From the highest level down, lift each region to the level of the regions that it feeds, if nothing is between.

    Levels are counted from the inputs, so an operation that could run late has a low one. Here ``sin`` stays in eager
    Python::

        x ── relu ── sin ── neg ── add      level 0: relu, exp
        y ── exp ───────────────────┘       level 1: sin, neg, add

    ``relu`` stays: ``sin``, at level 1, needs it, and the region of ``neg`` runs after ``sin``. ``exp`` feeds only
    ``add`` and is lifted to level 1: the three regions ``[relu] [exp] [neg, add]`` become ``[relu] [exp, neg, add]``. A
    region moves as a whole: if ``exp`` also read ``x``, it would be in one region with ``relu`` and stay.

    An operation in eager Python has no region to join, but it moves with its users: ``highest`` is the highest level
    that it can have. A region whose value it uses must be at least one level lower.
    """
    after: dict[Node, list[Node]] = {node: [] for node in order}
    for node, earlier in before.items():
        for other in earlier:
            after[other].append(node)
    regions: dict[int, list[list[Node]]] = {}
    for region in groups.lists():
        regions.setdefault(levels[region[0]], []).append(region)
    outside: dict[int, list[Node]] = {}
    for node in reversed(order):
        if node not in chosen:
            outside.setdefault(levels[node], []).append(node)
    highest: dict[Node, int] = {}  # highest level of an operation in eager Python, for fixed levels of its users
    for level in sorted({*regions, *outside}, reverse=True):
        for region in regions.get(level, ()):
            inside = frozenset(region)
            following = [user for node in region for user in after[node] if user not in inside]
            fed = [user for user in following if user in chosen]
            ceiling = min(
                (levels[other] if other in chosen else highest[other] - 1 for other in following), default=level
            )
            if ceiling > level and (goals := [user for user in fed if levels[user] == ceiling]):
                for node in region:
                    levels[node] = ceiling
                for goal in goals:
                    groups.join(region[0], goal)
        # After the regions of this level: they may use these operations, and may have been lifted.
        for node in outside.get(level, ()):
            users = after[node]
            highest[node] = min(
                (levels[other] if other in chosen else highest[other] for other in users), default=len(order)
            )
