"""Reasons why a pattern does not match a program: for our matcher, for torch.fx's and for Inductor's (section 6.2)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from textwrap import shorten
from typing import Any

import torch
import torch.fx
from torch.fx.passes.utils.matcher_utils import InternalMatch, SubgraphMatcher

from fx.arguments import shown
from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.interop.node_notes import location_of
from fx.matcher import Explanation, Matcher, explanations
from fx.naming.targets import qualified_name
from fx.provenance import SourceLocation

_INDUCTOR = "torch._inductor.pattern_matcher"
_CALLS = ("call_function", "call_method", "call_module")
_LONGEST = 160
"""The most characters of a message by Inductor that are quoted."""


@dataclass(frozen=True, slots=True)
class MatchExplanation:
    """The number of matches of a pattern; if there is none, its nearest place with the first failed condition."""

    matches: int
    """The number of matches; the other fields are for a pattern without any."""
    node: Any = None
    """The node of the program at the nearest place; None if no operation of the pattern occurs."""
    where: SourceLocation | None = None
    """The user's line of this node."""
    matched: int = 0
    """The number of operations of the pattern that match there."""
    operations: int = 0
    """The number of operations of the pattern."""
    reason: str | None = None
    """The first condition that failed, as a sentence; None if the pattern matches."""

    def __str__(self) -> str:
        if self.reason is None:
            return f"{self.matches} match{'' if self.matches == 1 else 'es'}"
        if self.node is None:
            return f"no match: {self.reason}"
        line = "" if self.where is None else f" ({self.where.place})"
        counted = f"{self.matched} of {self.operations} operations match"
        return f"no match; nearest is `%{self.node}`{line}, where {counted}: {self.reason}"


def explain_match(program: Any, pattern: Any, **options: Any) -> MatchExplanation:
    """Explain why a pattern does not match a program: its nearest place, and the first condition that fails there.

    Nothing is changed.

    Args:
        program: a program of ours, of torch.fx, or from ``torch.export``.
        pattern: for a program of ours, whatever :func:`~fx.subgraph_rewriter.replace_pattern` takes. For one of torch,
            a function, a module or a graph, which torch.fx's ``SubgraphMatcher`` looks for; such a matcher itself; or a
            ``PatternMatcherPass`` of Inductor, of whose patterns the nearest is explained.
        options: those of :class:`~fx.matcher.Matcher` or ``SubgraphMatcher``.

    Raises:
        PassError: the program is no captured program, or the pattern does not fit it.
        TraceError: the pattern cannot be captured.

    >>> import torch, fx
    >>> program = fx.symbolic_trace(lambda x: torch.relu(torch.exp(torch.sin(x))))
    >>> explain_match(program, lambda x: torch.relu(torch.exp(torch.cos(x)))).reason.partition(", <")[0]
    "the pattern's `%exp` is fed by cos, here by sin"
    """
    if isinstance(program, torch.export.ExportedProgram):
        program = program.graph_module
    is_of_torch = isinstance(pattern, SubgraphMatcher) or _is_of_inductor(pattern)
    if isinstance(program, GraphModule) and not is_of_torch:
        ours: Any = pattern
        return _of_ours(Matcher(program, ours, **options).explain())
    if not isinstance(program, torch.fx.GraphModule):
        needed = "a torch.fx.GraphModule" if is_of_torch else "a captured program"
        raise PassError(
            f"a match is explained in {needed}, not in {shown(program)}",
            remedy="give torch.fx.symbolic_trace(model), or torch.export.export(model, args)"
            if is_of_torch
            else "give fx.symbolic_trace(model)",
        )
    if _is_of_inductor(pattern):
        return _of_inductor(pattern, program.graph)
    matcher = pattern if isinstance(pattern, SubgraphMatcher) else _matcher(pattern, options)
    if matches := matcher.match(program.graph):
        return MatchExplanation(len(matches))
    return _nearest_in_torch(matcher, program.graph)


