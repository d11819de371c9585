"""How many calls may run at a time, and what they may hold: the limits of ``overlap``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fx.node import Node
from fx.passes.tensor_metadata import bytes_recorded
from fx.passes.waiting_calls import EarlyOrder, WaitingCall

Event = tuple[WaitingCall, bool]
"""A half of a call, and whether it is the one that starts it."""


@dataclass(frozen=True, slots=True)
class GapLimits:
    """How many calls run, and what is held, before each half in a gap."""

    running: list[int]
    """How many run before each half, and behind the last."""
    taken: list[int]
    """The bytes that they hold, and those of the values there are."""
    needs: Mapping[WaitingCall, int]
    """The bytes that each call holds while it runs."""
    most: int
    """How many may run at a time."""
    largest: float
    """The bytes that may be taken."""

    def admits(self, call: WaitingCall, place: int) -> bool:
        """Return whether ``call`` may run before the half at ``place``."""
        return self.running[place] < self.most and self.taken[place] + self.needs[call] <= self.largest

    def start(self, call: WaitingCall, place: int, before: int) -> None:
        """Count ``call`` from ``place`` on, and no longer from ``before`` on."""
        for counts, more in ((self.running, 1), (self.taken, self.needs[call])):
            counts[place : before + 1] = [counts[place], *(count + more for count in counts[place:before])]


class OverlapLimits:
    """How many calls run, and what they hold, while each of the other nodes does."""

    def __init__(
        self, order: EarlyOrder, others: list[Node], calls: list[WaitingCall], most: int, memory: float
    ) -> None:
        """Count what runs in the original.

        ``others`` are the nodes that are not halves of ``calls``, of which ``most`` may run at a time; they may hold
        ``memory`` times what is held at the worst moment of the original.
        """
        self._most = most
        self._running = [0] * len(others)
        nodes = list(others[0].graph.nodes)
        sizes = sizes_of(nodes)
        live = live_bytes(order.nodes, sizes, order.moved)
        self._live = [live[node] for node in others]
        self._near: list[list[tuple[WaitingCall, int]]] = [[] for _ in others]
        """The calls in the gaps beside each node, and what is live while each of them runs in the original."""
        for call in calls:
            for place, half in zip(call.places, (call.node, call.result), strict=True):
                for beside in range(max(place - 1, 0), place + 1):
                    self._near[beside].append((call, live[half]))
        self._held = [0] * len(others)
        """What the calls hold that run while each node does."""
        self._largest = memory * max(live_bytes(nodes, sizes).values())
        self._needs = {call: sum(sizes[one] for one in {call.result, *call.node.all_input_nodes}) for call in calls}
        for call in calls:
            self.count(call, range(call.first, call.last))

    def admit(self, call: WaitingCall, place: int) -> bool:
        """Return whether ``call`` may run while the node at ``place`` does."""
        live = max([self._live[place], *(live for other, live in self._near[place] if other is not call)])
        return self._running[place] < self._most and live + self._held[place] + self._needs[call] <= self._largest

    def in_gap(self, gap: int, events: Sequence[Event]) -> GapLimits:
        """Return what runs before each of ``events``, the halves in a gap."""
        running, held, live = [0], [0], 0
        if gap:
            running, held, live = [self._running[gap - 1]], [self._held[gap - 1]], self._live[gap - 1]
        taken = [live + held[0]]
        for call, starts in events:
            running.append(running[-1] + (1 if starts else -1))
            held.append(held[-1] + (self._needs[call] if starts else -self._needs[call]))
            if not starts and call.places[1] == gap:  # its result was not there before the gap
                live = max([live, *(most for other, most in self._near[gap] if other is call)])
            taken.append(live + held[-1])
        return GapLimits(running, taken, self._needs, self._most, self._largest)

    def count(self, call: WaitingCall, places: range, sign: int = 1) -> None:
        """Count ``call`` among those that run while the nodes at ``places`` do; no longer, if ``sign`` is -1."""
        for place in places:
            self._running[place] += sign
            self._held[place] += sign * self._needs[call]


def sizes_of(nodes: list[Node]) -> dict[Node, int]:
    """Return the bytes of each value where those of all are recorded, else one each; none of inputs and state."""
    made = [node for node in nodes if node.op.startswith("call")]
    found = [bytes_recorded(node.meta.get("val", node.meta.get("tensor_meta"))) for node in made]
    sizes = dict.fromkeys(nodes, 0)
    known = [size for size in found if size is not None]
    return sizes | dict(zip(made, known if len(known) == len(made) else [1] * len(made), strict=True))


def live_bytes(
    nodes: list[Node], sizes: dict[Node, int], uses_until: Mapping[Node, Node] | None = None
) -> dict[Node, int]:
    """Return what the values take that are there while each of ``nodes`` runs, in this order, its own among them.

    ``uses_until`` are nodes that may run later than they stand, and behind which other at the latest.
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
    live, found = 0, dict[Node, int]()
    for number, node in enumerate(nodes):
        live += sizes[node]
        found[node] = live
        live -= over[number]
    return found
