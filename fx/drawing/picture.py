"""``Picture``: nodes, edges and clusters of a program, or of its states before and after passes, ready to be drawn."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from fx.drawing.clusters import Cluster, all_clusters, make_clusters
from fx.drawing.drawn_program import DrawnNode, DrawnProgram
from fx.drawing.rows import Edge, Rows, make_rows

MARKS = {"removed": "-", "added": "+", "changed": "~", "moved": "^"}  # fmt: skip
"""What a pass did with a node, and the sign that is drawn at it."""


@dataclass(frozen=True, slots=True)
class PictureNode:
    """A node, through all states of a program in which it is there."""

    versions: tuple[tuple[int, DrawnNode], ...]
    """The first state in which it is as it is then, and how."""
    states: int
    """A bit for each state in which it is there."""

    def at(self, state: int) -> DrawnNode:
        """Return how it is in a state; where it is not there, how it was before or will be."""
        found = self.versions[0][1]
        for first, version in self.versions:
            if first <= state:
                found = version
        return found


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn: nodes by number, and the rows in which they stand."""

    nodes: tuple[PictureNode, ...]
    """The nodes, in an order in which they can run."""
    edges: tuple[Edge, ...]
    """Which node reads which, and in which states."""
    marks: tuple[tuple[str, ...], ...]
    """Of each node what is said of it in any state, which keeps blocks of different fates apart."""
    root: Cluster
    """The clusters."""
    rows: tuple[Rows, ...]
    """The rows of each cluster, by its number."""
    shown: tuple[int, ...]
    """The nodes that are drawn, without those in blocks that are folded."""

    @classmethod
    def of(cls, program: DrawnProgram, *, fold: bool = True, largest: int | None = None) -> Picture:
        """Arrange one program.

        Args:
            program: the program.
            fold: draw of blocks that repeat only the first.
            largest: cut clusters with more members than these into parts.
        """
        number = {node.name: place for place, node in enumerate(program.nodes)}
        edges = [(number[read], place, 1) for place, node in enumerate(program.nodes) for read in node.inputs]
        nodes = tuple(PictureNode(((0, node),), 1) for node in program.nodes)
        return cls.arranged(nodes, edges, program, [()] * len(nodes), fold=fold, largest=largest)

    @classmethod
    def arranged(
        cls,
        nodes: Sequence[PictureNode],
        edges: Sequence[Edge],
        program: DrawnProgram,
        marks: Sequence[tuple[str, ...]],
        *,
        fold: bool,
        largest: int | None = None,
    ) -> Picture:
        """Arrange nodes that are given; ``program`` has the classes of modules. The rest is as in :meth:`of`."""
        inputs: list[list[int]] = [[] for _ in nodes]
        for read, reader, _ in edges:
            inputs[reader].append(read)
        kinds = [_kind(node, mark) for node, mark in zip(nodes, marks, strict=True)]
        modules = [node.versions[0][1].modules for node in nodes]
        root = make_clusters(modules, program.classes, kinds, inputs, largest, _order(nodes, edges))
        if fold:
            edges = _folded(root, edges, len(nodes))
        rows = make_rows(root, edges, lambda node: nodes[node].versions[0][1].op == "placeholder")
        return cls(tuple(nodes), tuple(edges), tuple(marks), root, tuple(rows), tuple(root.nodes()))

    @property
    def clusters(self) -> list[Cluster]:
        """All clusters, by number."""
        return [rows.cluster for rows in self.rows]


def _order(nodes: Sequence[PictureNode], edges: Sequence[Edge]) -> list[int]:
    """The nodes in order, but fetched attributes just before what reads them first, wherever they are fetched."""
    first: dict[int, int] = {}
    for read, reader, _ in edges:
        if reader < first.get(read, len(nodes)):
            first[read] = reader
    before: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        if number in first and node.versions[0][1].op == "get_attr":
            before.setdefault(first[number], []).append(number)
    put_off = {number for numbers in before.values() for number in numbers}
    return [one for number in range(len(nodes)) if number not in put_off for one in (*before.get(number, ()), number)]


def _kind(node: PictureNode, marks: tuple[str, ...]) -> Hashable:
    """Return what a node does, without its name and the path of what it calls."""
    what = [
        (one.op, one.title, one.settings, one.shape, re.sub(r"%\w+", "%", one.arguments)) for _, one in node.versions
    ]
    return (node.states, marks, *what)


def _folded(root: Cluster, edges: Sequence[Edge], count: int) -> list[Edge]:
    """Leave of blocks that repeat the first, with the edges of all; those from one block to another are not drawn."""
    stands_for = list(range(count))
    block_of: dict[int, tuple[tuple[int, int], ...]] = {}
    repeats = [cluster for cluster in all_clusters(root) if cluster.count > 1]
    for cluster in repeats:
        for place, block in enumerate(cluster.blocks()):
            for node in block.nodes():
                block_of[node] = (*block_of.get(node, ()), (id(cluster), place))
    for cluster in reversed(repeats):
        first, *others = cluster.blocks()
        for block in others:
            for node, other in zip(block.nodes(), first.nodes(), strict=True):
                stands_for[node] = other
        cluster.members = first.members
    for node in range(count):
        while stands_for[node] != stands_for[stands_for[node]]:
            stands_for[node] = stands_for[stands_for[node]]
    for number, cluster in enumerate(all_clusters(root)):
        cluster.number = number
    kept: dict[tuple[int, int], int] = {}
    for read, reader, states in edges:
        if _are_apart(block_of.get(read, ()), block_of.get(reader, ())):
            continue
        key = stands_for[read], stands_for[reader]
        kept[key] = kept.get(key, 0) | states
    return [(read, reader, states) for (read, reader), states in kept.items()]


def _are_apart(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
    """Return whether two nodes are in different blocks of the same cluster of repeats."""
    places = dict(one)
    return any(places.get(cluster, place) != place for cluster, place in other)
