"""``Pattern``: a pattern to search for, checked, in canonical form, with the order of the search for its parts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from fx.argument_types import checked
from fx.arguments import shown
from fx.canonical import CanonicalForm, canonical_form
from fx.capture.tracer import Tracer, symbolic_trace
from fx.container_kinds import leaves_of
from fx.errors import PassError, add_note, type_in_words
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.matcher.searched_program import drop_inner_checks, is_call
from fx.naming.printing import describe
from fx.node import Argument, Node, reached
from fx.operators.effects import Effect, effect_of

Program: TypeAlias = Callable[..., Any] | torch.nn.Module | Graph
"""A pattern or replacement: a function, a module (captured or not), or a graph."""


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A match for any constant argument: a number, string, dtype, None, or a container of these; no computed value."""

    name: str = ""
    """The key of the constant in a match, or empty. Wildcards with the same name match the same constant."""

    def __fx_create_arg__(self, tracer: Tracer) -> Wildcard:
        """Return the wildcard itself as the argument of a traced node."""
        return self

    def __repr__(self) -> str:
        return f"literal({self.name!r})" if self.name else "anything"


@checked(PassError)
def literal(name: str) -> Any:
    """Return a wildcard whose constant filters and replacement callbacks find in ``match.literals[name]``.

    >>> import torch.nn.functional as F
    >>> def pattern(x):
    ...     return F.dropout(x, p=literal("p"))
    """
    return Wildcard(name)


anything: Any = Wildcard()
"""A wildcard whose constant does not matter: ``F.dropout(x, p=anything)``."""


@dataclass(frozen=True, slots=True)
class PatternStage:
    """A part of a pattern that the search covers by going from results to inputs."""

    root: Node
    """The node to start from."""
    pivot: Node | None
    """An input of ``root`` that an earlier stage matched; the search tries its users. ``None``: the whole program."""


class Pattern:
    """A pattern to search for.

    The search goes from a result of the pattern to its inputs. If the pattern has more results, the search continues
    with the users of the matched values.
    """

    def __init__(self, pattern: Program) -> None:
        """Check ``pattern`` and bring it into canonical form.

        Raises:
            PassError: it has no operation, a part of it is not used, or it returns an input or a constant.
            TraceError: it cannot be captured.
        """
        self.graph: Graph = graph_of(pattern, "pattern")
        """The original pattern; its nodes are the keys of ``nodes_map``."""
        _check(self.graph)
        form, stands_for = _canonical(self.graph)
        drop_inner_checks(form.graph_module.graph, stands_for)
        nodes = list(form.graph_module.graph.nodes)
        self.stands_for: dict[Node, Node] = stands_for
        """The canonical nodes mapped to those of ``graph``."""
        self.values: dict[Node, Node] = {stands_for[node]: node for node in nodes if node.op != "output"}
        """The nodes of ``graph`` mapped to the canonical nodes of their values: the last one of each."""
        self.placeholders: list[Node] = [node for node in self.graph.nodes if node.op == "placeholder"]
        """Its inputs, nodes of ``graph``."""
        self.inputs: list[Node] = [node for node in nodes if node.op == "placeholder"]
        self.calls: list[Node] = [node for node in nodes if is_call(node)]
        self.of_tensors: frozenset[Node] = frozenset(
            node for node in self.calls if _is_operator(node) and not _is_operator(stands_for[node])
        )
        """Arithmetic by functions of torch; Python's operators would take numbers as well."""
        self.fetches: list[Node] = [node for node in nodes if node.op == "get_attr"]
        self.results: list[Node] = _results(self.graph, nodes[-1].args[0])
        """Its results, canonical nodes, leaf by leaf."""
        self.effects: dict[Node, Effect] = {node: effect for node in self.calls if (effect := effect_of(node))}
        self.constants: frozenset[str] = frozenset(self.graph.constants)
        """Paths of tensors that match by value; other tensors of a pattern match any tensor."""
        returned = self.graph.output_node().all_input_nodes
        self.anchors: list[Node] = [node for node in returned if len(node.users) == 1] or returned[:1]
        """Its results that it does not use itself, nodes of ``graph``."""
        if not self.calls:
            raise _nothing_to_find(self.graph)
        self.stages: list[PatternStage] = list(_stages(self.calls, self.results))

        self.inner: frozenset[Node] = frozenset(self.calls).difference(self.results)
        """Canonical nodes whose values may have no users outside of the pattern."""
        self.is_single: bool = len(set(self.results)) == 1 and len(self.stages) == 1
        """True if everything in it is computed for one result."""

    def is_of_layer(self, fetch: Node) -> bool:
        """Return whether a canonical fetch reads a tensor inside a layer that the pattern calls as a whole."""
        return self.stands_for[fetch].op == "call_module"


