"""``Picture``: nodes, edges and clusters of a program, or of its states before and after passes, ready to be drawn."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from fx.drawing.clusters import Cluster, all_clusters, make_clusters
from fx.drawing.drawn_program import DrawnNode, DrawnProgram
from fx.drawing.rows import Edge, Rows, make_rows

MARKS = {"removed": "-", "added": "+", "changed": "~", "moved": "^"}  # fmt: skip
"""The edits of a pass to a node, with the sign of each in drawings."""


@dataclass(frozen=True, slots=True)
class PictureNode:
    """A node, through all states of a program that have it."""

    versions: tuple[tuple[int, DrawnNode], ...]
    """Its versions, each with the first state that has this version."""
    states: int
    """A bit for each state that has the node."""

    def at(self, state: int) -> DrawnNode:
        """Return its version in a state; if the state lacks the node, the version before or else after it."""
        latest = self.versions[0][1]
        for first, version in self.versions:
            if first <= state:
                latest = version
        return latest


@dataclass(frozen=True, slots=True)
class Picture:
    """The content of a drawing: nodes by number, in rows."""

    nodes: tuple[PictureNode, ...]
    """The nodes, in an order in which they can run."""
    edges: tuple[Edge, ...]
    """The edges between nodes, with their states."""
    marks: tuple[tuple[str, ...], ...]
    """The marks of each node in all states; blocks with different marks do not count as repeats."""
    root: Cluster
    """The clusters."""
    rows: tuple[Rows, ...]
    """The rows of each cluster, by its number."""
    visible: tuple[int, ...]
    """The drawn nodes, without those in folded blocks."""

    @classmethod
    def of(cls, program: DrawnProgram, *, fold: bool = True, largest: int | None = None) -> Picture:
        """Arrange one program.

        Args:
            program: the program.
            fold: draw only the first of repeated blocks.
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
        """Arrange these nodes; ``program`` has the classes of modules. The rest is as in :meth:`of`."""
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
    """Return the nodes in order, but each fetch of an attribute just before its first reader."""
    first: dict[int, int] = {}
    for read, reader, _ in edges:
        if reader < first.get(read, len(nodes)):
            first[read] = reader
    before: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        if number in first and node.versions[0][1].op == "get_attr":
            before.setdefault(first[number], []).append(number)
    delayed = {number for numbers in before.values() for number in numbers}
    rest = [number for number in range(len(nodes)) if number not in delayed]
    return [member for number in rest for member in (*before.get(number, ()), number)]


def _kind(node: PictureNode, marks: tuple[str, ...]) -> Hashable:
    """Return a key for the operation of a node, without its name and the path of its target."""
    operations = [
        (version.op, version.title, version.settings, version.shape, re.sub(r"%\w+", "%", version.arguments))
        for _, version in node.versions
    ]
    return (node.states, marks, *operations)


def _folded(root: Cluster, edges: Sequence[Edge], count: int) -> list[Edge]:
    """Keep only the first of repeated blocks, with the edges of all; drop edges from one block to another."""
    stands_for = list(range(count))
    # Collected before blocks are dropped below: edges between two blocks end at nodes that are not drawn.
    block_of: dict[int, tuple[tuple[int, int], ...]] = {}
    repeats = [cluster for cluster in all_clusters(root) if cluster.count > 1]
    for cluster in repeats:
        for place, block in enumerate(cluster.blocks()):
            for node in block.nodes():
                block_of[node] = (*block_of.get(node, ()), (id(cluster), place))
    # Inner repeats first: a node may map to one of the first inner block, and that to one of the first outer block.
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
    merged: dict[tuple[int, int], int] = {}
    for read, reader, states in edges:
        if _are_apart(block_of.get(read, ()), block_of.get(reader, ())):
            continue
        key = stands_for[read], stands_for[reader]
        merged[key] = merged.get(key, 0) | states
    return [(read, reader, states) for (read, reader), states in merged.items()]


def _are_apart(left: tuple[tuple[int, int], ...], right: tuple[tuple[int, int], ...]) -> bool:
    """Return whether two nodes are in different blocks of the same cluster of repeats."""
    places = dict(left)
    return any(places.get(cluster, place) != place for cluster, place in right)
