"""Origins of nodes: the nodes of the captured program whose work they do, after passes have edited the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fx.container_kinds import held_kind
from fx.graph import Graph
from fx.node import Node
from fx.provenance import SourceLocation


def record_origins(graph: Graph) -> None:
    """Give each node without origins its own name as origin, before a pass."""
    for node in graph.nodes:
        if not node._origins:
            node.origins = (node.name,)


@dataclass(frozen=True, slots=True)
class EarlierNode:
    """A node as it was before a pass."""

    op: str
    """Its opcode."""
    target: Any
    """The target that it called or fetched."""
    origins: tuple[str, ...]
    """The nodes of the captured program whose work it did."""
    source: SourceLocation | None
    """The user's line."""
    inputs: Mapping[tuple[Any, ...], str]
    """Names of the nodes that it used, by their places among its arguments."""

    @classmethod
    def all_of(cls, graph: Graph) -> dict[str, EarlierNode]:
        """Return every node of a graph, by name."""
        return {
            node.name: cls(
                node.op, node.target, node.origins, node.source,
                {place: read.name for place, read in _inputs_by_place(node)},
            )
            for node in graph.nodes
        }  # fmt: skip


def match_origins(graph: Graph, earlier: Mapping[str, EarlierNode]) -> None:
    """After a pass, give nodes the origins of the nodes with their names, or whose place they have taken.

    A node takes the place of an earlier one if it is used in the same place:

    - by a node that was there before, or
    - if the earlier node is gone, by a node that has itself taken the place of one with the same target.

    An earlier node also gets the origins of nodes that are gone.
    """
    became: dict[Node, str] = {}
    for node in graph.nodes:
        earlier_node = earlier.get(node.name)
        # A node with other origins only has the name: a pass erased its former node, so that it was free again.
        if earlier_node is None or (node._origins and not set(earlier_node.origins).issubset(node._origins)):
            continue
        if node._origins or node.op == earlier_node.op:
            became[node] = node.name
            if not node._origins:
                node.origins, node.source = earlier_node.origins, node.source or earlier_node.source
    remaining = set(became.values())
    # Users come first: the node that they became shows whose place their inputs have taken.
    for user in reversed(graph.nodes):
        before = earlier.get(became.get(user, ""))
        if before is None or (user.name not in remaining and (user.op, user.target) != (before.op, before.target)):
            continue
        for place, node in _inputs_by_place(user):
            name = before.inputs.get(place)
            # A remaining node has its own place, unless another remaining node now uses a different one instead.
            if name is None or (name in remaining and (user.name not in remaining or became.get(node, name) != name)):
                continue
            if node not in became:
                became[node] = name
            _stand_for(node, earlier[name], is_new=node.name not in remaining)


def _stand_for(node: Node, place: EarlierNode, is_new: bool) -> None:
    """Give ``node`` the origins of the earlier node in its place, besides its own if the earlier node is gone."""
    if not node._origins:
        node.origins = place.origins
    elif not is_new:
        node.add_origins(place.origins)
    if node.source is None:
        node.source = place.source


def _inputs_by_place(node: Node) -> Iterator[tuple[tuple[Any, ...], Node]]:
    """Yield the nodes among the arguments of ``node``, each with its place."""
    pending: list[tuple[tuple[Any, ...], Any]] = [(("kwargs",), node.kwargs), (("args",), node.args)]
    while pending:
        place, value = pending.pop()
        if isinstance(value, Node):
            yield place, value
        elif (kind := held_kind(value)) is not None:
            pending += [((*place, at), part) for at, part in zip(kind.labels(value), kind.parts(value), strict=True)]


def complete_origins(graph: Graph) -> None:
    """After a pass, give new nodes the origins of their users, or else of their inputs.

    The output says the least about the origin of a value, so it comes last. Nodes without any connection to
    an origin take those of the node before them.
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
    """Take origins from the first neighbour that has some; a line too, unless ``node`` has its own."""
    for neighbour in neighbours:
        if not node._origins:
            node.origins = neighbour.origins
        if node.source is None:
            node.source = neighbour.source
        if node._origins and node.source is not None:
            return
