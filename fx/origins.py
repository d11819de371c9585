"""Which nodes of the captured program a node does the work of, after passes have edited or replaced the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fx.container_kinds import held_kind
from fx.graph import Graph
from fx.node import Node
from fx.provenance import SourceLocation


def record_origins(graph: Graph) -> None:
    """Before a pass: let every node that has no origins yet be its own."""
    for node in graph.nodes:
        if not node._origins:
            node.origins = (node.name,)


@dataclass(frozen=True, slots=True)
class EarlierNode:
    """What a node was before a pass."""

    op: str
    """Its opcode."""
    target: Any
    """What it called or fetched."""
    origins: tuple[str, ...]
    """The nodes of the captured program that it stood for."""
    source: SourceLocation | None
    """The user's line."""
    inputs: Mapping[tuple[Any, ...], str]
    """Names of the nodes that it read, by their places among its arguments."""

    @classmethod
    def all_of(cls, graph: Graph) -> dict[str, EarlierNode]:
        """Every node of a graph, by name."""
        return {
            node.name: cls(
                node.op, node.target, node.origins, node.source,
                {place: read.name for place, read in _inputs_by_place(node)},
            )
            for node in graph.nodes
        }  # fmt: skip


def match_origins(graph: Graph, earlier: Mapping[str, EarlierNode]) -> None:
    """After a pass: let nodes have the origins of those whose name they have, or whose place they have taken.

    A node takes the place of another one where it is read as that was: by a node that was there before, or, if the
    other one is gone, by what has itself taken the place of a node that called the same. A node that was there before
    stands for what is gone as well.
    """
    became: dict[Node, str] = {}
    for node in graph.nodes:
        known = earlier.get(node.name)
        # A node with other origins only has the name: it was free again, since a pass erased what had it.
        if known is None or (node._origins and not set(known.origins).issubset(node._origins)):
            continue
        if node._origins or node.op == known.op:
            became[node] = node.name
            if not node._origins:
                node.origins, node.source = known.origins, node.source or known.source
    kept = set(became.values())
    # Users come first: what they became says in whose place their inputs stand.
    for user in reversed(graph.nodes):
        before = earlier.get(became.get(user, ""))
        if before is None or (user.name not in kept and (user.op, user.target) != (before.op, before.target)):
            continue
        for place, node in _inputs_by_place(user):
            name = before.inputs.get(place)
            # What is still there has its own place, unless a node that is there, too, now reads another one instead.
            if name is None or (name in kept and (user.name not in kept or became.get(node, name) != name)):
                continue
            if node not in became:
                became[node] = name
            _stand_for(node, earlier[name], is_new=node.name not in kept)


def _stand_for(node: Node, place: EarlierNode, is_new: bool) -> None:
    """Let ``node`` have the origins of what stood at its place before it, beside its own where that is gone."""
    if not node._origins:
        node.origins = place.origins
    elif not is_new:
        node.add_origins(place.origins)
    if node.source is None:
        node.source = place.source


def _inputs_by_place(node: Node) -> Iterator[tuple[tuple[Any, ...], Node]]:
    """The nodes among the arguments of ``node``, each with its place."""
    pending: list[tuple[tuple[Any, ...], Any]] = [(("kwargs",), node.kwargs), (("args",), node.args)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, Node):
            yield place, value
        elif (kind := held_kind(value)) is not None:
            pending += [((*place, at), part) for at, part in zip(kind.labels(value), kind.parts(value), strict=True)]


def complete_origins(graph: Graph) -> None:
    """After a pass: let what it made for others share their origins, first those of its users, then of its inputs.

    The output says the least about where a value came from, so it is asked last. What is connected with nothing that
    has origins takes those of what stands before it.
    """
    for node in reversed(graph.nodes):
        if not node._origins or node.source is None:
            _take_missing(node, [user for user in node.users if user.op != "output"])
    for node in graph.nodes:
        if not node._origins or node.source is None:
            _take_missing(node, node.all_input_nodes)
    for nodes in (graph.nodes, reversed(graph.nodes)):
        before: list[Node] = []
        for node in nodes:
            if not node._origins or node.source is None:
                _take_missing(node, before)
            before = [node]


def _take_missing(node: Node, neighbours: Iterable[Node]) -> None:
    """From the first neighbour that has origins; a line too, unless ``node`` knows its own."""
    for neighbour in neighbours:
        if not node._origins:
            node.origins = neighbour.origins
        if node.source is None:
            node.source = neighbour.source
        if node._origins and node.source is not None:
            return
