"""What may be swapped, merged, moved, dropped or run together without changing what a program computes.

One analysis answers for all passes, each time either ``None`` (allowed) or a sentence that says why not, with the names
of the nodes and the user's line. It joins what each operation does (:mod:`fx.operators.effects`) with which values may
share memory (:mod:`fx.analysis.aliases`, where its assumptions are listed).

=========  ==============================================================================================
effect     keeps its place among
=========  ==============================================================================================
write      reads and writes of memory that may be the same; checks; unknown effects
random     other draws of random numbers; unknown effects
check      other checks; writes; unknown effects
unknown    everything that has an effect, and all that touches what unknown calls were ever given
state      the same; what sets a mode, such as autocast or recording gradients, among all operations
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
    """The dependences between the operations of one graph, worked out once, in linear time.

    The answers hold for the graph as it was: after an edit every question raises :class:`~fx.errors.GraphError`. A pass
    either asks everything first, or tells of each edit with :meth:`dropped` or :meth:`merged`, before or after making
    it. A question costs a logarithm of the graph's size for each input of the nodes that it is about.

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
        """Which values may share memory."""
        self._accesses = Accesses(self.aliases)
        self._returned = list(self.aliases.returned)
        self._gone: set[Node] = set()

    # What is known of one operation.

    def reads(self, node: Node) -> frozenset[int]:
        """The groups of memory that ``node`` looks at or writes to; equal numbers stand for memory that may be one."""
        return self._accesses.reads(self._at(node))

    def writes(self, node: Node) -> frozenset[int]:
        """The groups of memory that ``node`` writes to."""
        return self._accesses.writes(self._at(node))

    def memory(self, node: Node) -> int | None:
        """The group of memory that the value of ``node`` is in, or ``None`` if it holds none."""
        index = self._at(node)
        return None if self.aliases.kinds[index] == "number" else self._accesses.group(self.aliases.roots[index])

    def writers(self, node: Node) -> list[Node]:
        """The operations, in order, that may write to the memory of ``node``'s value."""
        group = self.memory(node)
        return [] if group is None else [self.aliases.nodes[index] for index in self._accesses.writing(group)]

    def may_be_returned(self, node: Node) -> bool:
        """Return whether the value of ``node`` may be part of what is returned, or be kept by an unknown function."""
        return self._returned[self._at(node)]

    def only_computes(self, node: Node) -> bool:
        """Return whether ``node`` only computes its value, or fetches an attribute that is the same earlier."""
        if node.op == "get_attr":
            return not self.aliases.setters
        return self._accesses.bits[self._at(node)] == COMPUTES

    def last_to_stay_behind(self, node: Node, passed: Collection[Node]) -> Node | None:
        """The last operation before ``node``, which only computes, that it must not stand before, or ``None``.

        The values that it uses are not counted, nor the operations that are ``passed`` whatever they do.
        """
        index, accesses, nodes = self._at(node), self._accesses, self.aliases.nodes
        ignored = {self._at(one) for one in passed}
        lists = [accesses.writing(group) for group in accesses.reads(index)]
        lists += accesses.doing(keeps_order_with(accesses.bits[index]))
        found = max((last_outside(positions, index, ignored) for positions in lists), default=-1)
        return None if found < 0 else nodes[found]

    # Questions.

    def why_not_drop(self, node: Node) -> str | None:
        """Return why ``node`` cannot be erased: it is used, has an effect, or writes to what is read later.

        A write to memory that nothing reads afterwards, and that neither the caller nor the module sees, may go.
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
        """Return why two operations, one after the other, cannot run in the other order; whatever is between them."""
        one, two = sorted((self._at(first), self._at(second)))
        nodes, accesses = self.aliases.nodes, self._accesses
        if (fixed := self._why_fixed(one) or self._why_fixed(two)) is not None:
            return fixed
        if one in self.aliases.inputs[two]:
            return f"`%{nodes[two]}` uses `%{nodes[one]}`"
        for writer, other in ((one, two), (two, one)):
            if not accesses.writes(writer).isdisjoint(accesses.reads(other)):
                return f"{self._say(writer)}, which `%{nodes[other]}` reads"
        ordered = keeps_order_with(accesses.bits[one]) & accesses.bits[two]
        return self._say_order(one, two) if ordered else None

    def why_not_move(self, node: Node, before: Node) -> str | None:
        """Return why ``node`` cannot stand right before ``before``, in either direction, while all others stay."""
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
        """Return why the users of ``second`` cannot use ``first``, an earlier call of the same with the same arguments.

        That both compute the same is for the caller to see. Operations with effects, random ones too, are not merged;
        nor is anything whose operands are written to in between, or whose value is written to later; nor two values
        that may both be part of what the program returns, which must not become one object.
        """
        one, two = self._at(first), self._at(second)
        for index in (one, two):
            if self.aliases.effects[index] is not None:
                return self._say(index)
        if first.op == "get_attr":
            return self._why_rebound(one, two)
        accesses = self._accesses
        for positions in accesses.doing(SETS_MODES):
            if (setter := first_between(positions, one, two)) is not None:
                return f"{self._say(setter)}, between `%{first}` and `%{second}`"
        for group in accesses.reads(one) | accesses.reads(two):
            if (writer := first_between(accesses.writing(group), one, two)) is not None:
                return f"{self._say(writer)}, which `%{second}` reads"
        memory = {group for group in (self.memory(first), self.memory(second)) if group is not None}
        for group in memory:
            if (writer := first_between(accesses.writing(group), one, len(self._returned))) is not None:
                return f"{self._say(writer)}, which may be memory of `%{first}` or of `%{second}`"
        if memory and self._returned[one] and self._returned[two]:
            return f"`%{first}` and `%{second}` may both be returned or kept, as two objects"
        return None

    def why_not_fuse(self, nodes: Iterable[Node]) -> str | None:
        """Return why ``nodes`` cannot run together, in their order, where the last of them stands."""
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
        """Return why the value of ``node`` is not the same in every run, given that its operands' are.

        It draws random numbers or has another effect, is an input, or shares memory with something that is written to;
        or it comes after an operation that sets a mode.
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
        """Return why the parameters and buffers that ``node`` fetches, or calls a module with, may change in a run."""
        group = self.memory(node) if node.op == "get_attr" else None
        groups = {self._accesses.group(one) for one in self.aliases.state_of(node)}
        return self._why_written(node, groups if group is None else {group})

    # Edits that the analysis survives.

    def dropped(self, node: Node) -> None:
        """Count ``node``, which nothing else uses, as erased."""
        self._accesses.drop(self.aliases.position[node])
        self._gone.add(node)
        self._revision = self._graph.revision

    def merged(self, kept: Node, gone: Node) -> None:
        """Count ``gone`` as erased, and its users as those of ``kept``."""
        one, two = self.aliases.position[kept], self.aliases.position[gone]
        self.dropped(gone)
        self._returned[one] |= self._returned[two]
        if self.aliases.kinds[two] != "number":
            self._accesses.merge(self.aliases.roots[one], self.aliases.roots[two])

    # How the answers are found.

    def _at(self, node: Node) -> int:
        """The position of ``node``, if the answers still hold."""
        if self._revision != self._graph.revision:
            raise GraphError(
                "the graph was edited after its dependences were worked out",
                why=f"they are those of revision {self._revision}, and the graph is at {self._graph.revision}",
                remedy="make new Dependences(graph), or tell these of each edit: dropped(node), merged(kept, gone)",
            )
        index = self.aliases.position.get(node)
        if index is None:
            raise GraphError(
                f"`%{node}` is not in the graph whose dependences are asked for",
                where=node.source,
                value=describe(node),
            )
        return index

    def _why_fixed(self, index: int) -> str | None:
        effect = self.aliases.effects[index]
        return self._say(index) if effect is not None and effect.kind == "interface" else None

    def _why_not_cross(self, index: int, low: int, high: int) -> str | None:
        """Return why the operation at ``index`` cannot pass all between ``low`` and ``high``, which are not counted."""
        return self._why_held(index, lambda positions: first_between(positions, low, high))

    def _why_not_gather(self, members: Sequence[int], inside: Collection[int]) -> str | None:
        """Return why ``members`` cannot pass what stands between them, of which only the last of each kind counts."""
        known: dict[int, int] = {}

        def latest_after(index: int, positions: Sequence[int]) -> int | None:
            if id(positions) not in known:  # these lists live as long as the analysis
                known[id(positions)] = last_outside(positions, members[-1], inside)
            return known[id(positions)] if known[id(positions)] > index else None

        reasons = (self._why_held(index, functools.partial(latest_after, index)) for index in members)
        return next((why for why in reasons if why is not None), None)

    def _why_held(self, index: int, find: Callable[[Sequence[int]], int | None]) -> str | None:
        """Return why an operation cannot pass others, of which ``find`` returns the one that counts among some."""
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

    def _why_rebound(self, one: int, two: int) -> str | None:
        """Return why an attribute may be another object the second time that it is fetched."""
        group = self._accesses.group(self.aliases.roots[one])
        bits = SETS_MODES | (UNKNOWN if group == self._accesses.group(self.aliases.outside) else 0)
        for positions in (*self._accesses.doing(bits), self.aliases.setters):
            if (setter := first_between(positions, one, two)) is not None:
                return f"{self._say(setter)}, between `%{self.aliases.nodes[one]}` and `%{self.aliases.nodes[two]}`"
        return None

    def _why_written(self, node: Node, groups: Iterable[int]) -> str | None:
        for group in groups:
            if writers := self._accesses.writing(group):
                return f"{self._say(writers[0])}, which may be memory that `%{node}` holds or reads"
        return None

    def _owner(self, group: int) -> str | None:
        """Who else sees the memory of a group, in words that follow `which`."""
        aliases, became = self.aliases, self._accesses.group
        if group == became(aliases.outside):
            return "functions without a schema were given and may have kept"
        if (path := aliases.state.get(group)) is not None:
            return f"may be memory of the module's `{path}`"
        return "may be memory of the caller" if group == became(aliases.given) else None

    # What the answers say.

    def _say(self, index: int) -> str:
        """Return what the operation at ``index`` does, and the user's line: "`%mul_` writes to `%y`, model.py:12"."""
        node = self.aliases.nodes[index]
        place = "" if node.source is None else f", {node.source.place}"
        does = why_impure(node)
        if does is None:
            consumed = self.aliases.nodes[self.aliases.consumed_iterators(index)[0]]
            does = f"`%{node}` uses up `%{consumed}`"
        return f"{does}{place}"

    def _say_order(self, one: int, two: int) -> str:
        """Return why two operations keep their order, whatever they read."""
        bits = self._accesses.bits
        if bits[one] == COMPUTES:
            one, two = two, one
        if bits[two] == COMPUTES:
            return f"{self._say(one)}, which may change what `%{self.aliases.nodes[two]}` computes"
        return f"{self._say(one)}, and {self._say(two)}: they keep their order"
