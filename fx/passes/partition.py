"""Which supported operations run together: regions that are as large as the order of the program allows.

Operations get *levels*. A value is at the level of the latest of its inputs; an operation that stays in eager Python
and needs a value of a region is one level higher. Supported operations of one level that hand values to one another, or
read the same value, are one region. As a path that leaves a region climbs to a higher level, none comes back to it. A
second sweep, from the end, lifts regions to a higher level where that joins them with one that they feed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fx.graph import Graph
from fx.node import Node
from fx.passes.regions import find_constraints

_EVERYWHERE = ("get_attr",)
"""Operations that have no place of their own: whoever uses the value fetches it."""


def find_regions(graph: Graph, supported: Collection[Node]) -> list[list[Node]]:
    """Divide the supported operations of a program into regions, each in program order; linear in the graph's size.

    A region can run as a whole: no value leaves it, passes through another operation and comes back, and no effect
    would change places with one that it must follow.

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
    """Return what each operation has to follow: what computes its inputs, and what it must not change places with."""
    before = {node: [one for one in node.all_input_nodes if one.op not in _EVERYWHERE] for node in order}
    for earlier, later in find_constraints(graph):
        if earlier in before and later in before:
            before[later].append(earlier)
    return before


def _levels(order: Iterable[Node], before: Mapping[Node, list[Node]], chosen: Collection[Node]) -> dict[Node, int]:
    """The lowest level of each operation."""
    levels: dict[Node, int] = {}
    for node in order:
        outside = node not in chosen
        levels[node] = max((levels[one] + (outside and one in chosen) for one in before[node]), default=0)
    return levels


class _Groups:
    """Disjoint sets of operations."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._parent = {node: node for node in nodes}

    def find(self, node: Node) -> Node:
        """The operation that stands for the group of ``node``: its first."""
        parent = self._parent
        while (above := parent[node]) is not node:
            parent[node] = parent[above]
            node = above
        return node

    def join(self, one: Node, other: Node) -> None:
        """Let two groups be one."""
        first, second = sorted((self.find(one), self.find(other)))
        self._parent[second] = first

    def lists(self) -> list[list[Node]]:
        """The groups, in the order of their first operations."""
        found: dict[Node, list[Node]] = {}
        for node in self._parent:
            found.setdefault(self.find(node), []).append(node)
        return list(found.values())


def _join_neighbours(
    order: Iterable[Node],
    before: Mapping[Node, list[Node]],
    chosen: Collection[Node],
    levels: Mapping[Node, int],
    groups: _Groups,
) -> None:
    """Join operations of one level of which one follows the other, or that read the same value from outside."""
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
    """From the highest level down, lift each region to that of the regions that it feeds, if nothing is in between.

    Levels are counted from the inputs, so what could run late has a low one. Here ``sin`` stays in eager Python::

        x ── relu ── sin ── neg ── add      level 0: relu, exp
        y ── exp ───────────────────┘       level 1: sin, neg, add

    ``relu`` stays: ``sin``, at level 1, needs it, and what runs with ``neg`` runs after ``sin``. ``exp`` feeds ``add``
    alone and is lifted to level 1: the three regions ``[relu] [exp] [neg, add]`` become ``[relu] [exp, neg, add]``. A
    region moves as a whole: if ``exp`` read ``x``, too, it would be one region with ``relu`` and stay.

    An operation in eager Python has no region to join, but it moves with what follows it: ``highest`` says how late it
    can be. What it needs of a region must be one level lower than that.
    """
    after: dict[Node, list[Node]] = {node: [] for node in order}
    for node, earlier in before.items():
        for one in earlier:
            after[one].append(node)
    regions: dict[int, list[list[Node]]] = {}
    for region in groups.lists():
        regions.setdefault(levels[region[0]], []).append(region)
    outside: dict[int, list[Node]] = {}
    for node in reversed(order):
        if node not in chosen:
            outside.setdefault(levels[node], []).append(node)
    highest: dict[Node, int] = {}  # level that an operation in eager Python can be at, all that follows as it is
    for level in sorted({*regions, *outside}, reverse=True):
        for region in regions.get(level, ()):
            inside = frozenset(region)
            following = [user for node in region for user in after[node] if user not in inside]
            fed = [user for user in following if user in chosen]
            ceiling = min((levels[one] if one in chosen else highest[one] - 1 for one in following), default=level)
            if ceiling > level and (goals := [user for user in fed if levels[user] == ceiling]):
                for node in region:
                    levels[node] = ceiling
                for goal in goals:
                    groups.join(region[0], goal)
        for node in outside.get(level, ()):
            users = after[node]
            highest[node] = min((levels[one] if one in chosen else highest[one] for one in users), default=len(order))
