"""Replacement of each match of a pattern (paper, section 6.2).

>>> import torch, fx
>>> program = fx.symbolic_trace(lambda x: torch.relu(x) + x.relu())
>>> matches = replace_pattern(program, lambda x: torch.nn.functional.relu(x), lambda x: torch.nn.functional.gelu(x))
>>> print(program.code.strip())
def forward(self, x):
    gelu = torch.nn.functional.gelu(x)
    gelu_1 = torch.nn.functional.gelu(x);  x = None
    add = gelu + gelu_1;  gelu = gelu_1 = None
    return add

:mod:`fx.matcher` describes what matches; its ``explain`` gives the reason why a place does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from fx.argument_types import checked
from fx.arguments import shown
from fx.errors import PassError, type_in_words
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.matcher import InternalMatch, Matcher, MatchFilter
from fx.matcher.patterns import Program, graph_of
from fx.matcher.rewrite import Rewrite
from fx.node import Argument, Node

__all__ = ["Match", "ReplacedPatterns", "replace_pattern", "replace_pattern_with_filters"]

ReplacementCallback: TypeAlias = Callable[[InternalMatch, Graph, Graph], Graph]
"""A function that makes the replacement for a match; it also takes the graphs of the program and the pattern."""


class Match(NamedTuple):
    """One place where a pattern matched and was replaced."""

    anchor: Node
    """The node of the pattern from which the match was found."""
    nodes_map: dict[Node, Argument]
    """The program's nodes for the pattern's nodes, which are erased now; for its inputs, the arguments."""


@dataclass(slots=True)
class ReplacedPatterns:
    """One place where a pattern matched, and its replacement."""

    anchor: Node
    """The node of the pattern from which the match was found."""
    nodes_map: dict[Node, Argument]
    """The program's nodes for the pattern's nodes, which are erased now; for its inputs, the arguments."""
    replacements: list[Node]
    """The nodes that were added."""


@checked(PassError)
def replace_pattern(gm: GraphModule, pattern: Program, replacement: Program) -> list[Match]:
    """Replace every match of ``pattern`` in ``gm`` by ``replacement``, in place, and recompile.

    The replacement takes the same inputs as the pattern, in the same order, and returns as many values. Its nodes get
    the origins of all nodes that they replace, and the user's line of the last result. Modules and tensors of the
    replacement are copied into the program, under other names if theirs are taken. If the pattern has one under the
    same path that differs only in its values, the matched one is used instead. Modules that are no longer called are
    removed.

    Args:
        gm: the program.
        pattern: the pattern: a function, a module, a GraphModule or a Graph.
        replacement: the replacement, likewise.

    Returns:
        The matches, in order. If two overlap, the one that ends first counts.

    Raises:
        PassError: the pattern is not valid, or the replacement does not fit it.
        TraceError: one of them cannot be captured.
    """
    return [Match(done.anchor, done.nodes_map) for done in replace_pattern_with_filters(gm, pattern, replacement)]


@checked(PassError)
def replace_pattern_with_filters(
    gm: GraphModule,
    pattern: Program,
    replacement: Program | None = None,
    match_filters: Sequence[MatchFilter] | None = None,
    ignore_literals: bool = False,
    replacement_callback: ReplacementCallback | None = None,
    node_name_match: str = "",
) -> list[ReplacedPatterns]:
    """Replace the matches that all filters accept, as :func:`replace_pattern` does.

    Args:
        gm: the program.
        pattern: the pattern: a function, a module, a GraphModule or a Graph.
        replacement: the replacement, likewise; not needed with a ``replacement_callback``.
        match_filters: each is called with the match, the graph of ``gm`` and the graph of the pattern. A match that is
            refused makes room for another that overlaps it.
        ignore_literals: let every constant of the pattern match any constant.
        replacement_callback: makes a replacement for each match, called like a filter.
        node_name_match: at the anchor, also accept any operation whose node's name contains this.

    Returns:
        The replaced patterns, in order.

    Raises:
        PassError: the pattern is not valid, or the replacement does not fit it.
        TraceError: one of them cannot be captured.
    """
    if replacement is None and replacement_callback is None:
        raise PassError(
            "there is nothing to replace the pattern by", remedy="give a replacement or a replacement_callback"
        )
    common = None if replacement is None else graph_of(replacement, "replacement")
    matcher = Matcher(gm, pattern, () if match_filters is None else match_filters, ignore_literals, node_name_match)
    rewrite = Rewrite(gm, matcher.pattern, matcher.subject)
    if common is not None and replacement_callback is None:
        rewrite.check_fit(common)
    done: list[ReplacedPatterns] = []
    try:
        for occurrence in matcher.occurrences():
            match = rewrite.updated(occurrence.internal_match())
            graph = common
            if replacement_callback is not None:
                graph = _made_by(replacement_callback, replacement_callback(match, gm.graph, matcher.pattern.graph))
                rewrite.check_fit(graph)
            assert graph is not None
            nodes_map, added = rewrite.replace(occurrence, match, graph)
            done.append(ReplacedPatterns(match.anchors[0], nodes_map, added))
    finally:  # if a callback fails, the program has the replacements made so far
        rewrite.finish()
    return done


def _made_by(callback: ReplacementCallback, replacement: Any) -> Graph:
    if isinstance(replacement, GraphModule):
        return replacement.graph
    if not isinstance(replacement, Graph):
        raise PassError(
            f"the replacement callback returned {type_in_words(replacement)}",
            where=getattr(callback, "__qualname__", type(callback).__name__),
            value=shown(replacement),
            remedy="return a Graph or GraphModule: fx.symbolic_trace(function).graph",
        )
    return replacement