def graph_of(program: Program, role: str) -> Graph:
    """Return the graph of a pattern or replacement; capture it if it is not a graph yet.

    Raises:
        PassError: it cannot have a graph.
        TraceError: it cannot be captured.
    """
    if isinstance(program, Graph):
        return program
    if isinstance(program, GraphModule):
        return program.graph
    if not callable(program):
        raise PassError(
            f"the {role} is {type_in_words(program)}",
            value=shown(program),
            remedy="give a function, a module, a GraphModule or a Graph",
        )
    leaf = program if isinstance(program, torch.nn.Module) and Tracer().is_leaf_module(program, "") else None
    if leaf is not None and role == "pattern":
        return _call_of(leaf)
    try:
        return symbolic_trace(program).graph
    except Exception as error:
        if leaf is not None:
            return _call_of(leaf)
        add_note(error, f"while capturing the {role} {getattr(program, '__name__', type(program).__name__)}")
        raise


def _call_of(module: torch.nn.Module) -> Graph:
    """Return a program that calls a leaf module: its inside is not the user's, and some cannot be captured."""
    graph = Graph()
    parameters = inspect.signature(module.forward).parameters.values()
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    name = type(module).__name__.lower()
    graph.output(graph.call_module(name, tuple([graph.placeholder(parameter) for parameter in required])))
    return GraphModule({name: module}, graph).graph


def _check(graph: Graph) -> None:
    """Refuse patterns that are not well defined."""
    output = graph.output_node()
    for value in leaves_of(output.args[0]):
        if not isinstance(value, Node):
            raise PassError(
                f"the pattern returns the constant {value!r}",
                value=describe(output),
                why="a replacement takes the place of computed values",
                remedy="return only what the pattern computes",
            )
        if value.op == "placeholder":
            raise PassError(
                f"the pattern returns its input `{value.target}`",
                value=describe(output),
                why="which uses of that value to replace could not be told",
                remedy="return only what the pattern computes",
            )
    if not any(is_call(node) for node in graph.nodes):
        raise _nothing_to_find(graph)
    for node in graph.nodes:
        if not node.users and node.op not in ("placeholder", "output") and not node.is_impure():
            raise PassError(
                f"the pattern computes `%{node}` and does not use it",
                where=node.source,
                value=describe(node),
                why="what is not connected to a result could match anywhere",
                remedy="return it, or drop it from the pattern",
            )


def _nothing_to_find(graph: Graph) -> PassError:
    return PassError(
        "the pattern has no operation to look for",
        value=describe(graph.output_node()),
        remedy="let it call at least one function or module that computes something",
    )


def _canonical(graph: Graph) -> tuple[CanonicalForm, dict[Node, Node]]:
    """Return the canonical form of a graph, and the map from canonical nodes to its own nodes."""
    owner: Any = graph.owning_module
    if isinstance(owner, GraphModule) and owner.graph is graph:
        form = canonical_form(owner)
        return form, dict(form.stands_for)
    copied = copy.deepcopy(graph)
    form = canonical_form(GraphModule(torch.nn.Module() if owner is None else owner, copied))
    back = dict(zip(copied.nodes, graph.nodes, strict=True))
    return form, {node: back[original] for node, original in form.stands_for.items()}


def _is_operator(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__module__", None) == "_operator"


def _results(graph: Graph, returned: Argument) -> list[Node]:
    results = list(leaves_of(returned))
    for value in results:
        if not isinstance(value, Node) or not is_call(value):
            raise PassError(
                "the pattern returns what is not a result of an operation",
                value=describe(graph.output_node()),
                why="a parameter, or an input that passes through modules which compute nothing",
                remedy="return only what the pattern computes",
            )
    return results


def _stages(calls: list[Node], results: list[Node]) -> Iterator[PatternStage]:
    """Yield stages whose roots reach every node of the pattern."""
    reached_nodes: set[Node] = set()
    sinks = [node for node in results if not any(map(is_call, node.users))]
    root, pivot = (sinks or [node for node in calls if not any(map(is_call, node.users))])[0], None
    while True:
        yield PatternStage(root, pivot)
        reached_nodes.update(reached([root], lambda node: node.all_input_nodes))
        missing = [node for node in calls if node not in reached_nodes]
        if not missing:
            return
        root, pivot = _next_root(missing, reached_nodes)


def _next_root(missing: list[Node], reached_nodes: set[Node]) -> tuple[Node, Node | None]:
    """Return a node not reached yet, with an input that is; inputs that tend to have few users come first."""
    for kinds in (("call_function", "call_method", "call_module"), ("placeholder",), ("get_attr",)):
        for node in missing:
            for used in node.all_input_nodes:
                if used in reached_nodes and used.op in kinds:
                    return node, used
    return next(node for node in missing if not any(map(is_call, node.users))), None
