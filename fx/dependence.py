"""What may be swapped, merged, moved, dropped or run together without changing what a program computes.

One analysis answers for all passes, each time either ``None`` (allowed) or a sentence that says why not, with the names
of the nodes and the user's line. It joins what each operation does (:mod:`fx.effects`) with which values may share
memory (:mod:`fx.aliases`).

=================  =====================================================================================
effect             keeps its place among
=================  =====================================================================================
write              reads and writes of memory that may be the same; checks; unknown effects
random             other draws; unknown effects
check              other checks; writes; unknown effects
unknown            everything that has an effect; all that touches what unknown calls were ever given
state              everything: what it sets, such as gradient mode or autocast, may change any result
=================  =====================================================================================
"""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from fx.aliases import Aliases
from fx.effects import why_impure
from fx.errors import GraphError
from fx.printing import describe

if TYPE_CHECKING:
    from fx.effects import Effect
    from fx.graph import Graph
    from fx.node import Node

_COMPUTES, _WRITES, _DRAWS, _CHECKS, _UNKNOWN, _SETS = 1, 2, 4, 8, 16, 32
_ALL_EFFECTS = _WRITES | _DRAWS | _CHECKS | _UNKNOWN | _SETS
_KEEPS_ORDER_WITH = {
    _COMPUTES: _SETS,
    _WRITES: _CHECKS | _UNKNOWN,
    _DRAWS: _DRAWS | _UNKNOWN,
    _CHECKS: _CHECKS | _WRITES | _UNKNOWN,
    _UNKNOWN: _ALL_EFFECTS,
    _SETS: _COMPUTES,
}
_BITS = {"write": _WRITES, "random": _DRAWS, "check": _CHECKS, "unknown": _UNKNOWN, "state": _SETS}


