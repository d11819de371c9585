"""``Occurrence``: one place where a pattern occurs in a program, with the check that it can be replaced there."""

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
    """One match, in the form for filters and replacement callbacks."""

    anchors: list[Node]
    """The nodes of the pattern where the search started: results that the pattern does not use itself."""
    nodes_map: dict[Node, Argument] = field(default_factory=dict)
    """The pattern's nodes mapped to the program's: its operations to the matched ones, its inputs to arguments.

    A parameter that the program reads only inside of a leaf module is a ``get_attr`` node outside of the graph; its
    ``target`` is the path."""
    placeholder_nodes: list[Argument] = field(default_factory=list)
    """The arguments for the inputs of the pattern, in order; ``None`` for an input without users."""
    returning_nodes: list[Node] = field(default_factory=list)
    """The nodes of the program for the pattern's results, in order."""
    name_node_map: dict[str, Argument] = field(default_factory=dict)
    """``nodes_map`` by the names of the pattern's nodes."""
    literals: dict[str, Argument] = field(default_factory=dict)
    """The constants that matched the pattern's ``literal(name)``, by name."""


class MatchState:
    """The obstacles for further matches: effects between operations, and the matches so far."""

    def __init__(self, subject: SearchedProgram) -> None:
        """Start without matches."""
        self.subject = subject
        self._dependences: Dependences | None = None
        self.matched: set[Node] = set()
        """The operations of the matches so far."""
        self.last_operation = -1
        """The position of the last operation of all matches with several results."""
        self.fused: dict[Node, tuple[Node, ...]] = {}
        """For the operations of matches with several results, all operations of the match."""

    def add(self, occurrence: Occurrence) -> None:
        """Add ``occurrence`` to the matches: from now on its operations belong together."""
        self.matched.update(occurrence.nodes)
        if not occurrence.pattern.is_single:
            nodes = tuple(occurrence.nodes)
            self.fused.update(dict.fromkeys(nodes, nodes))
            self.last_operation = max(self.last_operation, self.subject.order[nodes[-1]])

    def why_not_fuse(self, nodes: Iterable[Node]) -> str | None:
        """Return why ``nodes`` cannot run together at the place of the last of them."""
        if self._dependences is None:
            self._dependences = Dependences(self.subject.graph_module.graph)
        return self._dependences.why_not_fuse(nodes)


