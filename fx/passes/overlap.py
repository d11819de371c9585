"""``overlap``: what a program waits for is started early and waited for late, and the rest runs meanwhile (6.2.3)."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from fx.analysis.dependence import Dependences
from fx.errors import PassError
from fx.graph_module import GraphModule, expect_program
from fx.node import Node
from fx.operators.effects import effect_of
from fx.passes.contract import Contract, exact
from fx.passes.registered_passes import register_pass
from fx.passes.rewriting import Edit, RewritingPass
from fx.passes.tensor_metadata import bytes_recorded
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
    """Names of the nodes that run while it does, in order; none if it is left as it is."""
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
        self._gaps: dict[int, list[tuple[tuple[int, int, int], Node]]] = {}
        """Halves that are where they go, by gap: what they are sorted by, and the nodes."""
        self._waiting: dict[int, dict[Node, tuple[int, int]]] = {}
        """Halves that are where they were, by gap, each with its place, and that among all nodes."""
        self._collect(order)
        self._depends = [self._dependencies(call) for call in self.calls]
        self._limits = _Limits(order, self.others, self.calls, limits)
        for call in self.calls:
            self._hoist(call)
        for call in reversed(self.calls):
            self._sink(call)
        for call in self.calls:
            if not self.beside(call):
                self._limits.end(call, range(call.first, call.last))
                call.first, call.last = call.places
                self._limits.begin(call, range(call.first, call.last))
        for call in self.calls:
            call.starts_before_waits = call.first < call.last and self._starts_before_waits(call)

    def _early_order(self, memory: float) -> EarlyOrder:
        """The order in which arguments are as early as the memory allows, those of the first calls first."""
        graph, calls = self._graph, self.calls
        nodes = list(graph.nodes)
        sizes = _sizes(nodes)
        largest = memory * max(_live(nodes, sizes).values())

        def fits(order: EarlyOrder) -> bool:
            return max(_live(order.nodes, sizes, order.moved).values()) <= largest

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
            self._limits.begin(call, range(call.first, call.first + 1))

    def _sink(self, call: WaitingCall) -> None:
        """Let ``call`` be waited for as late as it can."""
        followers = (other for other in self.calls[call.number + 1 :] if call in self._depends[other.number])
        latest = min((other.first for other in followers), default=len(self.others) - 1)
        while call.last < latest and self._limits.admit(call, call.last):
            other = self.others[call.last]
            if not self._passes(call, other):
                break
            self._limits.begin(call, range(call.last, call.last + 1))
            call.last += 1

    def _starts_before_waits(self, call: WaitingCall) -> bool:
        """Return whether ``call`` may start before the program waits for others in the same gap."""
        gap = call.first
        here = [other for other in self.calls[: call.number] if gap in (other.first, other.last)]
        if any(other.last == gap and other in self._depends[call.number] for other in here):
            return False
        starting = [other for other in here if other.first == gap]
        if any(not other.starts_before_waits and other.shares_channel(call) for other in starting):
            return False
        return self._limits.admit_before_waits(call, [other for other in starting if other.starts_before_waits])

    # The edits.

    def apply(self, call: WaitingCall) -> None:
        """Put ``call`` where it goes; those before it are there, and those behind it where they were."""
        node, graph = call.node, self._graph
        for place, half in zip(call.places, (node, call.wait), strict=True):
            if half is not None:
                del self._waiting[self._gap_of[place]][half]
        if not call.moves and call.wait is None:
            self._put(call.first, (1, call.order[0]), node)
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
        self._put(call.first, (0 if call.starts_before_waits else 1, call.order[0]), start)
        self._put(call.last, (1, call.order[1]), wait)
        for place, half in ((call.first, start), (call.last, wait)) if call.moves else ():
            for argument in self.others[:place]:
                if argument in self._early and half < argument:
                    half.prepend(argument)

    def _put(self, place: int, key: tuple[int, int], node: Node) -> None:
        """Put a half into a gap: behind those of smaller keys, and before what is not yet where it goes and was behind.

        So starts move up only, beside waits, and waits down. A program that waits for what another rank starts later
        than it did would wait forever.
        """
        number = self._gap_of[place]
        gap = self._gaps.setdefault(number, [])
        at = bisect.bisect_right([other for other, _ in gap], (place, *key))
        behind = [other for _, other in gap[at:]] + self.others[place : number + 1]
        waiting = self._waiting.get(number, {})
        first = min(behind + [half for half, where in waiting.items() if where > (place, key[1])])
        if first is not node.next:
            first.prepend(node)
        gap.insert(at, ((place, *key), node))


class _Limits:
    """How many calls run, and what they hold, while each of the other nodes does."""

    def __init__(
        self, order: EarlyOrder, others: list[Node], calls: list[WaitingCall], limits: OverlapCommunication
    ) -> None:
        self._most = limits.in_flight
        self._running = [0] * len(others)
        nodes = list(others[0].graph.nodes)
        sizes = _sizes(nodes)
        live = _live(order.nodes, sizes, order.moved)
        self._live = [live[node] for node in others]
        self._near: list[list[tuple[WaitingCall, int]]] = [[] for _ in others]
        """The calls in the gaps beside each node, and what is live while each of them runs in the original."""
        for call in calls:
            for place, half in zip(call.places, (call.node, call.result), strict=True):
                for beside in range(max(place - 1, 0), place + 1):
                    self._near[beside].append((call, live[half]))
        self._held = [0] * len(others)
        """What the calls hold that run while each node does."""
        self._largest = limits.memory * max(_live(nodes, sizes).values())
        self._needs = {call: sum(sizes[one] for one in {call.result, *call.node.all_input_nodes}) for call in calls}
        for call in calls:
            self.begin(call, range(call.first, call.last))

    def admit(self, call: WaitingCall, place: int) -> bool:
        """Return whether ``call`` may run while the node at ``place`` does."""
        live = max([self._live[place], *(live for other, live in self._near[place] if other is not call)])
        return self._running[place] < self._most and live + self._held[place] + self._needs[call] <= self._largest

    def admit_before_waits(self, call: WaitingCall, others: list[WaitingCall]) -> bool:
        """Return whether ``call`` and ``others`` may start in a gap before any of those before it has ended."""
        gap = call.first
        if gap == 0:
            return True
        whole = [live for other, live in self._near[gap] if other.first == other.last == gap]  # they run in between
        live = max([self._live[gap - 1], *whole])
        held = self._held[gap - 1] + sum(self._needs[one] for one in (*others, call))
        return self._running[gap - 1] + len(others) < self._most and live + held <= self._largest

    def begin(self, call: WaitingCall, places: range) -> None:
        """Count ``call`` among those that run while the nodes at ``places`` do."""
        self._change(call, places, 1)

    def end(self, call: WaitingCall, places: range) -> None:
        """Count it no longer."""
        self._change(call, places, -1)

    def _change(self, call: WaitingCall, places: range, sign: int) -> None:
        for place in places:
            self._running[place] += sign
            self._held[place] += sign * self._needs[call]


def _sizes(nodes: list[Node]) -> dict[Node, int]:
    """The bytes of each value where those of all are recorded, and else one for each; none of inputs and state."""
    made = [node for node in nodes if node.op.startswith("call")]
    found = [bytes_recorded(node.meta.get("val", node.meta.get("tensor_meta"))) for node in made]
    sizes = dict.fromkeys(nodes, 0)
    known = [size for size in found if size is not None]
    return sizes | dict(zip(made, known if len(known) == len(made) else [1] * len(made), strict=True))


def _live(nodes: list[Node], sizes: dict[Node, int], uses_until: Mapping[Node, Node] | None = None) -> dict[Node, int]:
    """Return what the values take that are there while each node runs, its own among them.

    Args:
        nodes: in the order in which they run.
        sizes: of their values.
        uses_until: the nodes that may run later than they stand, and behind which other at the latest.
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
