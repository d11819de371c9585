"""``Occurrence``: one place where a pattern stands in a program, and whether it can be replaced there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from fx.analysis.dependence import Dependences
from fx.matcher.patterns import Pattern
from fx.matcher.searched_program import SearchedProgram
from fx.node import Argument, Node, nodes_in, reached
from fx.operators.effects import is_impure


@dataclass(frozen=True, slots=True)
class InternalMatch:
    """One match, as filters and replacement callbacks get it."""

    anchors: list[Node]
    """The nodes of the pattern from which it was found: those that it returns and does not use itself."""
    nodes_map: dict[Node, Argument] = field(default_factory=dict)
    """For the pattern's nodes, those of the program that do their work; for its inputs, what is passed there.

    A parameter that the program reads only inside of a leaf module is a ``get_attr`` node that is not in the graph; its
    ``target`` is the path."""
    placeholder_nodes: list[Argument] = field(default_factory=list)
    """What is passed for each input of the pattern, in order; ``None`` for one that the pattern does not use."""
    returning_nodes: list[Node] = field(default_factory=list)
    """The nodes of the program whose values the pattern returns, in order."""
    name_node_map: dict[str, Argument] = field(default_factory=dict)
    """``nodes_map`` by the names of the pattern's nodes."""
    literals: dict[str, Argument] = field(default_factory=dict)
    """The constants that the pattern's ``literal(name)`` stand for, by name."""


class MatchState:
    """What a match must not run into: effects between its operations, and the matches already made."""

    def __init__(self, subject: SearchedProgram) -> None:
        """Start without matches."""
        self.subject = subject
        self._dependences: Dependences | None = None
        self.matched: set[Node] = set()
        """The operations of the matches made so far."""
        self.last_operation = -1
        """Position of the last operation of all matches with several results."""
        self.fused: dict[Node, tuple[Node, ...]] = {}
        """For the operations of matches with several results, all operations of the match."""

    def add(self, occurrence: Occurrence) -> None:
        """Take ``occurrence`` as a match: from now on its operations stand together."""
        self.matched.update(occurrence.nodes)
        if not occurrence.pattern.is_single:
            nodes = tuple(occurrence.nodes)
            self.fused.update(dict.fromkeys(nodes, nodes))
            self.last_operation = max(self.last_operation, self.subject.order[nodes[-1]])

    def why_not_fuse(self, nodes: Iterable[Node]) -> str | None:
        """Return why ``nodes`` cannot run together where the last of them stands."""
        if self._dependences is None:
            self._dependences = Dependences(self.subject.graph_module.graph)
        return self._dependences.why_not_fuse(nodes)


