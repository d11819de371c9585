"""Which operations of a program keep their order because of what they do, besides those that use another's value."""

from __future__ import annotations

from collections.abc import Iterator, Set

from fx.dependence import Dependences
from fx.effects import effect_of, is_impure
from fx.node import Node

_WRITTEN: dict[str, Set[str]] = {
    "random": {"generator"},
    "check": {"checks"},
    "unknown": {"unknown"},
    "state": {"settings"},
}
"""By kind of effect: what operations of that kind change, as if it were memory."""

_READ: dict[str, Set[str]] = {
    "write": {"settings", "unknown", "checks"},
    "random": {"settings", "unknown"},
    "check": {"settings", "unknown"},
    "unknown": {"settings"},
    "state": set(),
}
"""By kind of effect: what has to be as it was for operations of that kind; the others need the settings alone."""


def find_constraints(dependences: Dependences) -> Iterator[tuple[Node, Node]]:
    """Yield pairs of operations of which the first has to run before the second, in linear time.

    Uses of values aside, an order of the operations that respects these pairs computes what the program does. They are
    the neighbours among reads and writes of each group of memory; the order of random numbers, checks, unknown calls
    and settings such as gradient mode is kept in the same way.
    """
    calls = [node for node in dependences.aliases.nodes if node.op.startswith("call_")]
    if not any(map(is_impure, calls)):
        return
    writers: dict[int | str, Node] = {}
    readers: dict[int | str, list[Node]] = {}
    for node in calls:
        written, read = _touched(dependences, node)
        for memory in written | read:
            if memory in writers:
                yield writers[memory], node
            if memory not in written:
                readers.setdefault(memory, []).append(node)
                continue
            for reader in readers.pop(memory, ()):
                yield reader, node
            writers[memory] = node


def _touched(dependences: Dependences, node: Node) -> tuple[Set[int | str], Set[int | str]]:
    """What ``node`` writes to, and what it reads or writes to."""
    effect = effect_of(node)
    if effect is None:
        return dependences.writes(node), {"settings", *dependences.reads(node)}
    written = _WRITTEN.get(effect.kind, set())
    return {*written, *dependences.writes(node)}, {*_READ[effect.kind], *dependences.reads(node)}
