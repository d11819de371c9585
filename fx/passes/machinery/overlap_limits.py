"""The limits of ``overlap``: the number of calls in flight, and the memory that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fx.node import Node
from fx.passes.machinery.waiting_calls import EarlyOrder, WaitingCall
from fx.passes.tensor_metadata import bytes_recorded

Event = tuple[WaitingCall, bool]
"""A half of a call: the call, and True if the half starts it, False if it waits for it."""


@dataclass(frozen=True, slots=True)
class GapLimits:
    """The number of running calls and the memory in use before each half in a gap."""

    running: list[int]
    """The number of running calls before each half, and after the last."""
    taken: list[int]
    """The bytes in use at these points, by running calls and live values."""
    needs: Mapping[WaitingCall, int]
    """The bytes that each call holds while it runs."""
    most: int
    """Largest number of calls that run at a time."""
    largest: float
    """Largest number of bytes in use."""

    def admits(self, call: WaitingCall, place: int) -> bool:
        """Return whether ``call`` may run before the half at ``place``."""
        return self.running[place] < self.most and self.taken[place] + self.needs[call] <= self.largest

    def start(self, call: WaitingCall, place: int, before: int) -> None:
        """Move the start of ``call`` up from position ``before`` to ``place``, and count it as running from there."""
        for counts, more in ((self.running, 1), (self.taken, self.needs[call])):
            counts[place : before + 1] = [counts[place], *(count + more for count in counts[place:before])]


class OverlapLimits:
    """The number of running calls and the memory that they hold, while each of the other nodes runs."""

    def __init__(
        self, order: EarlyOrder, others: list[Node], calls: list[WaitingCall], most: int, memory: float
    ) -> None:
        """Count the calls of the original program.

        ``others`` are the nodes that are not halves of ``calls``. At most ``most`` calls may run at a time, and peak
        memory may be ``memory`` times that of the original.
        """
        self._most = most
        self._running = [0] * len(others)
        nodes = list(others[0].graph.nodes)
        sizes = sizes_of(nodes)
        live = live_bytes(order.nodes, sizes, order.moved)
        self._live = [live[node] for node in others]
        self._near: list[list[tuple[WaitingCall, int]]] = [[] for _ in others]
        """The calls in the gaps beside each node, and the bytes live while each of them runs in the original."""
        for call in calls:
            for place, half in zip(call.places, (call.node, call.result), strict=True):
                for beside in range(max(place - 1, 0), place + 1):
                    self._near[beside].append((call, live[half]))
        self._held = [0] * len(others)
        """The bytes that running calls hold while each node runs."""
        self._largest = memory * max(live_bytes(nodes, sizes).values())
        self._needs = {call: sum(sizes[value] for value in {call.result, *call.node.all_input_nodes}) for call in calls}
        for call in calls:
            self.count(call, range(call.first, call.last))

    def admit(self, call: WaitingCall, place: int) -> bool:
        """Return whether ``call`` may run while the node at ``place`` runs."""
        live = max([self._live[place], *(live for other, live in self._near[place] if other is not call)])
        return self._running[place] < self._most and live + self._held[place] + self._needs[call] <= self._largest

    def in_gap(self, gap: int, events: Sequence[Event]) -> GapLimits:
        """Return the limits before each of ``events``, the halves in a gap."""
        running, held_bytes, live = [0], [0], 0
        if gap:
            running, held_bytes, live = [self._running[gap - 1]], [self._held[gap - 1]], self._live[gap - 1]
        bytes_in_use = [live + held_bytes[0]]
        for call, starts in events:
            running.append(running[-1] + (1 if starts else -1))
            held_bytes.append(held_bytes[-1] + (self._needs[call] if starts else -self._needs[call]))
            if not starts and call.places[1] == gap:  # its result was not live before the gap
                live = max([live, *(most for other, most in self._near[gap] if other is call)])
            bytes_in_use.append(live + held_bytes[-1])
        return GapLimits(running, bytes_in_use, self._needs, self._most, self._largest)

    def count(self, call: WaitingCall, places: range, sign: int = 1) -> None:
        """Add ``call`` to the running calls at ``places``, or remove it if ``sign`` is -1."""
        for place in places:
            self._running[place] += sign
            self._held[place] += sign * self._needs[call]


def sizes_of(nodes: list[Node]) -> dict[Node, int]:
    """Return the bytes of each value if all are recorded, otherwise 1 for each; inputs and state count as 0."""
    calls = [node for node in nodes if node.op.startswith("call")]
    recorded = [bytes_recorded(node.meta.get("val", node.meta.get("tensor_meta"))) for node in calls]
    sizes = dict.fromkeys(nodes, 0)
    call_sizes = [size for size in recorded if size is not None]
    return sizes | dict(zip(calls, call_sizes if len(call_sizes) == len(calls) else [1] * len(calls), strict=True))


def live_bytes(
    nodes: list[Node], sizes: dict[Node, int], uses_until: Mapping[Node, Node] | None = None
) -> dict[Node, int]:
    """Return the bytes of the live values while each of ``nodes`` runs, in this order, including its own value.

    ``uses_until`` maps each node that may run later than its place to the node that it follows at the latest.
    """
    place = {node: number for number, node in enumerate(nodes)}
    later = uses_until or {}
    last: dict[Node, int] = {}
    for node in nodes:
        for value in node.all_input_nodes:
            last[value] = max(last.get(value, 0), place[later.get(node, node)])
    over = [0] * len(nodes)
    for node in nodes:
        over[last.get(node, place[later.get(node, node)])] += sizes[node]
    live, live_at = 0, dict[Node, int]()
    for number, node in enumerate(nodes):
        live += sizes[node]
        live_at[node] = live
        live -= over[number]
    return live_at
