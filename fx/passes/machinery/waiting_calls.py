"""The asynchronous calls of a program, and an order of its nodes in which their arguments are computed early."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from fx.analysis.dependence import Dependences
from fx.errors import add_note
from fx.graph import Graph
from fx.node import Node, reached
from fx.operators.asynchronous import Halves, channel_of, halves_begun_by, halves_of, waits_for


class WaitingCall:
    """An asynchronous operation, and the gaps of its two halves: gap ``place`` is the one before ``others[place]``."""

    def __init__(self, number: int, node: Node, wait: Node | None, halves: Halves) -> None:
        self.number = number
        """Its place among the calls of the program."""
        self.node = node
        """The operation, or the half that starts it if it comes in two."""
        self.wait = wait
        """The half that waits for it, if it comes in two."""
        self.halves = halves
        self.first = self.last = 0
        self.places: tuple[int, int] = (0, 0)
        """The original gaps of its halves."""
        self.order: tuple[int, int] = (0, 0)
        """The original positions of its halves among all nodes."""
        self.ranks: tuple[int, int] = (0, 0)
        """The positions of its halves among all halves in their gaps."""
        self.is_interleaved = False
        """True if both halves are in one gap, and it starts before waits for other calls in that gap."""
        args = node.args[1:] if wait is not None and halves.on_thread else node.args
        try:
            self.channel: Hashable = channel_of(halves, args, node.kwargs)
        except Exception as error:  # from the user's function
            add_note(error, f"raised by the function in register_async for the channel of `%{node}`, {node.source}")
            raise

    @property
    def moves(self) -> bool:
        """True if a half moves to another place."""
        return (self.first, self.last) != self.places or self.is_interleaved

    @property
    def result(self) -> Node:
        """The node whose value is the result."""
        return self.node if self.wait is None else self.wait

    def shares_channel(self, other: WaitingCall) -> bool:
        """Return whether both calls use the same channel, or may use the same one."""
        return self.channel is None or other.channel is None or self.channel == other.channel


def find_waiting_calls(graph: Graph) -> list[WaitingCall]:
    """Return the asynchronous calls in the order of the program, blocking ones and pairs of start and wait."""
    calls: list[WaitingCall] = []
    for node in graph.find_nodes(op="call_function"):
        if (halves := halves_of(node.target)) is not None:
            calls.append(WaitingCall(len(calls), node, None, halves))
            continue
        halves = halves_begun_by(node.target, node.args)
        if halves is None or len(node.users) != 1:
            continue
        (wait,) = node.users
        if waits_for(wait.op, wait.target, halves):
            calls.append(WaitingCall(len(calls), node, wait, halves))
    return calls


class EarlyOrder:
    """An order of a program's nodes, with those that only compute arguments of waiting calls as early as possible.

    Each of these nodes may also be at any later place up to its original one, independently of the others.
    """

    def __init__(
        self,
        graph: Graph,
        dependences: Dependences,
        calls: Collection[WaitingCall],
        moving: Collection[WaitingCall],
    ) -> None:
        """Order the nodes of a program with ``calls`` that wait; the arguments of those ``moving`` are early."""
        original = list(graph.nodes)
        at = {node: place for place, node in enumerate(original)}
        passed = {half for call in calls if call.halves.independent for half in (call.node, call.result)}
        inputs = max((at[node] for node in graph.find_nodes(op="placeholder")), default=-1)
        slots: dict[Node, int] = {}
        halves = {half for call in calls for half in (call.node, call.result)}
        for node in sorted(_arguments(dependences, moving, halves)):
            behind = dependences.last_to_stay_behind(node, passed)
            used = (slots.get(value, at[value]) for value in node.all_input_nodes)
            slots[node] = max([inputs, -1 if behind is None else at[behind], *used])
        # Each goes after the node that is originally at its slot; those with the same slot keep their order.
        self.nodes = sorted(original, key=lambda node: (slots.get(node, at[node]), node in slots, at[node]))
        """All nodes in the new order."""
        self.moved: dict[Node, Node] = {}
        """The nodes that move up, each with the last node before it in the program that does not compute arguments."""
        follows: Node | None = None
        for node in original:
            if node not in slots:
                follows = node
            elif follows is not None and at[follows] > slots[node]:
                self.moved[node] = follows


def _arguments(dependences: Dependences, calls: Iterable[WaitingCall], halves: Collection[Node]) -> set[Node]:
    """Return the pure operations that compute arguments of ``calls``, back to the ``halves`` of any call."""

    def computing(user: Node) -> list[Node]:
        return [used for used in user.all_input_nodes if used not in halves and dependences.only_computes(used)]

    return reached((call.node for call in calls), computing).keys() - halves
