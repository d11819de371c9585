"""Which operations of a program keep their order because of what they do, besides those that use another's value."""

from __future__ import annotations

from collections.abc import Iterator

from fx.analysis.accesses import CHECKS, COMPUTES, DRAWS, SETS_MODES, UNKNOWN, Accesses, keeps_order_with
from fx.analysis.aliases import Aliases
from fx.graph import Graph
from fx.node import Node

_LIKE_MEMORY = (DRAWS, CHECKS, UNKNOWN, SETS_MODES)
"""What operations do that orders others as a write to one piece of memory would."""


def find_constraints(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Yield pairs of operations of which the first has to run before the second, in linear time.

    Any order of the operations that respects these pairs, and computes values before they are used, computes what the
    program does. They are neighbours: a write and the reads since the write before it, a read and the last write. What
    :mod:`fx.analysis.dependence` says of random numbers, checks, unknown calls and modes is put in the same terms.
    """
    aliases = Aliases(graph)
    accesses = Accesses(aliases)
    if all(bits <= COMPUTES for bits in accesses.bits):
        return
    writers: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    nodes = aliases.nodes
    for index, bits in enumerate(accesses.bits):
        if not bits:
            continue
        order = keeps_order_with(bits)
        written = {*accesses.writes(index), *(-bit for bit in _LIKE_MEMORY if bits & bit)}
        for memory in written.union(accesses.reads(index), (-bit for bit in _LIKE_MEMORY if order & bit)):
            if memory in writers:
                yield nodes[writers[memory]], nodes[index]
            if memory in written:
                for reader in readers.pop(memory, ()):
                    yield nodes[reader], nodes[index]
                writers[memory] = index
            else:
                readers.setdefault(memory, []).append(index)
