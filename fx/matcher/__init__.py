"""Finding a pattern in a program: all places, first come first served, and why not elsewhere (paper, section 6.2).

A pattern matches by what it computes, not by how it is spelled: ``nn.ReLU()``, ``F.relu``, ``torch.relu`` and
``x.relu()`` are one, and so are arguments by position and by keyword, and both orders of operands of ``+``, ``*`` and
the like. In detail:

* an input of the pattern matches any argument, constants included, but wherever it is used the same one;
* a layer in the pattern matches layers of its class, settings, sizes and mode, and functions called with parameters of
  its sizes; a function that is given weights as inputs (``F.linear(x, weight, bias)``) matches layers of any size;
* another parameter or buffer of a pattern module matches any tensor that the program fetches, of whatever size;
* other constants match if they are the same in type and value; ``ignore_literals`` lets them match any constant,
  ``literal(name)`` and ``anything`` single ones;
* values inside of the match are used nowhere else; what the pattern returns may be;
* a leaf module is matched as a whole;
* operations with effects (in place, random) match only themselves, and no effect changes places with the match.

Where matches overlap the one that ends first in the program counts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TypeAlias

from fx.arguments import expect, expect_all
from fx.errors import PassError
from fx.graph import Graph
from fx.graph_module import GraphModule, expect_program
from fx.matcher.near_misses import Explanation, NearMiss, Wording
from fx.matcher.occurrences import InternalMatch, MatchState, Occurrence, at
from fx.matcher.patterns import Pattern, Program, Wildcard, anything, literal
from fx.matcher.searched_program import SearchedProgram
from fx.matcher.unification import PatternMismatch, Unifier
from fx.node import Node

__all__ = [
    "Explanation",
    "InternalMatch",
    "MatchFilter",
    "Matcher",
    "NearMiss",
    "Wildcard",
    "anything",
    "explain",
    "explanations",
    "literal",
]

MatchFilter: TypeAlias = Callable[[InternalMatch, Graph, Graph], bool]
"""Says whether a match is wanted; it is also given the graphs of the program and of the pattern."""

_COLLECTED: ContextVar[list[Explanation] | None] = ContextVar("explanations", default=None)
"""Where :func:`explanations` collects them."""
_TRIED = 64
"""How many ways to match at one place are looked at for an explanation."""


class Matcher:
    """Looks for one pattern in one program. The program is not changed, and must not be while the matcher is used."""

    def __init__(
        self,
        graph_module: GraphModule,
        pattern: Program,
        match_filters: Sequence[MatchFilter] = (),
        ignore_literals: bool = False,
        node_name_match: str = "",
    ) -> None:
        """Prepare the search.

        Args:
            graph_module: the program.
            pattern: a function, a module, a GraphModule or a Graph.
            match_filters: all must accept a match.
            ignore_literals: let every constant of the pattern stand for any constant.
            node_name_match: at the anchor, also accept any operation whose node's name contains this.

        Raises:
            PassError: the pattern does not say what to look for.
            TraceError: the pattern cannot be captured.
        """
        expect_program(graph_module, "patterns are looked for in a GraphModule")
        what = "match_filters are functions that are given a match, the graph of the program and that of the pattern"
        filters = expect_all(match_filters, callable, what, error=PassError)
        expect(node_name_match, str, "node_name_match is a part of the names of nodes", error=PassError)
        self.graph_module = graph_module
        self.pattern = Pattern(pattern)
        self.subject = SearchedProgram(graph_module)
        self.filters: tuple[MatchFilter, ...] = filters
        self._unifier = Unifier(self.pattern, self.subject, ignore_literals, node_name_match)
        self._match_state = MatchState(self.subject)

    def occurrences(self) -> list[Occurrence]:
        """All places where the pattern can be replaced, none of which overlap, in order."""
        if (collected := _COLLECTED.get()) is not None:
            collected.append(self.explain())
        self._begin()
        return [found for anchor in self._unifier.anchors() if (found := self._first(anchor)) is not None]

    def matches(self) -> list[InternalMatch]:
        """The same, described for filters and callbacks."""
        return [occurrence.internal_match() for occurrence in self.occurrences()]

    def explain(self) -> Explanation:
        """The matches, and the places where the pattern nearly matches, each with what prevents it."""
        matches: list[InternalMatch] = []
        misses: list[NearMiss] = []
        self._begin()
        for anchor in self._unifier.anchors():
            occurrence = self._first(anchor)
            if occurrence is not None:
                matches.append(occurrence.internal_match())
            elif (miss := self._near_miss(anchor)) is not None:
                misses.append(miss)
        return Explanation(tuple(matches), tuple(misses))

    def _begin(self) -> None:
        self._match_state = MatchState(self.subject)
        self._unifier.begin()

    def _first(self, anchor: Node) -> Occurrence | None:
        """The first way to match from ``anchor`` that can be replaced; it belongs to the matches from now on."""
        if anchor in self._unifier.claimed:
            return None
        for _ in self._unifier.solutions(anchor):
            occurrence = self._occurrence()
            if occurrence.why_not(self._match_state) is None and self._refused_by(occurrence) is None:
                self._unifier.claimed.update(occurrence.taken)
                self._match_state.add(occurrence)
                return occurrence
        return None

    def _occurrence(self) -> Occurrence:
        found = self._unifier
        # copied, as the search goes on with its own
        return Occurrence(self.pattern, self.subject, dict(found.bound), dict(found.taken), dict(found.literals))

    def _refused_by(self, occurrence: Occurrence) -> str | None:
        if not self.filters:
            return None
        match = occurrence.internal_match()
        for match_filter in self.filters:
            if not match_filter(match, self.graph_module.graph, self.pattern.graph):
                name = getattr(match_filter, "__name__", type(match_filter).__name__)
                return f"everything matched, but the filter `{name}` refuses it"
        return None

    def _near_miss(self, anchor: Node) -> NearMiss | None:
        """Return what is missing at ``anchor``, if something matched there; of several ways that which got farthest."""
        if anchor in self._unifier.claimed:
            return None
        calls = len(self.pattern.calls)
        mismatches: list[PatternMismatch] = []
        original = self.subject.stands_for[anchor]
        self._unifier.observer = mismatches.append
        try:
            for _ in islice(self._unifier.solutions(anchor), _TRIED):
                occurrence = self._occurrence()
                reason = occurrence.why_not(self._match_state) or self._refused_by(occurrence)
                if reason is not None:
                    return _near_miss(original, calls, reason)
        finally:
            self._unifier.observer = None
        farthest = max(mismatches, key=lambda mismatch: mismatch.depth)
        if farthest.depth < min(2, calls - 1):
            return None
        reason = Wording(farthest, self.pattern.stands_for, self.subject.stands_for).sentence()
        return _near_miss(original, farthest.depth, reason)


def _near_miss(node: Node, matched: int, reason: str) -> NearMiss:
    return NearMiss(node, matched, reason.removesuffix(at(node)))  # the line is reported with the node


def explain(
    graph_module: GraphModule,
    pattern: Program,
    match_filters: Sequence[MatchFilter] = (),
    ignore_literals: bool = False,
    node_name_match: str = "",
) -> Explanation:
    """Return where a pattern matches, and where it nearly does and what prevents it. Nothing is changed.

    A place is a near miss if the pattern's last operation is there and at least one more (of a pattern of one or two
    operations: the last one). The arguments are those of
    :func:`~fx.subgraph_rewriter.replace_pattern_with_filters`.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(lambda x: (torch.relu(torch.exp(x)), torch.relu(torch.sin(x))))
    >>> explanation = explain(program, lambda x: torch.relu(torch.exp(x)))
    >>> len(explanation.matches)
    1
    >>> explanation.near_misses[0].reason.partition(", <")[0]
    "the pattern's `%relu` is fed by exp, here by sin"
    """
    return Matcher(graph_module, pattern, match_filters, ignore_literals, node_name_match).explain()


@contextmanager
def explanations() -> Generator[list[Explanation]]:
    """Collect what :func:`explain` says of every pattern that is looked for inside the block, in whatever function.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(lambda x: torch.relu(torch.sin(x)))
    >>> with explanations() as collected:
    ...     matches = fx.replace_pattern(program, lambda x: torch.relu(torch.exp(x)), lambda x: x)
    >>> [len(explanation.near_misses) for explanation in collected]
    [1]
    """
    collected: list[Explanation] = []
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)
