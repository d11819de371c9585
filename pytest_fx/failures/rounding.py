"""Eager's own error at each node: what rounding in the working dtype does to right inputs, and to eager's own."""

from __future__ import annotations

from typing import Any

from fx import Node
from pytest_fx.errors import ComparisonError
from pytest_fx.failures.pairing import NodePairs
from pytest_fx.failures.stepwise import StepwiseProgram, repeats
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.structure import map_tensors


class RoundingErrors:
    """The errors of a program in the working dtype, found out while that in float64 is run."""

    def __init__(self, eager: StepwiseProgram, match: NodePairs, *, is_accumulated: bool) -> None:
        """Take the program; with ``is_accumulated`` it is run on what it computes itself, too."""
        self.made: dict[Node, float] = {}
        """For nodes of the original: the error that is made of right inputs."""
        self.accumulated: dict[Node, float] = {}
        """The error that eager has there, with those of the nodes before it."""
        self._eager = eager
        self._nodes = {node.name: node for node in eager.graph.nodes}
        self._match = match
        self._is_accumulated = is_accumulated
        self._inside: dict[Node, Any] = {}
        """Rounded values of nodes whose work one node does together with that of later ones."""

    def step(self, node: Node, expected: Any, right: dict[Node, Any]) -> None:
        """Round what ``node``, which was just run with the value ``expected``, makes of its inputs in ``right``."""
        own = self._nodes.get(node.name)
        if own is None:
            return
        if self._is_accumulated and own.op != "output":
            self.accumulated[node] = distance(expected, self._eager.step(own))
            self._eager.forget(own)
        group = self._match.groups.get(node)
        if group is None:
            return
        if node.op == "placeholder":
            value = map_tensors(self._eager.narrowed, expected)
        elif node.op == "get_attr" or not repeats(node):
            return
        else:
            value = self._eager.run_on(own, self._inputs(node, group, right))
        if group is not node:
            self._inside[node] = value
        else:
            self.made[node] = distance(expected, value)
            for inner in [inner for inner in self._inside if self._match.groups[inner] is node]:
                del self._inside[inner]

    def _inputs(self, node: Node, group: Node, right: dict[Node, Any]) -> dict[Node, Any]:
        """The inputs of ``node`` by the nodes of the program in the working dtype."""
        inputs: dict[Node, Any] = {}
        for used in node.all_input_nodes:
            inside = self._match.groups.get(used) is group and used in self._inside
            inputs[self._nodes[used.name]] = self._inside[used] if inside else right[used]
        return inputs


def distance(expected: Any, actual: Any) -> float:
    """The largest distance of two values, element by element; infinite where they cannot be compared.

    Integers have none: an index or a class is another one, or is not.
    """
    try:
        pairs = pair_leaves(expected, actual, same_dtype=False)
    except ComparisonError:  # what cannot be compared by its kind is taken for equal
        return 0.0
    if isinstance(pairs, Mismatch):
        return float("inf")
    return max((leaf.largest_error for leaf in pairs if leaf.is_float), default=0.0)
