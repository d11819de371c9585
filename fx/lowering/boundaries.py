"""Values that cannot cross the boundary of a region, such as sizes: they are computed on each side of it."""

from __future__ import annotations

from collections.abc import Callable

from fx.graph import Graph
from fx.node import Node
from fx.passes.machinery.regions import Region


class Boundaries:
    """The values of a program that cannot cross a boundary, and the copies that compute them on its other side."""

    def __init__(self, graph: Graph, can_cross: Callable[[Node], bool]) -> None:
        """Ask ``can_cross`` about each value of a program."""
        self._graph = graph
        self._local = {node for node in graph.nodes if node.op not in ("get_attr", "output") and not can_cross(node)}
        self._repeated: dict[tuple[Region | None, Node], Node] = {}

    def refuse_from_outside(self, reasons: dict[Node, str | None]) -> None:
        """Refuse operations with an operand that stays in eager Python and cannot cross.

        Args:
            reasons: why each operation stays in eager Python, or ``None``, in program order; this is edited.
        """
        for node, reason in reasons.items():
            if reason is None:
                for used in node.all_input_nodes:
                    if used in self._local and (used not in reasons or reasons[used] is not None):
                        reasons[node] = f"it uses `%{used}`, which stays in eager Python and cannot be handed over"

    def repeat_inside(self, home: dict[Node, Region]) -> list[Node]:
        """Repeat a value that cannot cross in each region that uses it from outside, and in eager Python if that does.

        Args:
            home: the region of each operation that is in one. Both this and the program are edited.

        Returns:
            The operations that were added.
        """
        if not self._local:
            return []
        for user in list(self._graph.nodes):
            for used in user.all_input_nodes:
                if used in self._local and home.get(used) is not home.get(user) and used.op != "placeholder":
                    user.replace_input_with(used, self._repeat(used, user, home))
        for node in reversed(self._graph.nodes):
            if not node.users and node in home and node in self._local:
                self._graph.erase_node(node)
                del home[node]
        return list(self._repeated.values())

    def _repeat(self, node: Node, user: Node, home: dict[Node, Region]) -> Node:
        """Return the copy of ``node`` on the side of ``user``; copy it first, with operands that cannot cross either.

        All users on a side share a copy.
        """
        where, repeated = home.get(user), self._repeated
        waiting = [node]
        while waiting:
            current = waiting.pop()
            if (where, current) in repeated:
                continue
            needed = [used for used in current.all_input_nodes if used in self._local and used.op != "placeholder"]
            if missing := [used for used in needed if (where, used) not in repeated]:
                waiting += (current, *missing)
                continue
            with self._graph.inserting_before(user):
                copied = self._graph.node_copy(current, lambda used: repeated.get((where, used), used))
            copied.source, copied.origins = current.source, current.origins or (current.name,)
            repeated[where, current] = copied
            self._local.add(copied)
            if where is not None:
                home[copied] = where
        return repeated[where, node]
