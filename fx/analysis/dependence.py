"""Dependence analysis: may operations be swapped, merged, moved, dropped or fused without changing the results?

All passes use this analysis. Each answer is ``None`` (allowed) or a sentence with the reason, the names of the nodes
and the user's line. It combines the effects of operations (:mod:`fx.operators.effects`) with alias analysis
(:mod:`fx.analysis.aliases`, which lists its assumptions).

=========  ==============================================================================================
effect     keeps its order relative to
=========  ==============================================================================================
write      reads and writes of possibly the same memory; checks; unknown effects
random     other draws of random numbers; unknown effects
check      other checks; writes; unknown effects
unknown    all operations with effects, and all that touch a value that an unknown call was given
state      the same; setting a mode, such as autocast or recording gradients, relative to all operations
=========  ==============================================================================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from fx.analysis.accesses import (
    COMPUTES,
    SETS_MODES,
    UNKNOWN,
    Accesses,
    first_between,
    keeps_order_with,
    last_outside,
)
from fx.analysis.aliases import Aliases
from fx.errors import GraphError
from fx.naming.printing import describe
from fx.operators.effects import why_impure

if TYPE_CHECKING:
    from fx.graph import Graph
    from fx.node import Node


class Dependences:
    """The dependences between the operations of one graph, computed once, in linear time.

    The answers hold for the graph as it was analyzed: after an edit every query raises :class:`~fx.errors.GraphError`.
    A pass either queries everything before its first edit, or reports each edit with :meth:`dropped` or :meth:`merged`,
    before or after making it. A query takes time logarithmic in the graph's size, for each input of its nodes.

    >>> import torch, fx
    >>> def function(x):
    ...     y = x + 1
    ...     z = y.sum()
    ...     y.mul_(2)
    ...     return y * z
    >>> graph = fx.symbolic_trace(function).graph
    >>> x, add, total, mul_, mul, output = graph.nodes
    >>> dependences = Dependences(graph)
    >>> dependences.why_not_move(total, before=mul_)
    >>> dependences.why_not_move(total, before=mul).partition(",")[0]
    '`%mul_` writes to `%add`'
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._revision = graph.revision
        self.aliases = Aliases(graph)
        """The groups of values that may share memory."""
        self._accesses = Accesses(self.aliases)
        self._returned = list(self.aliases.returned)
        self._gone: set[Node] = set()

    # Facts about one operation.

    def reads(self, node: Node) -> frozenset[int]:
        """Return the memory groups that ``node`` reads or writes; values in one group may share memory."""
        return self._accesses.reads(self._at(node))

    def writes(self, node: Node) -> frozenset[int]:
        """Return the memory groups that ``node`` writes to."""
        return self._accesses.writes(self._at(node))

    def memory(self, node: Node) -> int | None:
        """Return the memory group of the value of ``node``, or ``None`` if the value holds no memory."""
        index = self._at(node)
        return None if self.aliases.kinds[index] == "number" else self._accesses.group(self.aliases.roots[index])

    def writers(self, node: Node) -> list[Node]:
        """Return the operations, in order, that may write to the memory of ``node``'s value."""
        group = self.memory(node)
        return [] if group is None else [self.aliases.nodes[index] for index in self._accesses.writing(group)]

    def may_be_returned(self, node: Node) -> bool:
        """Return whether the value of ``node`` may be part of the result, or be kept by an unknown function."""
        return self._returned[self._at(node)]

    def only_computes(self, node: Node) -> bool:
        """Return whether ``node`` only computes its value, or fetches an attribute that no operation sets."""
        if node.op == "get_attr":
            return not self.aliases.setters
        return self._accesses.bits[self._at(node)] == COMPUTES

    def last_to_stay_behind(self, node: Node, passed: Collection[Node]) -> Node | None:
        """Return the last operation before ``node`` that ``node`` must stay behind, or ``None``.

        ``node`` only computes its value. Its own inputs are not considered, nor are the operations in ``passed``.
        """
        index, accesses, nodes = self._at(node), self._accesses, self.aliases.nodes
        ignored = {self._at(passed_node) for passed_node in passed}
        lists = [accesses.writing(group) for group in accesses.reads(index)]
        lists += accesses.doing(keeps_order_with(accesses.bits[index]))
        last = max((last_outside(positions, index, ignored) for positions in lists), default=-1)
        return None if last < 0 else nodes[last]

    # Queries.

    def why_not_drop(self, node: Node) -> str | None:
        """Return why ``node`` cannot be erased: it is used, has an effect, or writes to memory that is read later.

        A write may be erased if nothing reads the memory later and neither the caller nor the module can see it.
        """
        index = self._at(node)
        if (user := next((user for user in node.users if user not in self._gone), None)) is not None:
            return f"`%{user}` uses `%{node}`"
        effect = self.aliases.effects[index]
        if effect is not None and (effect.kind != "write" or effect.draws):
            return self._say(index)
        for group in self._accesses.writes(index):
            if (owner := self._owner(group)) is not None:
                return f"{self._say(index)}, which {owner}"
            if (reader := first_between(self._accesses.touching(group), index, len(self._returned))) is not None:
                return f"{self._say(index)}, which `%{self.aliases.nodes[reader]}` reads"
        return None

    def why_not_swap(self, first: Node, second: Node) -> str | None:
        """Return why two operations cannot run in the opposite order, regardless of the operations between them."""
        first_index, second_index = sorted((self._at(first), self._at(second)))
        nodes, accesses = self.aliases.nodes, self._accesses
        if (fixed := self._why_fixed(first_index) or self._why_fixed(second_index)) is not None:
            return fixed
        if first_index in self.aliases.inputs[second_index]:
            return f"`%{nodes[second_index]}` uses `%{nodes[first_index]}`"
        for writer, other in ((first_index, second_index), (second_index, first_index)):
            if not accesses.writes(writer).isdisjoint(accesses.reads(other)):
                return f"{self._say(writer)}, which `%{nodes[other]}` reads"
        ordered = keeps_order_with(accesses.bits[first_index]) & accesses.bits[second_index]
        return self._say_order(first_index, second_index) if ordered else None

    def why_not_move(self, node: Node, before: Node) -> str | None:
        """Return why ``node`` cannot move, up or down, to right before ``before`` while all other nodes stay."""
        index, goal = self._at(node), self._at(before)
        if (fixed := self._why_fixed(index)) is not None:
            return fixed
        if before.op == "placeholder":
            return f"{why_impure(before)}, and those come first"
        nodes, inputs = self.aliases.nodes, self.aliases.inputs[index]
        if goal <= index:
            if inputs and (last := max(inputs)) >= goal:
                return f"`%{node}` uses `%{nodes[last]}`"
            return self._why_not_cross(index, goal - 1, index)
        if node.users and (user := min(map(self._at, node.users))) < goal:
            return f"`%{nodes[user]}` uses `%{node}`"
        return self._why_not_cross(index, index, goal)

    def why_not_merge(self, first: Node, second: Node) -> str | None:
        """Return why the users of ``second`` cannot use ``first``, an earlier call with the same target and arguments.

        The caller has to check that both compute the same. These are not merged:

        * operations with effects, including random ones;
        * operations whose operands are written to in between, or whose value is written to later;
        * two values that may both be part of the program's result, since they must stay two objects.
        """
        first_index, second_index = self._at(first), self._at(second)
        for index in (first_index, second_index):
            if self.aliases.effects[index] is not None:
                return self._say(index)
        if first.op == "get_attr":
            return self._why_rebound(first_index, second_index)
        accesses = self._accesses
        for positions in accesses.doing(SETS_MODES):
            if (setter := first_between(positions, first_index, second_index)) is not None:
                return f"{self._say(setter)}, between `%{first}` and `%{second}`"
        for group in accesses.reads(first_index) | accesses.reads(second_index):
            if (writer := first_between(accesses.writing(group), first_index, second_index)) is not None:
                return f"{self._say(writer)}, which `%{second}` reads"
        memory = {group for group in (self.memory(first), self.memory(second)) if group is not None}
        for group in memory:
            if (writer := first_between(accesses.writing(group), first_index, len(self._returned))) is not None:
                return f"{self._say(writer)}, which may be memory of `%{first}` or of `%{second}`"
        if memory and self._returned[first_index] and self._returned[second_index]:
            return f"`%{first}` and `%{second}` may both be returned or kept, as two objects"
        return None

    def why_not_fuse(self, nodes: Iterable[Node]) -> str | None:
        """Return why ``nodes`` cannot run together, in their order, at the position of the last of them."""
        members = sorted({self._at(node) for node in nodes})
        inside = set(members)
        named = self.aliases.nodes
        for index in members:
            if (fixed := self._why_fixed(index)) is not None:
                return fixed
            for user in named[index].users:
                if (at := self._at(user)) < members[-1] and at not in inside:
                    return f"`%{user}` uses `%{named[index]}` before `%{named[members[-1]]}`, and is not among them"
        return self._why_not_gather(members, inside)

    def why_not_constant(self, node: Node) -> str | None:
        """Return why the value of ``node`` may differ between runs although its operands are the same in all runs.

        The reasons: it draws random numbers or has another effect, is an input, shares memory with a value that is
        written to, or follows an operation that sets a mode.
        """
        index = self._at(node)
        if self.aliases.effects[index] is not None:
            return self._say(index)
        group = self.memory(node)
        groups = self._accesses.reads(index) | (set() if group is None else {group})
        if (written := self._why_written(node, groups)) is not None:
            return written
        for positions in self._accesses.doing(SETS_MODES) if self._accesses.bits[index] else ():
            if (setter := first_between(positions, -1, index)) is not None:
                return self._say_order(setter, index)
        return None

    def why_state_varies(self, node: Node) -> str | None:
        """Return why parameters and buffers that ``node`` fetches, or that its module holds, may change in a run."""
        group = self.memory(node) if node.op == "get_attr" else None
        groups = {self._accesses.group(state_group) for state_group in self.aliases.state_of(node)}
        return self._why_written(node, groups if group is None else {group})

    # Edits that keep the analysis valid.

    def dropped(self, node: Node) -> None:
        """Treat ``node``, which has no other users, as erased."""
        self._accesses.drop(self.aliases.position[node])
        self._gone.add(node)
        self._revision = self._graph.revision

    def merged(self, kept: Node, gone: Node) -> None:
        """Treat ``gone`` as erased, and its users as users of ``kept``."""
        kept_index, gone_index = self.aliases.position[kept], self.aliases.position[gone]
        self.dropped(gone)
        self._returned[kept_index] |= self._returned[gone_index]
        if self.aliases.kinds[gone_index] != "number":
            self._accesses.merge(self.aliases.roots[kept_index], self.aliases.roots[gone_index])

    # The searches behind the queries.

    def _at(self, node: Node) -> int:
        """Return the position of ``node``; raise a ``GraphError`` if the graph was edited since the analysis."""
        if self._revision != self._graph.revision:
            raise GraphError(
                "the graph was edited after its dependences were computed",
                why=f"they are those of revision {self._revision}, and the graph is at {self._graph.revision}",
                remedy="make new Dependences(graph), or report each edit to these: dropped(node), merged(kept, gone)",
            )
        index = self.aliases.position.get(node)
        if index is None:
            raise GraphError(
                f"`%{node}` is not in the graph that these dependences are of",
                where=node.source,
                value=describe(node),
            )
        return index

    def _why_fixed(self, index: int) -> str | None:
        effect = self.aliases.effects[index]
        return self._say(index) if effect is not None and effect.kind == "interface" else None

    def _why_not_cross(self, index: int, low: int, high: int) -> str | None:
        """Return why the operation at ``index`` cannot pass those strictly between ``low`` and ``high``."""
        return self._why_not_pass(index, lambda positions: first_between(positions, low, high))

    def _why_not_gather(self, members: Sequence[int], inside: Collection[int]) -> str | None:
        """Return why ``members`` cannot pass the operations between them; the last one of each kind decides."""
        latest: dict[int, int] = {}

        def latest_after(index: int, positions: Sequence[int]) -> int | None:
            if id(positions) not in latest:  # ids are unique: the lists live as long as the analysis
                latest[id(positions)] = last_outside(positions, members[-1], inside)
            return latest[id(positions)] if latest[id(positions)] > index else None

        reasons = (self._why_not_pass(index, functools.partial(latest_after, index)) for index in members)
        return next((why for why in reasons if why is not None), None)

    def _why_not_pass(self, index: int, find: Callable[[Sequence[int]], int | None]) -> str | None:
        """Return why an operation cannot pass others; ``find`` returns the blocking position among some, or None."""
        nodes, accesses = self.aliases.nodes, self._accesses
        for group in accesses.reads(index):
            if (writer := find(accesses.writing(group))) is not None:
                return f"{self._say(writer)}, which `%{nodes[index]}` reads"
        for group in accesses.writes(index):
            if (reader := find(accesses.touching(group))) is not None:
                return f"{self._say(index)}, which `%{nodes[reader]}` reads"
        for positions in accesses.doing(keeps_order_with(accesses.bits[index])):
            if (other := find(positions)) is not None:
                return self._say_order(index, other)
        return None

    def _why_rebound(self, first: int, second: int) -> str | None:
        """Return why an attribute may be a different object when it is fetched the second time."""
        group = self._accesses.group(self.aliases.roots[first])
        bits = SETS_MODES | (UNKNOWN if group == self._accesses.group(self.aliases.outside) else 0)
        for positions in (*self._accesses.doing(bits), self.aliases.setters):
            if (setter := first_between(positions, first, second)) is not None:
                return (
                    f"{self._say(setter)}, between `%{self.aliases.nodes[first]}` and `%{self.aliases.nodes[second]}`"
                )
        return None

    def _why_written(self, node: Node, groups: Iterable[int]) -> str | None:
        for group in groups:
            if writers := self._accesses.writing(group):
                return f"{self._say(writers[0])}, which may be memory that `%{node}` holds or reads"
        return None

    def _owner(self, group: int) -> str | None:
        """Return another owner that sees a group's memory, in words that follow `which`, or ``None``."""
        aliases, became = self.aliases, self._accesses.group
        if group == became(aliases.outside):
            return "functions without a schema were given and may have kept"
        if (path := aliases.state.get(group)) is not None:
            return f"may be memory of the module's `{path}`"
        return "may be memory of the caller" if group == became(aliases.given) else None

    # The wording of answers.

    def _say(self, index: int) -> str:
        """Describe the operation at ``index`` and the user's line, as in "`%mul_` writes to `%y`, model.py:12"."""
        node = self.aliases.nodes[index]
        place = "" if node.source is None else f", {node.source.place}"
        does = why_impure(node)
        if does is None:
            consumed = self.aliases.nodes[self.aliases.consumed_iterators(index)[0]]
            does = f"`%{node}` uses up `%{consumed}`"
        return f"{does}{place}"

    def _say_order(self, first: int, second: int) -> str:
        """Describe why two operations keep their order, regardless of the memory that they read."""
        bits = self._accesses.bits
        if bits[first] == COMPUTES:
            first, second = second, first
        if bits[second] == COMPUTES:
            return f"{self._say(first)}, which may change what `%{self.aliases.nodes[second]}` computes"
        return f"{self._say(first)}, and {self._say(second)}: they keep their order"