class Dependences:
    """The dependences between the operations of one graph, worked out once, in linear time.

    The answers hold for the graph as it was: after an edit every question raises :class:`~fx.errors.GraphError`. A pass
    either asks everything first, or says what it did with :meth:`dropped` and :meth:`merged`. A question costs a
    logarithm of the graph's size for each input of the nodes that it is about.

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
        self._reads: list[Collection[int]] = []
        self._writes: list[Collection[int]] = []
        self._bits: list[int] = []
        self._accesses: dict[int, list[int]] = {}  # of each group of memory, the positions that read or write it
        self._writers: dict[int, list[int]] = {}
        self._ordered: dict[int, list[int]] = {bit: [] for bit in _KEEPS_ORDER_WITH}
        self._merged: dict[int, int] = {}
        self._returned = list(self.aliases.returned)
        for index, node in enumerate(self.aliases.nodes):
            self._add(index, node)

    def _add(self, index: int, node: Node) -> None:
        """Enter what one node reads and writes."""
        aliases = self.aliases
        kinds, roots, effect = aliases.kinds, aliases.roots, aliases.effects[index]
        reads = {roots[source] for source in aliases.inputs[index] if kinds[source] != "number"}
        if node.op == "call_module":
            reads.update(aliases.state_of(node))
        writes: Collection[int] = ()
        bits = 0
        if node.op.startswith("call"):
            bits = _COMPUTES
            if effect is not None:
                bits |= _bits_of(effect)
                writes = self._written_groups(index, node, bits)
                reads.update(writes)
        self._reads.append(reads)
        self._writes.append(writes)
        self._bits.append(bits)
        for group in reads:
            self._accesses.setdefault(group, []).append(index)
        for group in writes:
            self._writers.setdefault(group, []).append(index)
        for bit, positions in self._ordered.items():
            if bits & bit:
                positions.append(index)

    def _written_groups(self, index: int, node: Node, bits: int) -> Collection[int]:
        aliases = self.aliases
        if bits & (_UNKNOWN | _SETS):
            return {aliases.outside}
        if not bits & _WRITES:
            return ()
        roots, kinds = aliases.roots, aliases.kinds
        groups = {roots[source] for source in aliases.written_inputs(index) if kinds[source] != "number"}
        if node.op == "call_module" and aliases.writes_state(index):
            groups |= aliases.state_of(node)
        return groups

    # What is known of one operation.

    def reads(self, node: Node) -> frozenset[int]:
        """The groups of memory that ``node`` looks at or writes to; equal numbers stand for memory that may be shared."""
        return frozenset(map(self._group, self._reads[self._at(node)]))

    def writes(self, node: Node) -> frozenset[int]:
        """The groups of memory that ``node`` writes to."""
        return frozenset(map(self._group, self._writes[self._at(node)]))

    def memory(self, node: Node) -> int | None:
        """The group of memory that the value of ``node`` is in, or ``None`` if it holds none."""
        index = self._at(node)
        return None if self.aliases.kinds[index] == "number" else self._group(self.aliases.roots[index])

    def writers(self, node: Node) -> list[Node]:
        """The operations, in order, that may write to the memory of ``node``'s value."""
        group = self.memory(node)
        return [] if group is None else [self.aliases.nodes[index] for index in self._writers.get(group, ())]

    # Questions.

    def why_not_drop(self, node: Node) -> str | None:
        """Why ``node`` cannot be erased: it is used, has an effect, or writes to what is read later.

        A write to memory that nothing reads afterwards, and that neither the caller nor the module sees, may go.
        """
        index = self._at(node)
        if node.users:
            return f"`%{next(iter(node.users))}` uses `%{node}`"
        effect = self.aliases.effects[index]
        if effect is None:
            return None
        if effect.kind != "write" or effect.draws:
            return self._say(index)
        return self._why_write_counts(index)

    def _why_write_counts(self, index: int) -> str | None:
        """Why a write is not dead: who may see the memory, or reads it later."""
        for group in self._writes[index]:
            group = self._group(group)
            if (owner := self._owner(group)) is not None:
                return f"{self._say(index)}, which {owner}"
            if (reader := _first(self._accesses[group], index, len(self._bits))) is not None:
                return f"{self._say(index)}, which `%{self.aliases.nodes[reader]}` reads"
        return None

    def _owner(self, group: int) -> str | None:
        """Who else sees the memory of a group, in words that follow `which`."""
        aliases = self.aliases
        if group == self._group(aliases.outside):
            return "functions without a schema were given and may have kept"
        if (path := aliases.state.get(group)) is not None:
            return f"may be memory of the module's `{path}`"
        return "may be memory of the caller" if group == self._group(aliases.given) else None

    def why_not_swap(self, first: Node, second: Node) -> str | None:
        """Why two operations that follow one another cannot run in the other order; whatever stands between them."""
        one, two = sorted((self._at(first), self._at(second)))
        nodes = self.aliases.nodes
        if (fixed := self._why_fixed(one) or self._why_fixed(two)) is not None:
            return fixed
        if one in self.aliases.inputs[two]:
            return f"`%{nodes[two]}` uses `%{nodes[one]}`"
        return self._why_ordered(one, two)

    def why_not_move(self, node: Node, before: Node) -> str | None:
        """Why ``node`` cannot stand right before ``before``, in either direction, while all others stay."""
        index, goal = self._at(node), self._at(before)
        if (fixed := self._why_fixed(index)) is not None:
            return fixed
        nodes, inputs = self.aliases.nodes, self.aliases.inputs[index]
        if goal <= index:
            if inputs and (last := max(inputs)) >= goal:
                return f"`%{node}` uses `%{nodes[last]}`"
            return self._why_not_cross(index, goal - 1, index)
        if node.users and (user := min(map(self._at, node.users))) < goal:
            return f"`%{nodes[user]}` uses `%{node}`"
        return self._why_not_cross(index, index, goal)

    def why_not_merge(self, first: Node, second: Node) -> str | None:
        """Why the users of ``second`` cannot use ``first``, the same call of the same arguments, in its place.

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
        if (setter := _first(self._ordered[_SETS], one, two)) is not None:
            return f"{self._say(setter)}, between `%{first}` and `%{second}`"
        for group in {*self._reads[one], *self._reads[two]}:
            if (writer := _first(self._writers.get(self._group(group), ()), one, two)) is not None:
                return f"{self._say(writer)}, which `%{second}` reads"
        groups = {group for group in (self.memory(first), self.memory(second)) if group is not None}
        for group in groups:
            if (writer := _first(self._writers.get(group, ()), one, len(self._bits))) is not None:
                return f"{self._say(writer)}, which may be memory of `%{first}` or of `%{second}`"
        if groups and self._returned[one] and self._returned[two]:
            return f"`%{first}` and `%{second}` may both be returned or kept, as two objects"
        return None

    def why_not_fuse(self, nodes: Iterable[Node]) -> str | None:
        """Why ``nodes`` cannot run together, in their order, where the last of them stands."""
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
        """Why the value of ``node`` is not the same in every run, given that its operands' are.

        It draws random numbers or has another effect, is an input, or shares memory with something that is written to.
        """
        index = self._at(node)
        if self.aliases.effects[index] is not None:
            return self._say(index)
        group = self.memory(node)
        for one in {*map(self._group, self._reads[index]), *(() if group is None else (group,))}:
            if writers := self._writers.get(one):
                return f"{self._say(writers[0])}, which may be memory that `%{node}` holds or reads"
        return None

    # Edits that the analysis survives.

    def dropped(self, node: Node) -> None:
        """Take note that ``node``, which nothing used, was erased, and nothing else was edited since."""
        index = self.aliases.position[node]
        for group in self._reads[index]:
            _discard(self._accesses[self._group(group)], index)
        for group in self._writes[index]:
            _discard(self._writers[self._group(group)], index)
        for bit, positions in self._ordered.items():
            if self._bits[index] & bit:
                _discard(positions, index)
        self._revision = self._graph.revision

    def merged(self, kept: Node, gone: Node) -> None:
        """Take note that the users of ``gone`` use ``kept`` now and ``gone`` was erased, and nothing else was edited."""
        one, two = self.aliases.position[kept], self.aliases.position[gone]
        self.dropped(gone)
        self._returned[one] |= self._returned[two]
        if self.aliases.kinds[two] == "number":
            return
        group, other = self._group(self.aliases.roots[one]), self._group(self.aliases.roots[two])
        if group != other:
            self._merged[other] = group
            for lists in (self._accesses, self._writers):
                _unite(lists, group, other)

    # How the answers are found.

    def _at(self, node: Node) -> int:
        """The position of ``node``, if the answers still hold."""
        if self._revision != self._graph.revision:
            raise GraphError(
                "the graph was edited after its dependences were worked out",
                why=f"they are those of revision {self._revision}, and the graph is at {self._graph.revision}",
                remedy="make new Dependences(graph), or tell these of each edit with dropped(node) or merged(kept, gone)",
            )
        index = self.aliases.position.get(node)
        if index is None:
            raise GraphError(
                f"`%{node}` is not in the graph whose dependences are asked for",
                where=node.source,
                value=describe(node),
            )
        return index

    def _group(self, group: int) -> int:
        """What a group has become since others were merged into it."""
        while (after := self._merged.get(group)) is not None:
            group = after
        return group

    def _why_fixed(self, index: int) -> str | None:
        effect = self.aliases.effects[index]
        return self._say(index) if effect is not None and effect.kind == "interface" else None

    def _why_ordered(self, one: int, two: int) -> str | None:
        """Why ``two`` cannot run before ``one``, apart from using its value."""
        nodes = self.aliases.nodes
        for writer, other in ((one, two), (two, one)):
            if not {*map(self._group, self._writes[writer])}.isdisjoint(map(self._group, self._reads[other])):
                return f"{self._say(writer)}, which `%{nodes[other]}` reads"
        if _orders_of(self._bits[one]) & self._bits[two]:
            return self._say_order(one, two)
        return None

    def _why_not_cross(self, index: int, low: int, high: int) -> str | None:
        """Why the operation at ``index`` cannot pass all between ``low`` and ``high``, which are not counted."""
        nodes = self.aliases.nodes
        for group in self._reads[index]:
            if (writer := _first(self._writers.get(self._group(group), ()), low, high)) is not None:
                return f"{self._say(writer)}, which `%{nodes[index]}` reads"
        for group in self._writes[index]:
            if (reader := _first(self._accesses.get(self._group(group), ()), low, high)) is not None:
                return f"{self._say(index)}, which `%{nodes[reader]}` reads"
        orders = _orders_of(self._bits[index])
        for bit, positions in self._ordered.items():
            if orders & bit and (other := _first(positions, low, high)) is not None:
                return self._say_order(index, other)
        return None

    def _why_not_gather(self, members: Sequence[int], inside: Collection[int]) -> str | None:
        """Why ``members`` cannot pass what stands between them: what is last there, of each kind, must come before."""
        nodes, last = self.aliases.nodes, members[-1]
        known: dict[tuple[str, int], int | None] = {}

        def latest(kind: str, key: int, positions: Sequence[int]) -> int:
            """The last of ``positions`` before ``last`` that is outside, looked for once."""
            if (kind, key) not in known:
                known[kind, key] = _last_outside(positions, last, inside)
            found = known[kind, key]
            return -1 if found is None else found

        for index in members:
            for group in map(self._group, self._reads[index]):
                if (writer := latest("write", group, self._writers.get(group, ()))) > index:
                    return f"{self._say(writer)}, which `%{nodes[index]}` reads"
            for group in map(self._group, self._writes[index]):
                if (reader := latest("access", group, self._accesses.get(group, ()))) > index:
                    return f"{self._say(index)}, which `%{nodes[reader]}` reads"
            orders = _orders_of(self._bits[index])
            for bit, positions in self._ordered.items():
                if orders & bit and (other := latest("order", bit, positions)) > index:
                    return self._say_order(index, other)
        return None

    def _why_rebound(self, one: int, two: int) -> str | None:
        """Why an attribute may be another object the second time that it is fetched."""
        group = self._group(self.aliases.roots[one])
        outside = group == self._group(self.aliases.outside)
        for bit in (_SETS, _UNKNOWN) if outside else (_SETS,):
            if (setter := _first(self._ordered[bit], one, two)) is not None:
                return f"{self._say(setter)}, between `%{self.aliases.nodes[one]}` and `%{self.aliases.nodes[two]}`"
        setters = [index for index in self.aliases.setters if one < index < two]
        return f"{self._say(setters[0])}, which `%{self.aliases.nodes[two]}` fetches from" if setters else None

    # What the answers say.

    def _say(self, index: int) -> str:
        """What the operation at ``index`` does, and the user's line: "`%mul_` writes to `%y`, model.py:12"."""
        node = self.aliases.nodes[index]
        place = "" if node.source is None else f", {node.source.file}:{node.source.line}"
        return f"{why_impure(node)}{place}"

    def _say_order(self, one: int, two: int) -> str:
        """Why two operations keep their order, whatever they read."""
        if self._bits[one] == _COMPUTES:
            one, two = two, one
        if self._bits[two] == _COMPUTES:
            return f"{self._say(one)}, which may change what `%{self.aliases.nodes[two]}` computes"
        return f"{self._say(one)}, and {self._say(two)}: they keep their order"


