"""The rules that a well-formed graph keeps, one function per rule (paper, section 4.2; appendix A).

``Graph.lint`` checks them, and pipelines check them around each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch

from fx.container_kinds import held_kind
from fx.errors import GraphError, type_in_words, with_article
from fx.naming.names import is_identifier
from fx.naming.printing import describe
from fx.node import _ATOMS, OPCODES, Node

if TYPE_CHECKING:
    from fx.graph import Graph


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, and where it is broken."""

    what: str
    """A description of the fault."""
    node: Node | None = None
    """The node at fault, if it is one."""
    why: str | None = None
    """The reason that it is a fault, or its likely cause."""
    remedy: str | None = None
    """The remedy to suggest."""

    def error(self) -> GraphError:
        """Return the error to raise for this violation."""
        node = self.node
        if node is None:
            return GraphError(self.what, why=self.why, remedy=self.remedy)
        return GraphError(self.what, where=node.source, value=describe(node), why=self.why, remedy=self.remedy)


Rule: TypeAlias = "Callable[[Graph], Violation | None]"
"""A function that returns the first violation in a graph, or None; its docstring states the rule."""


def check_graph(graph: Graph) -> None:
    """Check all of ``RULES``.

    Raises:
        GraphError: a rule is broken; the message names the node, and its user's line where known.
    """
    if (violation := find_violation(graph)) is not None:
        raise violation.error()


def find_violation(graph: Graph) -> Violation | None:
    """Return the first of ``RULES`` that ``graph`` breaks, or None if it is well formed."""
    for rule in RULES:
        if (violation := rule(graph)) is not None:
            return violation
    return None


def opcodes_are_known(graph: Graph) -> Violation | None:
    """Every node has one of the six opcodes."""
    for node in graph.nodes:
        if node._op not in OPCODES:
            return Violation(
                f"Node {node.name} has the unknown opcode {node._op!r}", node, remedy=f"use one of {', '.join(OPCODES)}"
            )
    return None


def arguments_are_defined(graph: Graph) -> Violation | None:
    """Each argument is in this graph, before its user, and lists it; each listed user is in this graph."""
    defined: set[Node] = set()
    for node in graph.nodes:
        if node.graph is not graph:
            return Violation(f"Node {node.name} does not belong to this Graph", node, why="its graph is another one")
        for used in node._input_nodes:
            if used not in defined:
                return _undefined(graph, used, node)
            if node not in used.users:
                return Violation(f"node {used.name} does not list its user {node.name}", node)
        defined.add(node)
    for node in defined:
        if node.users and not defined.issuperset(node.users):
            stray = next(user for user in node.users if user not in defined)
            return Violation(f"node {node.name} lists {stray.name} as a user, which is not in the graph", node)
    return None


def _undefined(graph: Graph, used: Node, node: Node) -> Violation:
    if used.graph is not graph:
        return Violation(
            f"Argument '{used.name}' of Node '{node.name}' does not belong to this Graph",
            node,
            why="it belongs to another graph, so it is never computed here",
            remedy="copy it over with graph.node_copy or graph.graph_copy",
        )
    erased = used._erased
    return Violation(
        f"Argument '{used.name}' of Node '{node.name}' was used before it has been defined",
        node,
        why="it was erased from the graph" if erased else "it stands behind its user",
        remedy=None if erased else "move one of the two with prepend or append",
    )


def names_are_unique(graph: Graph) -> Violation | None:
    """No two nodes have the same name."""
    named: dict[str, Node] = {}
    for node in graph.nodes:
        if named.setdefault(node.name, node) is not node:
            other = describe(named[node.name])
            return Violation(f"Node redefined name {node.name}!", node, why=f"also the name of {other}")
    return None


def targets_exist(graph: Graph) -> Violation | None:
    """The targets of ``get_attr`` and ``call_module`` nodes exist in the owning module, if there is one."""
    root = graph.owning_module
    if root is None:
        return None
    for node in graph.nodes:
        if node.op not in ("get_attr", "call_module"):
            continue
        owner: object = root
        for atom, path in _prefixes(node.target):
            if not hasattr(owner, atom):
                return Violation(
                    f"Node {node.name} target {node.target} references nonexistent attribute {atom} of "
                    f"{path or 'the root module'}",
                    node,
                    remedy="add the submodule or attribute to the GraphModule before the node that uses it",
                )
            owner = getattr(owner, atom)
        if node.op == "call_module" and not isinstance(owner, torch.nn.Module):
            return Violation(
                f"Node {node.name} target {node.target} does not reference an nn.Module",
                node,
                why=f"it is {type_in_words(owner)}",
            )
    return None


def _prefixes(target: str) -> Iterator[tuple[str, str]]:
    atoms = target.split(".")
    for index, atom in enumerate(atoms):
        yield atom, ".".join(atoms[:index])


