"""The search for a pattern in a program: all matches, and the reasons why it does not match elsewhere (section 6.2).

A pattern matches by its computation, not by its spelling: ``nn.ReLU()``, ``F.relu``, ``torch.relu`` and ``x.relu()``
are the same, and so are arguments by position and by keyword, and both orders of operands of ``+``, ``*`` and the like.
In detail:

* an input of the pattern matches any argument, constants included, but the same argument at each of its uses;
* a layer in the pattern matches layers of its class, settings, sizes and mode, and functions called with parameters of
  its sizes;
* a function with weights as inputs of the pattern (``F.linear(x, weight, bias)``) matches layers of any size;
* another parameter or buffer of a pattern module matches any tensor of any size that the program fetches;
* other constants match if their types and values are equal; ``ignore_literals`` lets them match any constant,
  ``literal(name)`` and ``anything`` match any single constant;
* values inside of the match have no other users; the pattern's results may have;
* a leaf module is matched as a whole;
* operations with effects (in place, random) match only themselves, and no effect changes places with the match.

If matches overlap, the match that ends first in the program counts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import TypeAlias

from fx.argument_types import checked
from fx.errors import PassError
from fx.graph import Graph
from fx.graph_module import GraphModule
from fx.matcher.near_misses import Explanation, NearMiss, Wording, called
from fx.matcher.occurrences import InternalMatch, MatchState, Occurrence, at
from fx.matcher.patterns import Pattern, Program, Wildcard, anything, literal
from fx.matcher.searched_program import SearchedProgram, is_call
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
"""A function of a match, the graph of the program and that of the pattern; it returns true to accept the match."""

_COLLECTED: ContextVar[list[Explanation] | None] = ContextVar("explanations", default=None)
"""The list in which :func:`explanations` collects them."""
_TRIED = 64
"""The number of ways to match at one place that an explanation considers."""


class Matcher:
    """The search for one pattern in one program, which must not change while the matcher is in use."""

    @checked(PassError)
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
            ignore_literals: let every constant of the pattern match any constant.
            node_name_match: at the anchor, also accept any operation whose node's name contains this.

        Raises:
            PassError: the pattern is not well defined.
            TraceError: the pattern cannot be captured.
        """
        self.graph_module = graph_module
        self.pattern = Pattern(pattern)
        self.subject = SearchedProgram(graph_module)
        self.filters = tuple(match_filters)
        self._unifier = Unifier(self.pattern, self.subject, ignore_literals, node_name_match)
        self._match_state = MatchState(self.subject)

    def occurrences(self) -> list[Occurrence]:
        """Return, in order, all places where the pattern can be replaced; they do not overlap."""
        if (collected := _COLLECTED.get()) is not None:
            collected.append(self.explain())
        self._begin()
        return [occurrence for anchor in self._unifier.anchors() if (occurrence := self._first(anchor)) is not None]

    def matches(self) -> list[InternalMatch]:
        """Return these places in the form for filters and callbacks."""
        return [occurrence.internal_match() for occurrence in self.occurrences()]

    def explain(self) -> Explanation:
        """Return the matches, and the places where the pattern nearly matches, each with the obstacle."""
        matches: list[InternalMatch] = []
        misses: list[NearMiss] = []
        self._begin()
        for anchor in self._unifier.anchors():
            occurrence = self._first(anchor)
            if occurrence is not None:
                matches.append(occurrence.internal_match())
            elif (miss := self._near_miss(anchor)) is not None:
                misses.append(miss)
        nearest = None if matches else self._nearest(misses)
        operations = tuple(called(node) for node in self.pattern.calls)
        return Explanation(tuple(matches), tuple(misses), nearest, operations)

    def _nearest(self, misses: list[NearMiss]) -> NearMiss | None:
        """Return the place where most operations of the pattern match, perhaps without its last ones."""
        nearest = max(misses, key=lambda miss: miss.matched, default=None)
        rank = (0, False) if nearest is None else (nearest.matched, nearest.matched == len(self.pattern.calls))
        for root in reversed(self.pattern.calls):
            for node in self._unifier.calls_of(root):
                miss, is_computed = self._miss_of_part(root, node)
                if (miss.matched, is_computed) > rank:
                    nearest, rank = miss, (miss.matched, is_computed)
        return nearest

    def _miss_of_part(self, root: Node, node: Node) -> tuple[NearMiss, bool]:
        """Return the obstacle to a match of ``root`` at ``node``, and whether it lies between two operations."""
        mismatches: list[PatternMismatch] = []
        original = self.subject.stands_for[node]
        self._unifier.observer = mismatches.append
        try:
            for _ in self._unifier.solutions(node, root):
                return NearMiss(original, len(self._unifier.call_map), self._continuation(root, original)), True
        finally:
            self._unifier.observer = None
        farthest = max(mismatches, key=lambda mismatch: mismatch.depth)
        return self._miss_at(original, farthest), isinstance(farthest.program, Node) and is_call(farthest.program)

    def _continuation(self, root: Node, original: Node) -> str:
        """Return a sentence for a place that matches up to ``root``: the users of its value here and in the pattern."""
        expected = " and ".join(dict.fromkeys(called(user) for user in root.users if is_call(user)))
        users = dict.fromkeys(called(user) if is_call(user) else "its output" for user in original.users)
        return f"the pattern continues with {expected or 'another result'}, the program with {' and '.join(users)}"

    def _miss_at(self, original: Node, mismatch: PatternMismatch) -> NearMiss:
        reason = Wording(mismatch, self.pattern.stands_for, self.subject.stands_for).sentence()
        return _near_miss(original, mismatch.depth, reason)

    def _begin(self) -> None:
        self._match_state = MatchState(self.subject)
        self._unifier.begin()

    def _first(self, anchor: Node) -> Occurrence | None:
        """Return the first way to match from ``anchor`` that can be replaced, and add it to the matches."""
        if anchor in self._unifier.claimed:
            return None
        for _ in self._unifier.solutions(anchor):
            occurrence = self._occurrence()
            if occurrence.why_not(self._match_state) is None and self._refused_by(occurrence) is None:
                self._unifier.claimed.update(occurrence.call_map)
                self._match_state.add(occurrence)
                return occurrence
        return None

    def _occurrence(self) -> Occurrence:
        search = self._unifier
        # copies, as the search continues with the originals
        return Occurrence(self.pattern, self.subject, dict(search.bound), dict(search.call_map), dict(search.literals))

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
        """Return the obstacle at ``anchor``, of the way that went farthest, if a part of the pattern matched there."""
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
        return None if farthest.depth < min(2, calls - 1) else self._miss_at(original, farthest)


def _near_miss(node: Node, matched: int, reason: str) -> NearMiss:
    return NearMiss(node, matched, reason.removesuffix(at(node)))  # the line is reported with the node


def explain(
    graph_module: GraphModule,
    pattern: Program,
    match_filters: Sequence[MatchFilter] = (),
    ignore_literals: bool = False,
    node_name_match: str = "",
) -> Explanation:
    """Explain where a pattern matches, and where it nearly matches and the obstacle. Nothing is changed.

    A place is a near miss if the pattern's last operation is there and at least one more; for a pattern of one or two
    operations the last one is enough. The arguments are those of
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
    """Collect the explanations of all searches for patterns inside the context, in any function.

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
