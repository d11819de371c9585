"""``overlap``: start asynchronous operations early, wait for them late, and run the rest meanwhile (section 6.2.3)."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fx.analysis.dependence import Dependences
from fx.argument_types import checked
from fx.errors import PassError
from fx.graph_module import GraphModule
from fx.node import Node
from fx.operators.effects import effect_of
from fx.passes.machinery.overlap_limits import Event, GapLimits, OverlapLimits, live_bytes, sizes_of
from fx.passes.machinery.waiting_calls import EarlyOrder, WaitingCall, find_waiting_calls
from fx.pipelines.contract import Contract, exact
from fx.pipelines.registered_passes import register_pass
from fx.pipelines.rewriting import Edit, RewritingPass
from fx.provenance import SourceLocation

_HARMLESS = frozenset({"write", "random", "check"})
"""Effects that an independent call may be reordered with, unless they write to memory that it reads."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The schedule of one asynchronous operation."""

    node: str
    """Name of its node."""
    operations: tuple[str, ...]
    """Names of the nodes that run beside it, in order, without other asynchronous operations."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""


@register_pass
@dataclass(frozen=True, slots=True)
class OverlapCommunication(RewritingPass):
    """Start asynchronous operations as early as their inputs allow, and wait for each just before its first use.

    Operations are those registered by :func:`~fx.operators.asynchronous.register_async`, ``rpc_sync`` of
    ``torch.distributed.rpc``, and collectives of ``torch.ops._c10d_functional``. The pure operations that compute their
    arguments move up with the start as far as needed; nothing else moves. Guarantees:

    - Results are bitwise equal: only operations that commute are reordered, and no memory that an operation reads is
      written to while it runs.
    - Operations on the same channel (a server, a process group) start in the order of the program. The order depends
      on the program alone, so ranks that run the same program cannot deadlock.
    - At most ``in_flight`` operations run beside the program at a time.
    - Peak memory is at most ``memory`` times that of the original, in bytes if sizes are recorded (``meta["val"]`` or
      ``meta["tensor_meta"]``, see :class:`~fx.passes.shape_prop.ShapeProp`). Without sizes each value counts as one.
    - An error surfaces at the wait, which has the user's line of the original call.
    """

    in_flight: int = 4
    """Largest number of operations that run at a time."""
    memory: float = 2.0
    """Largest allowed peak memory of the values, in multiples of the original peak."""

    name: ClassVar[str] = "overlap"
    contract: ClassVar[Contract] = exact

    def __post_init__(self) -> None:
        if self.in_flight < 1 or not self.memory >= 1:
            raise PassError(
                "overlap needs an in_flight and a memory of at least 1",
                value=f"in_flight={self.in_flight}, memory={self.memory}",
                remedy="leave both out",
            )

    def options_for(self, graph_module: GraphModule) -> Iterator[dict[str, float]]:
        """Yield options to test, whatever the program: generous limits, the defaults, and narrow limits."""
        yield from ({"memory": 100.0}, {}, {"in_flight": 1, "memory": 100.0}, {"in_flight": 2, "memory": 1.0})

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Split or move the operations one by one."""
        schedule = _Schedule(graph_module, self)
        unmoved: list[WaitingCall] = []
        for call in schedule.calls:
            if not call.moves:
                unmoved.append(call)
                continue
            yield Edit(f"{call.node} beside {len(schedule.beside(call))} operation(s)", call.node.source)
            for each in (*unmoved, call):  # calls that do not move are put in place too, as others are ordered by them
                schedule.apply(each)
            unmoved.clear()

    @checked(PassError)
    def explain(self, graph_module: GraphModule) -> list[Overlap]:
        """Report the operations that would run beside each asynchronous operation. The program is not changed."""
        schedule = _Schedule(graph_module, self)
        return [
            Overlap(call.node.name, tuple(node.name for node in schedule.beside(call)), call.node.source)
            for call in schedule.calls
        ]


