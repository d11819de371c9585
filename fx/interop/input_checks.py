"""Checks in a program for the constraints that ``torch.export`` puts on its inputs."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import torch

from fx.assertions import assert_is_none
from fx.graph import Graph
from fx.node import Node

_LARGEST_UNCHECKED = 2
"""Largest lower bound that is not checked: export assumes sizes of 2 or more, also where 0 and 1 would work."""


class InputChecks:
    """A writer of input checks at the insertion point of a graph: shapes, ranges of sizes, specialized values.

    The checks are ``torch._assert`` nodes, as capture records them; ``fx.passes.RemoveChecks`` drops them.
    """

    def __init__(self, graph: Graph, ranges: dict[Any, Any]) -> None:
        """Prepare checks for ``graph``; ``ranges`` maps symbolic sizes to their bounds."""
        self._graph = graph
        self._ranges = ranges
        self._sizes: dict[Any, Node] = {}

    def add(self, inputs: list[tuple[Node, Any]]) -> None:
        """Check each input against its example value: a tensor with symbolic sizes, a number, or another constant."""
        for node, value in inputs:
            if isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    if (symbol := _symbol(size)) is not None and symbol not in self._sizes:
                        what = f"size {dim} of {node.target} must be"
                        self._bind(symbol, self._graph.create_size_node(node, dim), what)
            elif (symbol := _symbol(value)) is not None and symbol not in self._sizes:
                self._bind(symbol, node, f"{node.target} must be")
        for node, value in inputs:
            if isinstance(value, torch.Tensor):
                self._check_shape(node, value)
            elif not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                self._check_value(node, value)

    def _bind(self, symbol: Any, size: Node, what: str) -> None:
        """Bind ``symbol`` to the node ``size``, and check its range; ``what`` begins the message."""
        self._sizes[symbol] = size
        if (bounds := self._ranges.get(symbol)) is None:
            return
        for bound, compare, word in ((bounds.lower, operator.ge, "least"), (bounds.upper, operator.le, "most")):
            if not bound.is_Integer or (compare is operator.ge and bound <= _LARGEST_UNCHECKED):
                continue
            self._assert(compare, size, int(bound), f"{what} at {word} {int(bound)}: the program was exported for that")

    def _check_shape(self, node: Node, value: torch.Tensor) -> None:
        sizes: list[Any] = []
        for dim, size in enumerate(value.shape):
            expected = size if isinstance(size, int) else self._value_of(size.node.expr)
            sizes.append(self._graph.create_size_node(node, dim) if expected is None else expected)
        shape = self._graph.call_method("size", (node,))
        message = f"{node.target} must have the shape {_text(value.shape)}: the program was exported for that"
        self._assert(operator.eq, shape, tuple(sizes), message)

    def _check_value(self, node: Node, value: Any) -> None:
        message = f"{node.target} has been specialized to have value {value} but got another value"
        if value is None:
            self._graph.call_function(assert_is_none, (node, message))
        else:
            self._assert(operator.eq, node, value, message)

    def _assert(self, compare: Any, left: Node, right: Any, message: str) -> None:
        condition = self._graph.call_function(compare, (left, right))
        self._graph.call_function(torch._assert, (condition, message))

    def _value_of(self, expression: Any) -> Any:
        """Return ``expression`` as a node or number; None if it is more than sums and products of known sizes."""
        if expression in self._sizes:
            return self._sizes[expression]
        if expression.is_Integer:
            return int(expression)
        if not (expression.is_Add or expression.is_Mul):
            return None
        combine = operator.add if expression.is_Add else operator.mul
        parts = list(map(self._value_of, expression.args))
        if None in parts:
            return None
        value = reduce(lambda left, right: self._graph.call_function(combine, (left, right)), parts)
        self._sizes[expression] = value
        return value


def _symbol(size: Any) -> Any:
    """Return the symbol of ``size`` if it is a single symbol, not a number or an expression."""
    if not isinstance(size, torch.SymInt):
        return None
    expression: Any = size.node.expr
    return expression if expression.is_Symbol else None


def _text(shape: torch.Size) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
