"""Positions of a program's reads, writes and other effects, sorted so that queries can use binary search."""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from fx.analysis.aliases import Aliases

if TYPE_CHECKING:
    from fx.node import Node

COMPUTES, WRITES, DRAWS, CHECKS, UNKNOWN, SETS_MODES = 1, 2, 4, 8, 16, 32
"""The possible actions of an operation, as bits of a set."""

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
    """The actions of each operation of a graph, and the positions of the operations that touch each memory group.

    Groups are those of :class:`~fx.analysis.aliases.Aliases`.
    """

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self.bits: list[int] = []
        """The possible actions of each operation, by position."""
        self._reads: list[Collection[int]] = []
        self._writes: list[Collection[int]] = []
        self._touching: dict[int, list[int]] = {}
        self._writing: dict[int, list[int]] = {}
        self._doing: dict[int, list[int]] = {bit: [] for bit in _KEEPS_ORDER_WITH}
        self._became: dict[int, int] = {}  # groups that were merged into others
        for index, node in enumerate(aliases.nodes):
            self._add(index, node)

    def _add(self, index: int, node: Node) -> None:
        """Record the reads, writes and actions of one operation."""
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
                bits |= _BITS[effect.kind] | (DRAWS if effect.draws else 0) | (SETS_MODES if effect.sets_modes else 0)
                writes = self._written(index, node, bits)
                reads |= writes
            # Taking elements from an iterator changes the elements that later operations get.
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

    # Queries.

    def reads(self, index: int) -> frozenset[int]:
        """Return the groups that an operation reads or writes."""
        return self._current(self._reads[index])

    def writes(self, index: int) -> frozenset[int]:
        """Return the groups that an operation writes to."""
        return self._current(self._writes[index])

    def _current(self, groups: Collection[int]) -> frozenset[int]:
        return frozenset(map(self.group, groups)) if self._became else frozenset(groups)

    def group(self, group: int) -> int:
        """Return the group that ``group`` was merged into, or itself."""
        became = self._became
        while (after := became.get(group)) is not None:
            group = after
        return group

    def touching(self, group: int) -> Sequence[int]:
        """Return the positions of the operations that read or write a group, in order."""
        return self._touching.get(group, ())

    def writing(self, group: int) -> Sequence[int]:
        """Return the positions of the operations that write to a group, in order."""
        return self._writing.get(group, ())

    def doing(self, bits: int) -> list[Sequence[int]]:
        """Return the positions of the operations with any of these actions, in order, one list per action."""
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
        """Merge two groups into one."""
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
    """Return the actions whose order relative to the given actions must be kept, whatever memory they touch."""
    return functools.reduce(operator.or_, (order for bit, order in _KEEPS_ORDER_WITH.items() if bits & bit), 0)


def first_between(positions: Sequence[int], low: int, high: int) -> int | None:
    """Return the first of the sorted ``positions`` above ``low`` and below ``high``, or None."""
    place = bisect_right(positions, low)
    return positions[place] if place < len(positions) and positions[place] < high else None


def last_outside(positions: Sequence[int], high: int, inside: Collection[int]) -> int:
    """Return the last of the sorted ``positions`` that is below ``high`` and not ``inside``; -1 if there is none."""
    for place in range(bisect_left(positions, high) - 1, -1, -1):
        if positions[place] not in inside:
            return positions[place]
    return -1


def _discard(positions: Sequence[int], index: int) -> None:
    place = bisect_left(positions, index)
    if place < len(positions) and positions[place] == index:
        del positions[place]  # type: ignore[attr-defined]