def names_are_legal(graph: Graph) -> Violation | None:
    """Every name is a valid variable name."""
    for node in graph.nodes:
        if not is_identifier(node._name):
            return Violation(
                f"Node name {node._name!r} is not an identifier",
                node,
                remedy="let the graph choose: create_node(name=...)",
            )
    return None


def inputs_stand_first(graph: Graph) -> Violation | None:
    """Placeholders come before everything but checks of other inputs; a default is their only possible argument."""
    computed: list[Node] = []
    last: Node | None = None
    checks = 0  # number of computed nodes before the last placeholder
    for node in graph.nodes:
        if node._op != "placeholder":
            computed.append(node)
            continue
        last, checks = node, len(computed)
        if len(node._args) > 1 or node._kwargs:
            return Violation(f"placeholder {node.name} has more arguments than a default", node)
    early = set(computed[:checks])
    used = next((node for node in computed[:checks] if not early.issuperset(node.users)), None)
    if last is not None and used is not None:
        return Violation(
            f"placeholder {last.name} stands behind {used.name}",
            last,
            why="inputs are there before anything is computed from them",
            remedy="insert it first: with graph.inserting_before(next(iter(graph.nodes)))",
        )
    return None


def output_is_last(graph: Graph) -> Violation | None:
    """There is one output, with one argument, and no node after it; only an empty graph has no output."""
    output: Node | None = None
    for node in graph.nodes:
        if output is not None:
            again = "a second output" if node._op == "output" else "never computed"
            return Violation(f"node {node.name} stands behind the output", node, why=f"so it is {again}")
        if node._op == "output":
            output = node
            if len(node._args) != 1 or node._kwargs:
                return Violation("an output node has one argument, what the program returns", node)
            if node.users:
                return Violation(f"the output is used by {', '.join(map(repr, node.users))}", node)
    if output is None and len(graph.nodes):
        return Violation("the graph has no output", why="so its code returns None", remedy="graph.output(value)")
    return None


def targets_fit(graph: Graph) -> Violation | None:
    """Functions are callable, all other targets are strings, and methods have an object to be called on."""
    for node in graph.nodes:
        op, target = node._op, cast("Any", node._target)
        if op == "call_function":
            if not callable(target) or isinstance(target, str):
                what = f"Node {node.name} calls {target!r}, which is not a function"
                return Violation(what, node, remedy="a method is called by call_method, a submodule by call_module")
        elif not isinstance(target, str):
            return Violation(f"the target of {op} node {node.name} is {type_in_words(target)}, not a string", node)
        elif op == "get_attr" and (node._args or node._kwargs):
            why = "its target says it all; code writes self.target and drops them"
            return Violation(f"get_attr node {node.name} has arguments", node, why=why)
        elif op == "call_method" and not node._args:
            why = "args[0] is the object whose method a call_method node calls"
            return Violation(f"Node {node.name} calls the method {target!r} of nothing", node, why=why)
    return None


def arguments_are_frozen(graph: Graph) -> Violation | None:
    """Arguments contain no mutable lists or dicts, and nothing that hides a node from the use lists."""
    for node in graph.nodes:
        pending: list[Any] = [*node._args, *node._kwargs.values()]
        while pending:
            value = pending.pop()
            kind = type(value)
            if kind is Node or kind in _ATOMS:
                continue
            container = held_kind(value)
            if container is not None and isinstance(value, container.frozen):  # type: ignore[arg-type]
                pending += container.parts(value)
            elif (why := _why_not_held(value)) is not None:
                remedy = "assign to node.args or node.kwargs, which freeze lists and dicts and keep the use lists"
                return Violation(
                    f"Node {node.name} holds {with_article(kind.__name__)} as an argument", node, why, remedy
                )
    return None


def _why_not_held(value: Any) -> str | None:
    if isinstance(value, (list, dict)):
        return "it could change without the graph's knowledge"
    if isinstance(value, (set, frozenset)) and any(isinstance(element, Node) for element in cast("set[Any]", value)):
        return "the nodes in it are in no use list"
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(node := getattr(value, "node", None), Node):
        return f"it stands for the node {node.name}, and is not that node itself"
    return None


def use_lists_match(graph: Graph) -> Violation | None:
    """Each listed user of a node uses it."""
    listed = used = 0
    for node in graph.nodes:
        listed += len(node.users)
        used += len(node._input_nodes)
    if listed == used:  # arguments_are_defined has checked that each use is listed
        return None
    node, user = next((node, user) for node in graph.nodes for user in node.users if node not in user._input_nodes)
    what = f"node {node.name} lists {user.name} as a user, which does not use it"
    return Violation(what, node, remedy="leave node.users to the graph")


RULES: tuple[Rule, ...] = (
    opcodes_are_known,
    arguments_are_defined,
    names_are_unique,
    targets_exist,
    names_are_legal,
    inputs_stand_first,
    output_is_last,
    targets_fit,
    arguments_are_frozen,
    use_lists_match,
)
"""All rules, each after those that it relies on."""
