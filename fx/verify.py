"""The rules a well-formed graph keeps, one function a rule (paper, section 4.2; appendix A)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from fx.errors import GraphError
from fx.printing import describe

if TYPE_CHECKING:
    from fx.graph import Graph
    from fx.node import Node


def check_graph(graph: Graph) -> None:
    """Check every rule.

    Raises:
        GraphError: a rule is broken; the message names the node, and its user's line where known.
    """
    _arguments_are_defined(graph)
    _names_are_unique(graph)
    if graph.owning_module is not None:
        _targets_exist(graph, graph.owning_module)


def _broken(what: str, node: Node, why: str | None = None, remedy: str | None = None) -> GraphError:
    return GraphError(what, where=node.source, value=describe(node), why=why, remedy=remedy)


def _arguments_are_defined(graph: Graph) -> None:
    """Each argument stands before its user, in this graph, and lists it; and each user listed is in this graph."""
    seen: set[Node] = set()
    for node in graph.nodes:
        if node.graph is not graph:
            raise _broken(f"Node {node.name} does not belong to this Graph", node, why="its graph is another one")
        for used in node._inputs():
            if used not in seen:
                raise _undefined(graph, used, node)
            if node not in used.users:
                raise _broken(f"node {used.name} does not list its user {node.name}", node)
        seen.add(node)
    for node in seen:
        if node.users and not seen.issuperset(node.users):
            stray = next(user for user in node.users if user not in seen)
            raise _broken(f"node {node.name} lists {stray.name} as a user, which is not in the graph", node)


def _undefined(graph: Graph, used: Node, node: Node) -> GraphError:
    if used.graph is not graph:
        return _broken(
            f"Argument '{used.name}' of Node '{node.name}' does not belong to this Graph",
            node,
            why="it belongs to another graph, so it is never computed here",
            remedy="copy it over with graph.node_copy or graph.graph_copy",
        )
    erased = used._erased
    return _broken(
        f"Argument '{used.name}' of Node '{node.name}' was used before it has been defined",
        node,
        why="it was erased from the graph" if erased else "it stands behind its user",
        remedy=None if erased else "move one of the two with prepend or append",
    )


def _names_are_unique(graph: Graph) -> None:
    named: dict[str, Node] = {}
    for node in graph.nodes:
        if named.setdefault(node.name, node) is not node:
            raise _broken(
                f"Node redefined name {node.name}!", node, why=f"also the name of {describe(named[node.name])}"
            )


def _targets_exist(graph: Graph, root: torch.nn.Module) -> None:
    for node in graph.nodes:
        if node.op not in ("get_attr", "call_module"):
            continue
        owner: object = root
        for atom, path in _prefixes(node.target):
            if not hasattr(owner, atom):
                raise _broken(
                    f"Node {node.name} target {node.target} references nonexistent attribute {atom} of "
                    f"{path or 'the root module'}",
                    node,
                    remedy="add the submodule or attribute to the GraphModule before the node that uses it",
                )
            owner = getattr(owner, atom)
        if node.op == "call_module" and not isinstance(owner, torch.nn.Module):
            raise _broken(
                f"Node {node.name} target {node.target} does not reference an nn.Module",
                node,
                why=f"it is a {type(owner).__name__}",
            )


def _prefixes(target: str) -> Iterator[tuple[str, str]]:
    atoms = target.split(".")
    for index, atom in enumerate(atoms):
        yield atom, ".".join(atoms[:index])