@contextmanager
def searches_explained() -> Generator[list[MatchExplanation]]:
    """Collect an explanation of each search inside the context that matches nothing, by any of the three matchers."""
    collected: list[MatchExplanation] = []

    def note(search: Callable[[], MatchExplanation]) -> None:
        explanation = search()
        if explanation.reason is not None:
            collected.append(explanation)

    with ExitStack() as stack:
        ours = stack.enter_context(explanations())
        stack.enter_context(_after(SubgraphMatcher, "match", lambda *call: note(lambda: _nearest_in_torch(*call))))
        if (inductor := sys.modules.get(_INDUCTOR)) is not None:  # its import takes seconds
            passes: Any = inductor.PatternMatcherPass
            stack.enter_context(_after(passes, "apply", lambda *call: note(lambda: _of_inductor(*call))))
        yield collected
        collected[:0] = [_of_ours(each) for each in ours if not each.matches]


@contextmanager
def _after(kind: Any, name: str, note: Callable[[Any, torch.fx.Graph], None]) -> Generator[None]:
    """Call ``note`` with the matcher and the graph after each call of a method that returns no match."""
    usual = getattr(kind, name)

    def watched(self: Any, graph: Any, *others: Any, **options: Any) -> Any:
        result = usual(self, graph, *others, **options)
        if not result:
            note(self, getattr(graph, "graph", graph))
        return result

    setattr(kind, name, watched)
    try:
        yield
    finally:
        setattr(kind, name, usual)


def _of_ours(explanation: Explanation) -> MatchExplanation:
    nearest, operations = explanation.nearest, len(explanation.operations)
    if explanation.matches:
        return MatchExplanation(len(explanation.matches))
    if nearest is None:
        return MatchExplanation(0, operations=operations, reason=explanation.obstacle)
    return MatchExplanation(0, nearest.node, nearest.where, nearest.matched, operations, nearest.reason)


# torch.fx


def _matcher(pattern: Any, options: dict[str, Any]) -> SubgraphMatcher:
    if isinstance(pattern, torch.fx.GraphModule):
        pattern = pattern.graph
    if not isinstance(pattern, torch.fx.Graph):
        if not callable(pattern):
            raise PassError(f"a pattern is a function, a module, a graph or a matcher, not {shown(pattern)}")
        pattern = torch.fx.symbolic_trace(pattern).graph
    return SubgraphMatcher(pattern, **options)


class _Attempt(SubgraphMatcher):
    """A matcher of torch.fx that records the first comparison that fails."""

    def __init__(self, matcher: SubgraphMatcher) -> None:
        vars(self).update(vars(matcher))
        self.failure: tuple[int, str] | None = None
        self._callers: list[tuple[torch.fx.Node, torch.fx.Node]] = []

    def _match_nodes(self, pn: Any, gn: Any, match: InternalMatch, node_name_match: str = "") -> bool:
        before = dict(match.nodes_map)
        fed_by = self._callers[-1] if self._callers else None
        self._callers.append((pn, gn))
        is_match = super()._match_nodes(pn, gn, match, node_name_match)
        self._callers.pop()
        if not is_match:
            self._fail(match, self._why_not(pn, gn, before, fed_by))
        return is_match

    def _match_literals(self, pn: Any, gn: Any, match: InternalMatch) -> bool:
        is_match = super()._match_literals(pn, gn, match)
        if not is_match and not self.ignore_literals:
            here = f"`%{self._callers[-1][1]}` " if self._callers else ""
            self._fail(match, f"{here}has {_value(gn)} where the pattern has {_value(pn)}")
        return is_match

    def _fail(self, match: InternalMatch, reason: str) -> None:
        if self.failure is None:
            self.failure = (_calls_in(match), reason)

    def _why_not(self, pn: Any, gn: Any, before: dict[Any, Any], fed_by: Any) -> str:
        if pn in before:
            return f"the pattern uses `{pn}` more than once, and the program has another value there, {_value(gn)}"
        if gn in before.values():
            return f"{_value(gn)} would be two values of the pattern, `{pn}` and another"
        if self._nodes_are_equal(pn, gn):
            return (
                f"`%{gn}` is called with {_given(gn)}, the pattern's with {_given(pn)} (torch.fx compares the arguments"
                " as they are spelled)"
            )
        if fed_by is None:
            return f"it is {_called(gn)}, the pattern has {_called(pn)}"
        return f"the pattern's `%{fed_by[0]}` is fed by {_called(pn)}, here by {_called(gn)}"


