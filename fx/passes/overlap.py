"""``overlap``: what a program waits for is started early and waited for late, and the rest runs meanwhile (6.2.3)."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fx.analysis.dependence import Dependences
from fx.errors import PassError
from fx.graph_module import GraphModule, expect_program
from fx.node import Node
from fx.operators.effects import effect_of
from fx.passes.contract import Contract, exact
from fx.passes.overlap_limits import Event, GapLimits, OverlapLimits, live_bytes, sizes_of
from fx.passes.registered_passes import register_pass
from fx.passes.rewriting import Edit, RewritingPass
from fx.passes.waiting_calls import EarlyOrder, WaitingCall, find_waiting_calls
from fx.provenance import SourceLocation

_HARMLESS = frozenset({"write", "random", "check"})
"""Effects that a call which is independent of others may pass, where they concern other memory than its own."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """What becomes of one operation that waits for something else."""

    node: str
    """Name of its node."""
    operations: tuple[str, ...]
    """Names of the nodes that run while it does, in order, other waiting calls aside."""
    where: SourceLocation | None
    """The user's line that calls it, if known."""


@register_pass
@dataclass(frozen=True, slots=True)
class OverlapCommunication(RewritingPass):
    """Start what a program waits for as early as its inputs allow, and wait for it just before its first use.

    Operations are those registered by :func:`~fx.operators.asynchronous.register_async`, ``rpc_sync`` of
    ``torch.distributed.rpc``, and collectives of ``torch.ops._c10d_functional``. What computes their arguments, without
    any effect, moves up with the start as far as that needs; nothing else moves. Promises:

    - The results are the same bit for bit: an operation passes only what it commutes with, and no memory that it reads
      is written to while it runs.
    - Operations through the same channel (a server, a process group) start in the order of the program, which depends
      on the program alone: ranks that run the same one never wait for each other in a circle.
    - At most ``in_flight`` operations run beside the program at a time, and values take at most ``memory`` times the
      bytes that they took at the worst moment of the original, if sizes are recorded (``meta["val"]`` or
      ``meta["tensor_meta"]``, see :class:`~fx.passes.shape_prop.ShapeProp`); without sizes each value counts as one.
    - An error surfaces at the wait, which has the user's line of the original call.
    """

    in_flight: int = 4
    """How many operations may run at a time."""
    memory: float = 2.0
    """How much the values may take at the worst moment, in parts of what they took in the original."""

    name: ClassVar[str] = "overlap"
    contract: ClassVar[Contract] = exact

    def __post_init__(self) -> None:
        if self.in_flight < 1 or not self.memory >= 1:
            raise PassError(
                "overlap lets one operation run at a time, or more, in the memory of the original, or more",
                value=f"in_flight={self.in_flight}, memory={self.memory}",
                remedy="leave both out",
            )

    def options_for(self, graph_module: GraphModule) -> Iterator[dict[str, float]]:
        """Yield options to test, whatever the program: without limits that matter, and with narrow ones."""
        yield from ({"memory": 100.0}, {}, {"in_flight": 1, "memory": 100.0}, {"in_flight": 2, "memory": 1.0})

    def rewrites(self, graph_module: GraphModule) -> Iterator[Edit]:
        """Divide or move one operation after the other."""
        schedule = _Schedule(graph_module, self)
        left: list[WaitingCall] = []
        for call in schedule.calls:
            if not call.moves:
                left.append(call)
                continue
            yield Edit(f"{call.node} beside {len(schedule.beside(call))} operation(s)", call.node.source)
            for each in (*left, call):  # what others start behind keeps its place among them
                schedule.apply(each)
            left.clear()

    def explain(self, graph_module: GraphModule) -> list[Overlap]:
        """Return what would run beside each operation that waits for something. Nothing is changed."""
        expect_program(graph_module, f"{type(self).__name__} explains a GraphModule")
        schedule = _Schedule(graph_module, self)
        return [
            Overlap(call.node.name, tuple(node.name for node in schedule.beside(call)), call.node.source)
            for call in schedule.calls
        ]


class _Schedule:
    """Where the calls of a program go. All other nodes, ``others``, keep an order in which arguments are early."""

    def __init__(self, graph_module: GraphModule, limits: OverlapCommunication) -> None:
        self._graph = graph_module.graph
        self._dependences = Dependences(graph_module.graph)
        self.calls = find_waiting_calls(graph_module.graph)
        order = self._early_order(limits.memory)
        self._early = order.moved
        """What computes arguments of calls, and moves up with those that move before it."""
        self.others: list[Node] = []
        self._gap_of: list[int] = []
        """The gap in which the halves are that go before each of the others: the one before what does not move."""
        self._gaps: dict[int, list[tuple[tuple[int, int], Node]]] = {}
        """Halves that are where they go, by gap: what they are sorted by, and the nodes."""
        self._waiting: dict[int, dict[Node, tuple[int, int]]] = {}
        """Halves that are where they were, by gap, each with its place, and that among all nodes."""
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
        """The order in which arguments are as early as the memory allows, those of the first calls first."""
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
        """Tell the calls from the other nodes."""
        starts = {call.node: call for call in self.calls}
        waits = {call.wait: call for call in self.calls if call.wait is not None}
        halves: list[tuple[int, Node, int]] = []
        for position, node in enumerate(order.nodes):
            place = len(self.others)
            while place and self.others[place - 1] in self._early and node < self.others[place - 1]:
                place -= 1  # in the program it stands before what could be earlier
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
        """Return the operations that run while ``call`` does."""
        return [node for node in self.others[call.first : call.last] if node.op.startswith("call")]

    # What may pass what.

    def _passes(self, call: WaitingCall, other: Node) -> bool:
        """Return whether a half of ``call`` may stand on the other side of ``other``."""
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
        """The earlier calls that have to be over before ``call`` starts."""
        return [other for other in self.calls[: call.number] if self._follows(call, other)]

    def _follows(self, call: WaitingCall, other: WaitingCall) -> bool:
        if other.result in call.node.all_input_nodes:
            return True
        if call.halves.independent and other.halves.independent:
            return False
        return self._dependences.why_not_swap(other.node, call.node) is not None

    # Where the halves go.

    def _hoist(self, call: WaitingCall) -> None:
        """Let ``call`` start as early as it can."""
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
        """Let ``call`` be waited for as late as it can."""
        followers = (other for other in self.calls[call.number + 1 :] if call in self._depends[other.number])
        latest = min((other.first for other in followers), default=len(self.others) - 1)
        while call.last < latest and self._limits.admit(call, call.last):
            other = self.others[call.last]
            if not self._passes(call, other):
                break
            self._limits.count(call, range(call.last, call.last + 1))
            call.last += 1

    def _interleave(self) -> None:
        """Rank the halves of each gap: a start moves up past waits that it does not need, while the limits allow it.

        Of eight calls that one operation uses, of which four may run at a time, the fifth starts once the first is
        there, and not when all four are::

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
        """Return how many of ``events``, which come before the start of ``call`` in its gap, have to."""
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
        """Put ``call`` where it goes; those before it are there, and those behind it where they were."""
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
        # What computes arguments stands where the program has it, perhaps behind the place to which a half has moved.
        for place, half in ((call.first, start), (call.last, wait)) if call.moves else ():
            for argument in self.others[:place]:
                if argument in self._early and half < argument:
                    half.prepend(argument)

    def _put(self, place: int, rank: int, order: int, node: Node) -> None:
        """Put a half into a gap: behind those of smaller ranks, before what was behind it and is not where it goes.

        So starts move up only, beside waits, and waits down. A program that waits for what another rank starts later
        than it did would wait forever.
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
