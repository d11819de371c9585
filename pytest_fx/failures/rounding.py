"""Eager's own error at each node: the effect of rounding in the working dtype on right inputs, and on eager's own."""

from __future__ import annotations

from typing import Any

from fx import Node
from pytest_fx.errors import ComparisonError
from pytest_fx.failures.pairing import NodePairs
from pytest_fx.failures.stepwise import StepwiseProgram, repeats
from pytest_fx.harness.equality import Mismatch, pair_leaves
from pytest_fx.harness.structure import map_tensors


class RoundingErrors:
    """The errors of a program in the working dtype, measured while the program in float64 runs."""

    def __init__(self, eager: StepwiseProgram, match: NodePairs, *, is_accumulated: bool) -> None:
        """Take the program; with ``is_accumulated`` it is also run on its own values."""
        self.made: dict[Node, float] = {}
        """For nodes of the original: their error on right inputs."""
        self.accumulated: dict[Node, float] = {}
        """For nodes of the original: eager's error there, with those of the nodes before."""
        self._eager = eager
        self._nodes = {node.name: node for node in eager.graph.nodes}
        self._match = match
        self._is_accumulated = is_accumulated
        self._inside: dict[Node, Any] = {}
        """Rounded values of nodes inside a group whose work a single node does."""

    def step(self, node: Node, expected: Any, right: dict[Node, Any]) -> None:
        """Record the rounding error of ``node`` on its inputs in ``right``; its exact value was ``expected``."""
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
        """Return the inputs of ``node``, keyed by the nodes of the program in the working dtype."""
        inputs: dict[Node, Any] = {}
        for used in node.all_input_nodes:
            inside = self._match.groups.get(used) is group and used in self._inside
            inputs[self._nodes[used.name]] = self._inside[used] if inside else right[used]
        return inputs


def distance(expected: Any, actual: Any) -> float:
    """Return the largest distance of two values, element by element; infinite if they cannot be compared.

    Integers have no distance: an index or a class is equal or not.
    """
    try:
        pairs = pair_leaves(expected, actual, same_dtype=False)
    except ComparisonError:  # values of a kind that cannot be compared count as equal
        return 0.0
    if isinstance(pairs, Mismatch):
        return float("inf")
    return max((leaf.largest_error for leaf in pairs if leaf.is_float), default=0.0)