def _nearest_in_torch(matcher: SubgraphMatcher, graph: torch.fx.Graph) -> MatchExplanation:
    """Return the place where most operations of a pattern match that has no match."""
    calls = [node for node in matcher.pattern.nodes if node.op in _CALLS]
    best = MatchExplanation(
        0, operations=len(calls), reason=f"the program has no {' and no '.join(dict.fromkeys(map(_called, calls)))}"
    )
    for pattern in reversed(calls):
        for node in graph.nodes:
            if node.op in _CALLS and matcher._nodes_are_equal(pattern, node):
                matched, reason = _attempted(matcher, pattern, node, len(calls))
                if matched > best.matched:
                    best = MatchExplanation(0, node, _where(node), matched, len(calls), reason)
    return best


def _attempted(matcher: SubgraphMatcher, pattern: Any, node: Any, operations: int) -> tuple[int, str]:
    attempt, match = _Attempt(matcher), InternalMatch(anchors=[pattern])
    if not attempt._match_nodes(pattern, node, match):
        assert attempt.failure is not None
        return attempt.failure
    matched = _calls_in(match)
    return matched, _outside_use(matcher, match) or _continued(pattern.users, node, matched < operations)


def _continued(pattern_users: Iterable[Any], node: torch.fx.Node, is_part: bool) -> str:
    if not is_part:
        return "everything matches, but the matched operations would form a cycle if they were one"
    users = dict.fromkeys(map(_called, node.users))
    expected = [_called(user) for user in pattern_users if user.op in _CALLS]
    continued = " and ".join(dict.fromkeys(expected)) or "another result"
    return f"the pattern continues with {continued}, the program with {' and '.join(users)}"


def _outside_use(matcher: SubgraphMatcher, match: InternalMatch) -> str | None:
    """Return a sentence on an inner value of a match that has other users, as torch.fx allows none."""
    inner = {node: pattern for pattern, node in match.nodes_map.items() if pattern.op in _CALLS}
    for node, pattern in inner.items():
        if pattern in matcher.pattern_returning_nodes or not all(user in match.nodes_map for user in pattern.users):
            continue
        for user in node.users:
            if user not in inner:
                return f"`%{node}` matched, but its result is also used by `%{user}`"
    return None


def _calls_in(match: InternalMatch) -> int:
    return sum(node.op in _CALLS for node in match.nodes_map)


# Inductor


def _is_of_inductor(pattern: Any) -> bool:
    inductor: Any = sys.modules.get(_INDUCTOR)
    return inductor is not None and isinstance(pattern, inductor.PatternMatcherPass)


def _of_inductor(patterns: Any, graph: torch.fx.Graph) -> MatchExplanation:
    """Explain the pattern that comes nearest, as a share of its operations."""
    matches = 0
    best = MatchExplanation(0, reason="the program has none of the operations of the patterns")
    entries = {id(entry): entry for entries in patterns.patterns.values() for entry in entries}
    for entry in entries.values():
        parts = list(dict.fromkeys(_operations_in(entry.pattern)))
        for part in parts:
            for node in _candidates(part, graph):
                matched, reason = _attempted_by_inductor(entry, parts, part, node)
                matches += reason is None
                if matched * max(best.operations, 1) > best.matched * len(parts):
                    best = MatchExplanation(0, node, _where(node), matched, len(parts), reason)
    return MatchExplanation(matches) if matches else best


def _operations_in(pattern: Any) -> Iterator[Any]:
    """Yield the operations in an expression of Inductor, the last one first."""
    pending = [pattern]
    while pending:
        part = pending.pop(0)
        if isinstance(part, (list, tuple)):
            pending[:0] = part
        elif isinstance(part, dict):
            pending[:0] = part.values()
        elif part.__class__.__module__ == _INDUCTOR:
            if hasattr(part, "fns_set"):
                yield part
            pending[:0] = [
                getattr(part, name) for name in ("outputs", "pattern", "args", "kwargs") if hasattr(part, name)
            ]


