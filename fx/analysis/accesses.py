"""Where a program reads and writes which memory, and where its other effects are: positions to search, not to walk."""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from fx.analysis.aliases import Aliases

if TYPE_CHECKING:
    from fx.node import Node
    from fx.operators.effects import Effect

COMPUTES, WRITES, DRAWS, CHECKS, UNKNOWN, SETS_MODES = 1, 2, 4, 8, 16, 32
"""What an operation may do, as bits of a set."""

_KEEPS_ORDER_WITH = {
    COMPUTES: SETS_MODES,
    WRITES: CHECKS | UNKNOWN,
    DRAWS: DRAWS | UNKNOWN,
    CHECKS: CHECKS | WRITES | UNKNOWN,
    UNKNOWN: WRITES | DRAWS | CHECKS | UNKNOWN,
    SETS_MODES: COMPUTES,
}
_BITS = {"write": WRITES, "random": DRAWS, "check": CHECKS, "unknown": UNKNOWN, "state": UNKNOWN}


class Accesses:
    """What each operation of a graph does, by its position, and for each group of memory the positions that touch it.

    Groups are those of :class:`~fx.analysis.aliases.Aliases`.
    """

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self.bits: list[int] = []
        """What each operation may do."""
        self._reads: list[Collection[int]] = []
        self._writes: list[Collection[int]] = []
        self._touching: dict[int, list[int]] = {}
        self._writing: dict[int, list[int]] = {}
        self._doing: dict[int, list[int]] = {bit: [] for bit in _KEEPS_ORDER_WITH}
        self._became: dict[int, int] = {}  # groups that were merged into others
        for index, node in enumerate(aliases.nodes):
            self._add(index, node)

    def _add(self, index: int, node: Node) -> None:
        """Enter what one operation does."""
        aliases, op = self._aliases, node.op
        kinds, roots = aliases.kinds, aliases.roots
        reads: Collection[int] = {roots[source] for source in aliases.inputs[index] if kinds[source] != "number"}
        writes: Collection[int] = ()
        bits = 0
        if op == "call_function" or op == "call_method" or op == "call_module":
            bits = COMPUTES
            if op == "call_module":
                reads |= aliases.state_of(node)
            effect = aliases.effects[index]
            if effect is not None:
                bits |= _bits_of(effect)
                writes = self._written(index, node, bits)
                reads |= writes
            elif consumed := aliases.consumed_iterators(index):
                bits, writes = COMPUTES | WRITES, {roots[source] for source in consumed}
        self._reads.append(reads)
        self._writes.append(writes)
        self.bits.append(bits)
        for group in reads:
            self._touching.setdefault(group, []).append(index)
        for group in writes:
            self._writing.setdefault(group, []).append(index)
        for bit, positions in self._doing.items():
            if bits & bit:
                positions.append(index)

    def _written(self, index: int, node: Node, bits: int) -> set[int]:
        aliases = self._aliases
        if bits & (UNKNOWN | SETS_MODES):
            return {aliases.outside}
        if not bits & WRITES:
            return set()
        roots, kinds = aliases.roots, aliases.kinds
        groups = {roots[source] for source in aliases.written_inputs(index) if kinds[source] != "number"}
        if node.op == "call_module" and aliases.writes_state(index):
            groups |= aliases.state_of(node)
        return groups

    # Looking up.

    def reads(self, index: int) -> frozenset[int]:
        """The groups that an operation looks at, or writes to."""
        return self._current(self._reads[index])

    def writes(self, index: int) -> frozenset[int]:
        """The groups that an operation writes to."""
        return self._current(self._writes[index])

    def _current(self, groups: Collection[int]) -> frozenset[int]:
        return frozenset(map(self.group, groups)) if self._became else frozenset(groups)

    def group(self, group: int) -> int:
        """Return what a group has become since others were merged into it."""
        became = self._became
        while (after := became.get(group)) is not None:
            group = after
        return group

    def touching(self, group: int) -> Sequence[int]:
        """The operations that read or write a group, in order."""
        return self._touching.get(group, ())

    def writing(self, group: int) -> Sequence[int]:
        """The operations that write to a group, in order."""
        return self._writing.get(group, ())

    def doing(self, bits: int) -> list[Sequence[int]]:
        """The operations that do any of these things, in order, a list for each thing."""
        return [positions for bit, positions in self._doing.items() if bits & bit and positions]

    # Edits.

    def drop(self, index: int) -> None:
        """Forget an operation."""
        for group in self.reads(index):
            _discard(self._touching[group], index)
        for group in self.writes(index):
            _discard(self._writing[group], index)
        for positions in self.doing(self.bits[index]):
            _discard(positions, index)

    def merge(self, group: int, other: int) -> None:
        """Let two groups be one."""
        group, other = self.group(group), self.group(other)
        if group == other:
            return
        self._became[other] = group
        for lists in (self._touching, self._writing):
            few, many = sorted((lists.pop(group, []), lists.pop(other, [])), key=len)
            for index in few:
                if first_between(many, index - 1, index + 1) is None:
                    insort(many, index)
            lists[group] = many


@functools.cache
def keeps_order_with(bits: int) -> int:
    """Return what an operation that does these things keeps its place among, whatever memory is touched."""
    return functools.reduce(operator.or_, (order for bit, order in _KEEPS_ORDER_WITH.items() if bits & bit), 0)


def first_between(positions: Sequence[int], low: int, high: int) -> int | None:
    """The first of the sorted ``positions`` that is above ``low`` and below ``high``."""
    place = bisect_right(positions, low)
    return positions[place] if place < len(positions) and positions[place] < high else None


def last_outside(positions: Sequence[int], high: int, inside: Collection[int]) -> int:
    """The last of the sorted ``positions`` that is below ``high`` and not ``inside``; -1 if there is none."""
    for place in range(bisect_left(positions, high) - 1, -1, -1):
        if positions[place] not in inside:
            return positions[place]
    return -1


def _bits_of(effect: Effect) -> int:
    return _BITS[effect.kind] | (DRAWS if effect.draws else 0) | (SETS_MODES if effect.sets_modes else 0)


def _discard(positions: Sequence[int], index: int) -> None:
    place = bisect_left(positions, index)
    if place < len(positions) and positions[place] == index:
        del positions[place]  # type: ignore[attr-defined]
