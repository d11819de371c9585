"""``Rewrite``: the replacement of a pattern's occurrences in a program, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fx.container_kinds import leaves_of
from fx.errors import PassError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.matcher.occurrences import InternalMatch, Occurrence
from fx.matcher.origins import record_origins
from fx.matcher.patterns import Pattern
from fx.matcher.replacement_copy import Attributes, copy_replacement
from fx.matcher.searched_program import SearchedProgram, attribute_value, is_call
from fx.modules.attributes import is_own, prefixes
from fx.naming.printing import describe
from fx.node import Argument, Node, map_arg, nodes_in, reached
from fx.operators.effects import effect_of


class Rewrite:
    """The edits of a program that replace the occurrences of a pattern."""

    def __init__(self, graph_module: GraphModule, pattern: Pattern, subject: SearchedProgram) -> None:
        """Prepare to edit ``graph_module``, the source of ``subject``."""
        self._program = graph_module
        self._pattern = pattern
        self._subject = subject
        self._attributes = Attributes(graph_module, pattern.graph)
        self._replaced: dict[Node, Argument] = {}
        self._moved: set[Node] = set()
        self._uncalled: dict[str, None] = {}
        self._changed = False

    def check_fit(self, replacement: Graph) -> None:
        """Check that ``replacement`` can take the place of the pattern, so that no rewrite stops half-way.

        Raises:
            PassError: it takes or returns another number of values, or refers to an attribute that does not exist.
        """
        inputs, placeholders = replacement.find_nodes(op="placeholder"), self._pattern.placeholders
        compared = f"replacement({_names(inputs)}), pattern({_names(placeholders)})"
        if len(inputs) != len(placeholders):
            raise PassError(
                f"the replacement takes {_count(len(inputs), 'input')}, the pattern {len(placeholders)}",
                value=compared,
                why="each input of the replacement gets the value of the pattern's input in the same place",
                remedy="give both the same inputs, used or not",
            )
        for node, counterpart in zip(inputs, placeholders, strict=True):
            if node.users and not self._pattern.values[counterpart].users:
                raise PassError(
                    f"the replacement uses its input `{node.target}`, which the pattern does not use",
                    value=compared,
                    why="a match has no value for it",
                    remedy="use it in the pattern too",
                )
        self._check_results(replacement.output_node())
        self._attributes.check(replacement)

    def _check_results(self, output: Node) -> None:
        values, results = list(leaves_of(output.args[0])), self._pattern.results
        compared = f"{describe(output)}, {describe(self._pattern.graph.output_node())}"
        if len(values) != len(results):
            raise PassError(
                f"the replacement returns {_count(len(values), 'value')}, the pattern {len(results)}",
                value=compared,
                why="each value that the replacement returns takes the place of the pattern's in the same place",
            )
        values_of_results: dict[Node, Argument] = {}
        for result, value in zip(results, values, strict=True):
            if values_of_results.setdefault(result, value) is not value:
                raise PassError(
                    f"the replacement returns two values for `%{result}`, which the pattern returns twice",
                    value=compared,
                    remedy="return the same value in both places",
                )

    def updated(self, match: InternalMatch) -> InternalMatch:
        """Return ``match`` for the present program, with replacements for the results of earlier matches."""
        nodes_map = {key: self._current(value) for key, value in match.nodes_map.items()}
        return dataclasses.replace(
            match,
            nodes_map=nodes_map,
            placeholder_nodes=[nodes_map.get(node) for node in self._pattern.placeholders],
            name_node_map={node.name: value for node, value in nodes_map.items()},
        )

    def _current(self, argument: Argument) -> Argument:
        if isinstance(argument, Node):
            while isinstance(argument, Node) and argument in self._replaced:
                argument = self._replaced[argument]
            return argument
        return map_arg(argument, self._current)

    def replace(
        self, occurrence: Occurrence, match: InternalMatch, replacement: Graph
    ) -> tuple[dict[Node, Argument], list[Node]]:
        """Put ``replacement`` in the place of ``occurrence``.

        Returns:
            The values of the nodes of the pattern, and the new nodes.
        """
        graph = self._program.graph
        if not self._changed:
            record_origins(graph)
            self._changed = True
        is_pure = not self._pattern.effects and not any(map(effect_of, filter(is_call, replacement.nodes)))
        place, to_move = self._place(occurrence, match, is_pure)
        results = occurrence.results
        last = max(results, key=self._subject.order.__getitem__)
        with graph.inserting_before(place):
            fetched = self._fetch(match)
            pairs = zip(replacement.find_nodes(op="placeholder"), self._pattern.placeholders, strict=True)
            canonical = self._pattern.values
            values = {node: fetched[matched] for node, matched in pairs if canonical[matched] in occurrence.bound}
            paths = self._matched_paths(occurrence)
            returned, new_nodes = copy_replacement(
                replacement,
                graph,
                values,
                lambda node: self._attributes.path(replacement, node, paths),
                occurrence.nodes,
                last,
            )
        for node in to_move:
            place.prepend(node)
        self._moved.update(to_move)
        for result, value in zip(results, leaves_of(returned), strict=True):
            self._replaced[result] = value
            result.replace_all_uses_with(value)
        self._erase(occurrence)
        for node in nodes_in(list(fetched.values())):
            if node.op == "get_attr" and not node.users:
                graph.erase_node(node)
        nodes_map = {node: fetched.get(node, value) for node, value in match.nodes_map.items()}
        return nodes_map, new_nodes

    def finish(self) -> None:
        """Drop the modules without calls, and recompile."""
        if not self._changed:
            return
        nodes = (node for node in self._program.graph.nodes if node.op in ("call_module", "get_attr"))
        used = {prefix for node in nodes for prefix in prefixes(str(node.target))}
        for path in self._uncalled:
            if path not in used and is_own(self._program, path):
                self._program.delete_submodule(path)
        self._program.graph.lint()
        self._program.recompile()

    # The place of the replacement.

    def _place(self, occurrence: Occurrence, match: InternalMatch, is_pure: bool) -> tuple[Node, list[Node]]:
        """Return the node before which to put the replacement, and earlier nodes to move behind it.

        The place is before the first user, or at the end of the match if an effect comes earlier.
        """
        own = {*occurrence.nodes, *occurrence.no_ops()}
        last = max(own)

        def users_before_its_end(node: Node) -> list[Node]:
            return [user for user in node.users if user not in own and user < last]

        to_move = sorted(reached(own, users_before_its_end).keys() - own)
        if not to_move:
            users = [user for result in occurrence.results for user in result.users if user not in own]
            first = min(users, default=last.next)
            return (first if is_pure and self._is_free(last, first) else last.next), []
        inputs = nodes_in(match.placeholder_nodes)
        in_graph = (node for node in inputs if node.graph is last.graph)
        if is_pure and all(node < to_move[0] for node in in_graph) and self._is_free(to_move[0], last):
            return to_move[0], []
        return last.next, to_move

    def _is_free(self, first: Node, last: Node) -> bool:
        """Return whether no operation between the two may have an effect."""
        order = self._subject.order
        if not self._moved.isdisjoint((first, last)) or first not in order or last not in order:
            return False
        return not self._subject.has_effect_between(order[first] + 1, order[last] - 1)

    # The values for the replacement.

    def _fetch(self, match: InternalMatch) -> dict[Node, Argument]:
        """Return the values for the pattern's inputs; add nodes for attributes that only leaf modules read so far."""
        graph = self._program.graph
        fetched: dict[Node, Node] = {}

        def fetch(node: Node) -> Node:
            if node.graph is graph:
                return node
            if node not in fetched:
                path = self._attributes.install(node.graph.owning_module, str(node.target), attribute_value(node))
                fetched[node] = graph.get_attr(path)
            return fetched[node]

        passed = zip(self._pattern.placeholders, match.placeholder_nodes, strict=True)
        return {node: map_arg(value, fetch) for node, value in passed}

    def _matched_paths(self, occurrence: Occurrence) -> Mapping[str, str]:
        """Return the paths of the matched tensors and modules by the paths of the pattern's."""
        paths: dict[str, str] = {}
        stands_for = self._subject.stands_for
        for fetch in self._pattern.fetches:
            if isinstance(value_in_program := occurrence.bound.get(fetch), Node):
                paths[str(fetch.target)] = str(value_in_program.target)
        for node, value in self._pattern.values.items():
            value_in_program = occurrence.bound.get(value)
            if (
                node.op == "call_module"
                and isinstance(value_in_program, Node)
                and stands_for[value_in_program].op == "call_module"
            ):
                paths[str(node.target)] = str(stands_for[value_in_program].target)
        return paths

    def _erase(self, occurrence: Occurrence) -> None:
        """Erase the replaced nodes, and inputs that only they used."""
        graph = self._program.graph
        served: dict[Node, None] = {}
        own = {*occurrence.nodes, *occurrence.no_ops()}
        for node in sorted(own, reverse=True):
            if node.op == "call_module":
                self._uncalled[str(node.target)] = None
            served.update(dict.fromkeys(node.all_input_nodes))
            graph.erase_node(node)
        pending = sorted(node for node in served if node not in own)
        while pending:
            node = pending.pop()
            if not node.users and (node.op == "get_attr" or self._subject.is_no_op(node)):
                pending.extend(node.all_input_nodes)
                graph.erase_node(node)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(inputs: list[Node]) -> str:
    return ", ".join(str(node.target) for node in inputs)