class _Schedule:
    """The new places of a program's waiting calls among the other nodes, ``others``, which compute arguments early."""

    def __init__(self, graph_module: GraphModule, limits: OverlapCommunication) -> None:
        self._graph = graph_module.graph
        self._dependences = Dependences(graph_module.graph)
        self.calls = find_waiting_calls(graph_module.graph)
        order = self._early_order(limits.memory)
        self._early = order.moved
        """Nodes that compute arguments of calls, and move up with calls that move before them."""
        self.others: list[Node] = []
        self._gap_of: list[int] = []
        """For each of the others, the gap of the halves that go before it: the gap before the next fixed node."""
        self._gaps: dict[int, list[tuple[tuple[int, int], Node]]] = {}
        """Halves at their new place, by gap, each with its sort key."""
        self._waiting: dict[int, dict[Node, tuple[int, int]]] = {}
        """Halves still at their old place, by gap, each with its place among the others and among all nodes."""
        self._collect(order)
        self._depends = [self._dependencies(call) for call in self.calls]
        self._limits = OverlapLimits(order, self.others, self.calls, limits.in_flight, limits.memory)
        for call in self.calls:
            self._hoist(call)
        for call in reversed(self.calls):
            self._sink(call)
        for call in self.calls:
            if not self.beside(call):
                self._limits.count(call, range(call.first, call.last), -1)
                call.first, call.last = call.places
                self._limits.count(call, range(call.first, call.last))
        self._interleave()

    def _early_order(self, memory: float) -> EarlyOrder:
        """Return the order with arguments as early as the memory limit allows, preferring those of the first calls."""
        graph, calls = self._graph, self.calls
        nodes = list(graph.nodes)
        sizes = sizes_of(nodes)
        largest = memory * max(live_bytes(nodes, sizes).values())

        def fits(order: EarlyOrder) -> bool:
            return max(live_bytes(order.nodes, sizes, order.moved).values()) <= largest

        order = EarlyOrder(graph, self._dependences, calls, calls)
        if not fits(order):
            moving: list[WaitingCall] = []
            for call in calls:
                if fits(EarlyOrder(graph, self._dependences, calls, [*moving, call])):
                    moving.append(call)
            order = EarlyOrder(graph, self._dependences, calls, moving)
        return order

    def _collect(self, order: EarlyOrder) -> None:
        """Separate the calls from the other nodes, and record the original place of each half."""
        starts = {call.node: call for call in self.calls}
        waits = {call.wait: call for call in self.calls if call.wait is not None}
        halves: list[tuple[int, Node, int]] = []
        for position, node in enumerate(order.nodes):
            place = len(self.others)
            while place and self.others[place - 1] in self._early and node < self.others[place - 1]:
                place -= 1  # in the program it comes before these nodes, which were moved up
            if (call := waits.get(node)) is not None:
                call.last, call.places, call.order = place, (call.first, place), (call.order[0], position)
            elif (call := starts.get(node)) is not None:
                call.first, call.last, call.places, call.order = place, place, (place, place), (position, position)
            else:
                self.others.append(node)
                continue
            halves.append((place, node, position))
        following = len(self.others) - 1  # the output
        self._gap_of = [following] * len(self.others)
        for place in reversed(range(len(self.others))):
            if self.others[place] not in self._early:
                following = place
            self._gap_of[place] = following
        for place, node, position in halves:
            self._waiting.setdefault(self._gap_of[place], {})[node] = (place, position)

    def beside(self, call: WaitingCall) -> list[Node]:
        """Return the operations that run while ``call`` is in flight."""
        return [node for node in self.others[call.first : call.last] if node.op.startswith("call")]

    # Reordering.

    def _passes(self, call: WaitingCall, other: Node) -> bool:
        """Return whether a half of ``call`` may move to the other side of ``other``."""
        if call.result in other.all_input_nodes:
            return False
        if not call.halves.independent:
            return self._dependences.why_not_swap(call.node, other) is None
        effect = effect_of(other)
        if effect is not None and (effect.kind not in _HARMLESS or effect.sets_modes):
            return False
        if other in call.node.all_input_nodes:
            return False
        return self._dependences.writes(other).isdisjoint(self._dependences.reads(call.node))

    def _dependencies(self, call: WaitingCall) -> list[WaitingCall]:
        """Return the earlier calls that have to finish before ``call`` starts."""
        return [other for other in self.calls[: call.number] if self._follows(call, other)]

    def _follows(self, call: WaitingCall, other: WaitingCall) -> bool:
        if other.result in call.node.all_input_nodes:
            return True
        if call.halves.independent and other.halves.independent:
            return False
        return self._dependences.why_not_swap(other.node, call.node) is not None

    # Places of the halves.

    def _hoist(self, call: WaitingCall) -> None:
        """Move the start of ``call`` as early as possible."""
        earlier = self.calls[: call.number]
        earliest = max((other.last for other in self._depends[call.number]), default=0)
        earliest = max([earliest, *(other.first for other in earlier if other.shares_channel(call))])
        while call.first > earliest and self._limits.admit(call, call.first - 1):
            other = self.others[call.first - 1]
            if other.op == "placeholder" or not self._passes(call, other):
                break
            call.first -= 1
            self._limits.count(call, range(call.first, call.first + 1))

    def _sink(self, call: WaitingCall) -> None:
        """Move the wait for ``call`` as late as possible."""
        followers = (other for other in self.calls[call.number + 1 :] if call in self._depends[other.number])
        latest = min((other.first for other in followers), default=len(self.others) - 1)
        while call.last < latest and self._limits.admit(call, call.last):
            other = self.others[call.last]
            if not self._passes(call, other):
                break
            self._limits.count(call, range(call.last, call.last + 1))
            call.last += 1

    def _interleave(self) -> None:
        """Rank the halves of each gap: a start moves up past waits that it does not depend on, within the limits.

        Suppose that one operation uses eight calls, and four may run at a time. Then the fifth starts as soon as the
        first is finished, and not when all four are::

            wait 0, start 4, wait 1, start 5, wait 2, start 6, wait 3, start 7, wait 4, ...
        """
        gaps: dict[int, list[tuple[int, int, WaitingCall]]] = {}
        for call in self.calls:
            for half, gap in enumerate((call.first, call.last)):
                gaps.setdefault(gap, []).append((call.order[half], half, call))
        for gap, halves in gaps.items():
            events = [(call, half == 0) for _, half, call in sorted(halves, key=lambda one: one[:2])]
            together = self._limits.in_gap(gap, events)
            for call in [call for call, starts in events if starts]:
                place = events.index((call, True))
                earliest = self._earliest_among(call, events[:place], together)
                call.is_interleaved = earliest < place and call.first == call.last
                events.insert(earliest, events.pop(place))
                together.start(call, earliest, place)
            for rank, (call, starts) in enumerate(events):
                call.ranks = (rank, call.ranks[1]) if starts else (call.ranks[0], rank)
                if call.wait is None and call.first == call.last and not starts and rank > call.ranks[0] + 1:
                    call.is_interleaved = True  # others start in between

    def _earliest_among(self, call: WaitingCall, events: Sequence[Event], together: GapLimits) -> int:
        """Return how many of ``events``, which precede the start of ``call`` in its gap, have to precede it."""
        earliest = len(events)
        for place in reversed(range(len(events))):
            other, starts = events[place]
            if starts and other.shares_channel(call):
                break
            if not starts:
                if other in self._depends[call.number] or not together.admits(call, place):
                    break
                earliest = place
        return earliest

    # The edits.

    def apply(self, call: WaitingCall) -> None:
        """Put ``call`` at its new place; earlier calls are at theirs already, later ones still at their old places."""
        node, graph = call.node, self._graph
        for place, half in zip(call.places, (node, call.wait), strict=True):
            if half is not None:
                del self._waiting[self._gap_of[place]][half]
        if not call.moves and call.wait is None:
            self._put(call.first, call.ranks[0], call.order[0], node)
            return
        start, wait = node, call.wait
        if wait is None:
            operation = (node.target,) if call.halves.on_thread else ()
            with graph.inserting_before(node):
                start = graph.call_function(call.halves.start, (*operation, *node.args), dict(node.kwargs))
                wait = graph.call_function(call.halves.wait, (start,))
            wait.meta.update(node.meta)
            node.replace_all_uses_with(wait)
            graph.erase_node(node)
        self._put(call.first, call.ranks[0], call.order[0], start)
        self._put(call.last, call.ranks[1], call.order[1], wait)
        # Nodes that compute arguments are still at their old places, perhaps after the new place of a half.
        for place, half in ((call.first, start), (call.last, wait)) if call.moves else ():
            for argument in self.others[:place]:
                if argument in self._early and half < argument:
                    half.prepend(argument)

    def _put(self, place: int, rank: int, order: int, node: Node) -> None:
        """Put a half into a gap: after the halves of smaller rank, before later nodes that are at their old places.

        So starts only move up, relative to waits, and waits only move down. Otherwise a program could wait for an
        operation that another rank starts later than in the original, and so wait forever.
        """
        number = self._gap_of[place]
        gap = self._gaps.setdefault(number, [])
        at = bisect.bisect_right([other for other, _ in gap], (place, rank))
        behind = [other for _, other in gap[at:]] + self.others[place : number + 1]
        waiting = self._waiting.get(number, {})
        first = min(behind + [half for half, where in waiting.items() if where > (place, order)])
        if first is not node.next:
            first.prepend(node)
        gap.insert(at, ((place, rank), node))