@dataclass(eq=False)
class Occurrence:
    """An occurrence of a pattern in a program. It can be replaced if ``why_not`` is ``None``."""

    pattern: Pattern
    """The pattern."""
    subject: SearchedProgram
    """The program."""
    bound: dict[Node, Argument]
    """The canonical nodes of the pattern mapped to the program's values."""
    call_map: dict[Node, Node]
    """The matched canonical calls of the program mapped to those of the pattern."""
    literals: dict[str, Argument]
    """The constants that matched named wildcards."""

    @cached_property
    def nodes(self) -> list[Node]:
        """The program's own operations in the occurrence, in order."""
        originals = {self.subject.stands_for[node] for node in self.call_map}
        return sorted(originals, key=self.subject.order.__getitem__)

    @property
    def results(self) -> list[Node]:
        """The program's own nodes for the pattern's results."""
        return [self.subject.stands_for[self.bound[result]] for result in self.pattern.results]

    def internal_match(self) -> InternalMatch:
        """Return the match in torch.fx's form."""
        pattern, subject = self.pattern, self.subject
        nodes_map: dict[Node, Argument] = {
            node: self._as_written(canonical, subject.original(self.bound[canonical]))
            for node, canonical in pattern.values.items()
            if canonical in self.bound
        }
        return InternalMatch(
            anchors=list(pattern.anchors),
            nodes_map=nodes_map,
            placeholder_nodes=[nodes_map.get(node) for node in pattern.placeholders],
            returning_nodes=self.results,
            name_node_map={node.name: value for node, value in nodes_map.items()},
            literals=dict(self.literals),
        )

    def _as_written(self, pattern: Node, value: Argument) -> Argument:
        """Return a tuple for an input as the program spells it: perhaps a list, or one number for all elements."""
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
        """Refuse if an inner value has other users."""
        stands_for = self.subject.stands_for
        for node, pattern in self.call_map.items():
            if pattern not in self.pattern.inner:
                continue
            for user in node.users:
                if user not in self.call_map:
                    return _also_used(stands_for[node], stands_for[user])
        own = set(self.nodes)
        results = set(self.results)
        for node in self.nodes:
            if node not in results and (user := self._stray_user(node, own)) is not None:
                return _also_used(node, user)
        return None

    def _stray_user(self, node: Node, own: set[Node]) -> Node | None:
        """Return a user of ``node`` outside of the match, directly or through operations that compute nothing."""
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
        """Refuse if the match has only a part of a leaf module."""
        stands_for = self.subject.stands_for
        for node in self.nodes:
            for part in self.subject.parts[node]:
                if part not in self.call_map:
                    return f"`%{node}` calls a module that does more than the pattern: `%{part}` in it did not match"
        for result in self.pattern.results:
            node = self.bound[result]
            if self.subject.result(stands_for[node]) is not node:
                return f"`%{stands_for[node]}` calls a module, and the pattern returns a value that stays inside of it"
        return None

    def _own_input(self) -> str | None:
        """Refuse if an input of the pattern is a value inside the match or inside a leaf module."""
        for node in self.pattern.inputs:
            value = self.bound.get(node)
            for used in nodes_in(value):
                if used in self.call_map:
                    name = self.subject.stands_for[used].name
                    return f"the pattern's input `{node.target}` would be `%{name}`, which is a part of the match"
            if hidden := self.subject.hidden(value):
                name = self.subject.stands_for[hidden[0]].name
                return f"the pattern's input `{node.target}` would be a value inside of the module that `%{name}` calls"
        return None

    def _order_of_effects(self) -> str | None:
        """Refuse if operations with effects have another order than in the pattern."""
        effects = self.pattern.effects
        if not effects:
            return None
        position = self.subject.position
        earlier: list[tuple[Node, int, bool]] = []
        for node in self.pattern.calls:
            # Random operations keep their order only among themselves, for the numbers that they draw; other effects
            # keep it with all operations.
            place, strong = position[self.bound[node]], node in effects and effects[node].kind != "random"
            for other, other_place, other_strong in earlier:
                both = node in effects and other in effects
                if (strong or other_strong or both) and place < other_place:
                    names = [f"`%{self.subject.stands_for[self.bound[call]]}`" for call in (node, other)]
                    return f"{names[0]} comes before {names[1]} here, in the pattern after it"
            earlier.append((node, place, strong))
        return None

    def _obstacle(self, state: MatchState) -> str | None:
        """Return the obstacle to running its operations together, at the place of the last of them.

        With several results, an earlier result may have users before that place. Such a user has to move behind the
        match, with all that is computed from it::

            sin = torch.sin(x)  # matched
            used = sin + y      # has to move behind cos, where sin will be computed
            cos = torch.cos(x)  # matched

        It cannot move

        - if an input of the match is computed from it, which would be a cycle;
        - if it belongs to another match, which runs as a whole;
        - if it has an effect, or would move past an effect of the match, as the order of effects counts.
        """
        order = self.subject.order
        first, last = order[self.nodes[0]], order[self.nodes[-1]]
        together = {*self.nodes, *self.no_ops()}
        to_move: list[Node] = []
        if not self.pattern.is_single:
            # An earlier match runs at the place of its own last operation, perhaps behind this match. A cycle may lead
            # through any of its operations, so the search continues to the last operation of all matches.
            followers = list(self._followers(together, state, max(last, state.last_operation)))
            for node, user in followers:
                if user in together:
                    return f"its input `%{node}`{at(node)} is computed from its own result"
            to_move = [node for node in dict.fromkeys(node for node, _ in followers) if order[node] < last]
        if (matched := next((node for node in to_move if node in state.matched), None)) is not None:
            return f"`%{matched}`{at(matched)} uses its result and belongs to another match, which comes first"
        if not (self.subject.has_effect_between(first, last) and len(together) > 1):
            return None
        if to_move and (self.pattern.effects or any(map(is_impure, to_move))):
            return (
                f"`%{to_move[0]}`{at(to_move[0])} uses its result and stands between its operations, which have effects"
            )
        return state.why_not_fuse(together.union(to_move))

    def _followers(self, together: set[Node], state: MatchState, last: int) -> Iterator[tuple[Node, Node]]:
        """Yield the nodes computed from the results, up to position ``last``, each with each of its users."""
        order = self.subject.order
        pending = [user for node in together for user in node.users]
        visited: set[Node] = set(together)
        while pending:
            node = pending.pop()
            if node in visited or order[node] > last:
                continue
            # Another match runs as a whole: users of any of its results come behind this match as well.
            for member in state.fused.get(node, (node,)):
                visited.add(member)
                for user in member.users:
                    yield member, user
                    pending.append(user)

    def no_ops(self) -> list[Node]:
        """Return the operations between those of the match that compute nothing, in order."""

        def passed(node: Node) -> list[Node]:
            return [user for user in node.users if self.subject.is_no_op(user)]

        results = set(self.results)
        reachable = reached((node for node in self.nodes if node not in results), passed)
        return sorted(reachable.keys() - self.nodes, key=self.subject.order.__getitem__)


def _also_used(node: Node, user: Node) -> str:
    by = "returned by the program" if user.op == "output" else f"used by `%{user}`{at(user)}"
    return f"`%{node}` matched, but its result is also {by}"


def at(node: Node) -> str:
    """Return the place of a node in the user's program, as text after its name."""
    return f", {node.source.place}" if node.source is not None else ""