def _bits_of(effect: Effect) -> int:
    """The effect's kind as one bit of a set, with one more if it also draws random numbers."""
    bit = _BITS[effect.kind]
    if bit == _SETS and not effect.sets_modes:
        bit = _UNKNOWN
    return bit | (_DRAWS if effect.draws else 0)


@functools.cache
def _orders_of(bits: int) -> int:
    """What an operation with these effects keeps its order with."""
    return functools.reduce(operator.or_, (order for bit, order in _KEEPS_ORDER_WITH.items() if bits & bit), 0)


def _first(positions: Sequence[int], low: int, high: int) -> int | None:
    """The first of the sorted ``positions`` that is above ``low`` and below ``high``."""
    place = bisect_right(positions, low)
    return positions[place] if place < len(positions) and positions[place] < high else None


def _last_outside(positions: Sequence[int], high: int, inside: Collection[int]) -> int | None:
    """The last of the sorted ``positions`` that is below ``high`` and not ``inside``."""
    for place in range(bisect_left(positions, high) - 1, -1, -1):
        if positions[place] not in inside:
            return positions[place]
    return None


def _discard(positions: list[int], index: int) -> None:
    place = bisect_left(positions, index)
    if place < len(positions) and positions[place] == index:
        del positions[place]


def _unite(lists: dict[int, list[int]], group: int, other: int) -> None:
    """Move the positions of one group to another one, the few to the many."""
    few, many = sorted((lists.pop(group, []), lists.pop(other, [])), key=len)
    for index in few:
        if _first(many, index - 1, index + 1) is None:
            insort(many, index)
    if many:
        lists[group] = many
