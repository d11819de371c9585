"""Values that cannot cross the boundary of a region, such as sizes: they are computed on each side of it."""

from __future__ import annotations

from collections.abc import Callable

from fx.graph import Graph
from fx.node import Node
from fx.passes.regions import Region


class Boundaries:
    """Which values of a program stay on their side of a boundary."""

    def __init__(self, graph: Graph, can_cross: Callable[[Node], bool]) -> None:
        """Ask about each value of a program."""
        self._graph = graph
        self._kept = {node for node in graph.nodes if node.op not in ("get_attr", "output") and not can_cross(node)}
        self._repeated: dict[tuple[Region | None, Node], Node] = {}

    def refuse_from_outside(self, reasons: dict[Node, str | None]) -> None:
        """Refuse operations that need a value from eager Python that cannot cross; ``reasons``, in order, is edited."""
        for node, reason in reasons.items():
            if reason is None:
                for used in node.all_input_nodes:
                    if used in self._kept and (used not in reasons or reasons[used] is not None):
                        reasons[node] = f"it uses `%{used}`, which stays in eager Python and cannot be handed over"

    def repeat_inside(self, home: dict[Node, Region]) -> list[Node]:
        """Compute a value that cannot cross once more where a region, or eager Python, uses it from somewhere else.

        Args:
            home: the region of each operation that is in one; this is edited, as is the program.

        Returns:
            The operations that were added.
        """
        if not self._kept:
            return []
        for user in list(self._graph.nodes):
            for used in user.all_input_nodes:
                if used in self._kept and home.get(used) is not home.get(user) and used.op != "placeholder":
                    user.replace_input_with(used, self._repeat(used, user, home))
        for node in reversed(self._graph.nodes):
            if not node.users and node in home and node in self._kept:
                self._graph.erase_node(node)
                del home[node]
        return list(self._repeated.values())

    def _repeat(self, node: Node, user: Node, home: dict[Node, Region]) -> Node:
        """A copy of ``node``, and of what cannot cross that it needs, on the side of ``user``; one for all there."""
        where, repeated = home.get(user), self._repeated
        waiting = [node]
        while waiting:
            current = waiting.pop()
            if (where, current) in repeated:
                continue
            needed = [one for one in current.all_input_nodes if one in self._kept and one.op != "placeholder"]
            if missing := [one for one in needed if (where, one) not in repeated]:
                waiting += (current, *missing)
                continue
            with self._graph.inserting_before(user):
                copied = self._graph.node_copy(current, lambda one: repeated.get((where, one), one))
            copied.source, copied.origins = current.source, current.origins or (current.name,)
            repeated[where, current] = copied
            self._kept.add(copied)
            if where is not None:
                home[copied] = where
        return repeated[where, node]