@dataclass(eq=False)
class Occurrence:
    """A pattern found in a program. It can be replaced where ``why_not`` is ``None``."""

    pattern: Pattern
    """What was found."""
    subject: SearchedProgram
    """Where."""
    bound: dict[Node, Argument]
    """For canonical nodes of the pattern, what they stand for."""
    taken: dict[Node, Node]
    """For the canonical calls of the program, those of the pattern."""
    literals: dict[str, Argument]
    """The constants that named wildcards stand for."""

    @cached_property
    def nodes(self) -> list[Node]:
        """The program's own operations that it is made of, in order."""
        originals = {self.subject.stands_for[node] for node in self.taken}
        return sorted(originals, key=self.subject.order.__getitem__)

    @property
    def results(self) -> list[Node]:
        """The program's own nodes for what the pattern returns."""
        return [self.subject.stands_for[self.bound[result]] for result in self.pattern.results]

    def internal_match(self) -> InternalMatch:
        """The match as torch.fx describes it."""
        pattern, subject = self.pattern, self.subject
        nodes_map: dict[Node, Argument] = {
            node: self._as_written(canonical, subject.original(self.bound[canonical]))
            for node, canonical in pattern.values.items()
            if canonical in self.bound
        }
        return InternalMatch(
            anchors=list(pattern.anchors),
            nodes_map=nodes_map,
            placeholder_nodes=[nodes_map.get(node) for node in pattern.given],
            returning_nodes=self.results,
            name_node_map={node.name: value for node, value in nodes_map.items()},
            literals=dict(self.literals),
        )

    def _as_written(self, pattern: Node, value: Argument) -> Argument:
        """A tuple that is passed for an input, as the program has it: perhaps a list, or one number for all."""
        if not isinstance(value, tuple):
            return value
        for user in pattern.users:
            if user in self.bound:
                original = self.subject.stands_for[self.bound[user]]
                for written in (*original.args, *original.kwargs.values()):
                    if isinstance(written, list) and tuple(written) == value:
                        return written
                    if isinstance(written, int) and value and all(element is written for element in value):
                        return written
        return value

    # Why it cannot be replaced.

    def why_not(self, state: MatchState) -> str | None:
        """Return why it cannot be replaced, in a sentence, or ``None`` if it can."""
        return (
            self._outside_use()
            or self._cut_module()
            or self._own_input()
            or self._order_of_effects()
            or self._obstacle(state)
        )

    def _outside_use(self) -> str | None:
        """An inner value that somebody else uses."""
        stands_for = self.subject.stands_for
        for node, pattern in self.taken.items():
            if pattern not in self.pattern.inner:
                continue
            for user in node.users:
                if user not in self.taken:
                    return _also_used(stands_for[node], stands_for[user])
        own = set(self.nodes)
        results = set(self.results)
        for node in self.nodes:
            if node not in results and (user := self._stray_user(node, own)) is not None:
                return _also_used(node, user)
        return None

    def _stray_user(self, node: Node, own: set[Node]) -> Node | None:
        """A user of ``node`` that is not in the match, passing through operations that compute nothing."""
        pending = list(node.users)
        while pending:
            user = pending.pop()
            if user in own:
                continue
            if not self.subject.is_no_op(user):
                return user
            pending.extend(user.users)
        return None

    def _cut_module(self) -> str | None:
        """A leaf module of which the match has only a part."""
        stands_for = self.subject.stands_for
        for node in self.nodes:
            for part in self.subject.parts[node]:
                if part not in self.taken:
                    return f"`%{node}` calls a module that does more than the pattern: `%{part}` in it did not match"
        for result in self.pattern.results:
            node = self.bound[result]
            if self.subject.result(stands_for[node]) is not node:
                return f"`%{stands_for[node]}` calls a module, and the pattern returns a value that stays inside of it"
        return None

    def _own_input(self) -> str | None:
        """An input of the pattern that is a part of the match, or of something else that is called as a whole."""
        for node in self.pattern.inputs:
            value = self.bound.get(node)
            for used in nodes_in(value):
                if used in self.taken:
                    name = self.subject.stands_for[used].name
                    return f"the pattern's input `{node.target}` would be `%{name}`, which is a part of the match"
            if hidden := self.subject.hidden(value):
                name = self.subject.stands_for[hidden[0]].name
                return f"the pattern's input `{node.target}` would be a value inside of the module that `%{name}` calls"
        return None

    def _order_of_effects(self) -> str | None:
        """Operations with effects that come in another order than in the pattern."""
        effects = self.pattern.effects
        if not effects:
            return None
        position = self.subject.position
        seen: list[tuple[Node, int, bool]] = []
        for node in self.pattern.calls:
            place, strong = position[self.bound[node]], node in effects and effects[node].kind != "random"
            for other, other_place, other_strong in seen:
                both = node in effects and other in effects
                if (strong or other_strong or both) and place < other_place:
                    names = [f"`%{self.subject.stands_for[self.bound[one]]}`" for one in (node, other)]
                    return f"{names[0]} comes before {names[1]} here, in the pattern after it"
            seen.append((node, place, strong))
        return None

    def _obstacle(self, state: MatchState) -> str | None:
        """Return what keeps its operations from running together, where the last of them stands.

        With several results, one that is computed earlier may have been used before that place. What uses it has to
        move behind the match, with all that is computed from it::

            sin = torch.sin(x)  # matched
            used = sin + y      # has to move behind cos, where sin will be computed
            cos = torch.cos(x)  # matched

        It cannot move if an input of the match is computed from it, which would be a cycle; if it belongs to another
        match, which runs as a whole; or if it has an effect or would move past one of the match, whose order counts.
        """
        order = self.subject.order
        first, last = order[self.nodes[0]], order[self.nodes[-1]]
        together = {*self.nodes, *self.no_ops()}
        to_move: list[Node] = []
        if not self.pattern.is_single:
            # An earlier match runs where its own last operation stands, perhaps behind this one: a cycle may lead
            # through any operation that it has, hence the search goes on to the last operation of all of them.
            followers = list(self._followers(together, state, max(last, state.last_operation)))
            for node, user in followers:
                if user in together:
                    return f"its input `%{node}`{at(node)} is computed from its own result"
            to_move = [node for node in dict.fromkeys(node for node, _ in followers) if order[node] < last]
        if (taken := next((node for node in to_move if node in state.matched), None)) is not None:
            return f"`%{taken}`{at(taken)} uses its result and belongs to another match, which comes first"
        if not (self.subject.has_effect_between(first, last) and len(together) > 1):
            return None
        if to_move and (self.pattern.effects or any(map(is_impure, to_move))):
            return (
                f"`%{to_move[0]}`{at(to_move[0])} uses its result and stands between its operations, which have effects"
            )
        return state.why_not_fuse(together.union(to_move))

    def _followers(self, together: set[Node], state: MatchState, last: int) -> Iterator[tuple[Node, Node]]:
        """Yield what is computed from the results, up to position ``last``, each node with each of its users."""
        order = self.subject.order
        pending = [user for node in together for user in node.users]
        seen: set[Node] = set(together)
        while pending:
            node = pending.pop()
            if node in seen or order[node] > last:
                continue
            for member in state.fused.get(node, (node,)):
                seen.add(member)
                for user in member.users:
                    yield member, user
                    pending.append(user)

    def no_ops(self) -> list[Node]:
        """Return the operations that compute nothing and stand between those of the match, in order."""

        def passed(node: Node) -> list[Node]:
            return [user for user in node.users if self.subject.is_no_op(user)]

        results = set(self.results)
        found = reached((node for node in self.nodes if node not in results), passed)
        return sorted(found.keys() - self.nodes, key=self.subject.order.__getitem__)


def _also_used(node: Node, user: Node) -> str:
    by = "returned by the program" if user.op == "output" else f"used by `%{user}`{at(user)}"
    return f"`%{node}` matched, but its result is also {by}"


def at(node: Node) -> str:
    """Return where in the user's program a node is, to go behind its name."""
    return f", {node.source.place}" if node.source is not None else ""
