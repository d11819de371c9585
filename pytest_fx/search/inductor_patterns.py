"""Expressions of Inductor's pattern matcher as programs that they match."""

from __future__ import annotations

import itertools
import sys
from typing import Any, cast

from torch import nn
from torch._ops import OpOverload

from fx import Graph, GraphModule, Node

_MATCHER = "torch._inductor.pattern_matcher"
_INPUTS = ("Arg", "KeywordArg", "ExclusiveKeywordArg", "Ignored")
_SAMPLES: dict[str, Any] = {"List[int]": [-1], "int": -1, "bool": False, "float": 0.5, "number": 2}
"""Values of arguments that are no tensors, by a part of their types in schemas."""
MOST_PROGRAMS = 12
"""The most patterns of a set that become programs."""


class _NoProgramError(Exception):
    """An expression leaves open what is called."""


def is_expression(value: Any) -> bool:
    """Return whether a value is a part of a pattern, or a set of patterns, of Inductor's matcher."""
    matcher: Any = sys.modules.get(_MATCHER)
    return matcher is not None and isinstance(value, (matcher.PatternExpr, matcher.PatternMatcherPass))


def programs_of(patterns: Any) -> list[GraphModule]:
    """Return programs that the first patterns of a set may match; none for a part of a pattern."""
    entries = [entry for entries in getattr(patterns, "patterns", {}).values() for entry in entries]
    unique = {id(entry.pattern): entry.pattern for entry in entries}
    programs = map(_program_of, itertools.islice(unique.values(), MOST_PROGRAMS))
    return [program for program in programs if program is not None]


def _program_of(expression: Any) -> GraphModule | None:
    """Return a program that an expression may match; None if it leaves open what is called.

    Each input of the expression is one of the program.
    """
    graph = Graph()
    builder = _Builder(graph)
    try:
        graph.output(builder.value(expression))
    except _NoProgramError:
        return None
    return GraphModule(nn.Module(), graph) if any(node.op == "call_function" for node in graph.nodes) else None


class _Builder:
    """Adds the nodes of an expression to a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._nodes = dict[Any, Node]()

    def value(self, part: Any, kind: str = "Tensor") -> Any:
        """Return the node of an expression, or any other argument of a call as it is.

        ``kind`` is the type of the argument in the schema of the call. An input that is no tensor is a sample.
        """
        if isinstance(part, (list, tuple)):
            return [self.value(each, kind) for each in cast("Any", part)]
        if not is_expression(part):
            return part
        is_input, name = type(part).__name__ in _INPUTS, getattr(part, "name", None)
        if is_input and "Tensor" not in kind:
            return next((sample for text, sample in _SAMPLES.items() if text in kind), None)
        key: Any = id(part) if name is None else name
        if key not in self._nodes:
            self._nodes[key] = self._input(name or f"input_{len(self._nodes)}") if is_input else self._call(part)
        return self._nodes[key]

    def _input(self, name: str) -> Node:
        call = next((node for node in self._graph.nodes if node.op != "placeholder"), None)
        with self._graph.inserting_before(call):
            return self._graph.placeholder(name)

    def _call(self, part: Any) -> Node:
        target = next((each for each in getattr(part, "fns", ()) if isinstance(each, OpOverload)), None)
        if target is None or not hasattr(part, "args"):
            raise _NoProgramError
        kinds = {each.name: str(each.type) for each in target._schema.arguments}
        args = [self.value(each, kind) for each, kind in zip(part.args, kinds.values(), strict=False)]
        kwargs = {name: self.value(each, kinds.get(name, "")) for name, each in part.kwargs.items()}
        return self._graph.call_function(target, tuple(args), kwargs)