def _candidates(part: Any, graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    extract_target: Any = importlib.import_module(_INDUCTOR).extract_target
    return (node for node in graph.nodes if node.op == part.op and extract_target(node) in part.fns_set)


def _attempted_by_inductor(entry: Any, parts: list[Any], part: Any, node: torch.fx.Node) -> tuple[int, str | None]:
    """Return the number of operations that match from ``node``, and what fails; None if the whole pattern matches.

    ``part`` is one of ``parts``, the operations of the pattern, and has to match at ``node``.
    """
    inductor: Any = importlib.import_module(_INDUCTOR)
    root = entry.pattern if part is parts[0] else part
    attempt = _attempt_class(inductor)(getattr(root, "outputs", [root]), graph=node.graph)
    try:
        match = attempt.match(root, node)
    except inductor.FailedMatch as error:
        match = error
    matched = len(attempt.matched)
    if not match:
        return matched, attempt.failure or str(match)
    if root is not entry.pattern:
        outer = [each for each in parts if each is not part and part in _operations_in(_arguments_of(each))]
        continued = outer[-1].fns_repr() if outer else "another result"
        users = " and ".join(dict.fromkeys(map(_called, node.users)))
        return matched, f"the pattern continues with {continued}, the program with {users}"
    if not entry.extra_check(match):
        name = getattr(entry.extra_check, "__qualname__", type(entry.extra_check).__name__)
        return matched, f"everything matches, but the pattern's `{name}` refuses it"
    return matched, None


@cache
def _attempt_class(inductor: Any) -> Any:
    """Return a class of contexts of Inductor's matcher that record the first comparison that fails."""

    class Attempt(inductor.MatchContext):
        def __init__(self, outputs: Any, *, graph: torch.fx.Graph) -> None:
            super().__init__(outputs, graph=graph)
            self.matched: dict[Any, None] = {}
            self.failure: str | None = None

        def match(self, pattern: Any, node: Any) -> Any:
            is_same = hasattr(pattern, "fns_set") and pattern._match_fns(node)
            if is_same and pattern._match_users(node, self):
                self.matched[pattern] = None
            result = super().match(pattern, node)
            if not result and self.failure is None:
                self.failure = self._why_not(pattern, node, is_same, result)
            return result

        def _why_not(self, pattern: Any, node: Any, is_same: bool, result: Any) -> str:
            if is_same and pattern not in self.matched:
                users = ", ".join(f"`%{user}`" for user in node.users)
                return (
                    f"`%{node}` is used by {users}, the pattern's {pattern.fns_repr()} by {pattern.users} operation(s)"
                )
            if hasattr(pattern, "fns_set") and not is_same:
                return f"the pattern has {pattern.fns_repr()} where the program has {_value(node)}"
            return shorten(str(result), _LONGEST, placeholder=" …")

    return Attempt


def _arguments_of(part: Any) -> list[Any]:
    return [getattr(part, name, ()) for name in ("args", "kwargs")]


# Words


def _where(node: torch.fx.Node) -> SourceLocation | None:
    trace = node.meta.get("stack_trace")
    return location_of(trace) if isinstance(trace, str) else None


def _value(value: Any) -> str:
    return f"`%{value}` ({_called(value)})" if isinstance(value, torch.fx.Node) else repr(value)


def _called(node: Any) -> str:
    if node.op == "placeholder":
        return f"the input `{node.target}`"
    if node.op == "output":
        return "its output"
    if node.op == "get_attr":
        return f"the attribute `{node.target}`"
    if node.op == "call_module":
        return f"the module `{node.target}`"
    if isinstance(node.target, (str, torch._ops.OpOverload)):
        return str(node.target)
    return qualified_name(node.target).rpartition(".")[2]


def _given(node: torch.fx.Node) -> str:
    return shorten(", ".join([*map(str, node.args), *(f"{name}={value}" for name, value in node.kwargs.items())]), 80)
