"""What crosses the boundary of a region, for backends that are handed tensors only: sizes are asked for on each side."""

from __future__ import annotations

from typing import Any

import torch

from fx.graph import Graph
from fx.node import Node
from fx.passes.regions import Region

__all__ = ["refuse_numbers_from_outside", "repeat_numbers"]


def refuse_numbers_from_outside(reasons: dict[Node, str | None]) -> None:
    """Refuse the operations that use what is no tensor and stays in eager Python.

    Args:
        reasons: for each operation, in program order, why the backend does not take it; this is edited.
    """
    for node, reason in reasons.items():
        if reason is None:
            for used in node.all_input_nodes:
                if _is_no_tensor(used) and (used not in reasons or reasons[used] is not None):
                    reasons[node] = f"it uses `%{used}`, which is no tensor and stays in eager Python"


def repeat_numbers(graph: Graph, home: dict[Node, Region]) -> None:
    """Compute what is no tensor again where a region, or eager Python, uses it from somewhere else.

    What has been a number that crosses a boundary becomes a tensor that does: the one whose size is asked for.

    Args:
        graph: the program, which is edited.
        home: the region of each operation that is in one; the copies are added.
    """
    repeated: dict[tuple[Region | None, Node], Node] = {}
    for user in list(graph.nodes):
        where = home.get(user)
        for used in user.all_input_nodes:
            source = home.get(used)
            if source is not where and _is_no_tensor(used) and used.op == "call_function":
                user.replace_input_with(used, _repeat(used, user, home, repeated))
    for node in reversed(graph.nodes):
        if not node.users and node in home and _is_no_tensor(node):
            graph.erase_node(node)
            del home[node]


def _repeat(
    node: Node, user: Node, home: dict[Node, Region], repeated: dict[tuple[Region | None, Node], Node]
) -> Node:
    """A copy of ``node``, and of what it uses that is no tensor, on the side of ``user``; one for all users there."""
    where = home.get(user)
    open_nodes = [node]
    while open_nodes:
        current = open_nodes[-1]
        needed = [one for one in current.all_input_nodes if _is_no_tensor(one) and one.op == "call_function"]
        missing = [one for one in needed if (where, one) not in repeated]
        if missing and (where, current) not in repeated:
            open_nodes += missing
            continue
        open_nodes.pop()
        if (where, current) not in repeated:
            with user.graph.inserting_before(user):
                copied = user.graph.node_copy(current, lambda one: repeated.get((where, one), one))
            copied.source, copied.origins = current.source, current.origins or (current.name,)
            repeated[where, current] = copied
            if where is not None:
                home[copied] = where
    return repeated[where, node]


def _is_no_tensor(node: Node) -> bool:
    kind: Any = node.meta.get("type") if node._meta else None
    return isinstance(kind, type) and not issubclass(kind, torch.Tensor)
