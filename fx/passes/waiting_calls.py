"""The calls of a program that wait for something else, and an order in which what computes their arguments is early."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from fx.analysis.dependence import Dependences
from fx.errors import add_note
from fx.graph import Graph
from fx.node import Node, reached
from fx.operators.asynchronous import Halves, channel_of, halves_begun_by, halves_of, waits_for


class WaitingCall:
    """An operation that waits, and the gaps its halves go to: the one before ``others[place]`` has number ``place``."""

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
        """Where its halves are in the original."""
        self.order: tuple[int, int] = (0, 0)
        """Where they are there among all nodes."""
        self.ranks: tuple[int, int] = (0, 0)
        """Where its halves are among all in their gaps."""
        self.is_interleaved = False
        """Whether it starts before the program waits for others in the gap that has both its halves."""
        args = node.args[1:] if wait is not None and halves.on_thread else node.args
        try:
            self.channel: Hashable = channel_of(halves, args, node.kwargs)
        except Exception as error:  # of the user's function
            add_note(error, f"the channel of `%{node}` is asked for, {node.source}: register_async has the function")
            raise

    @property
    def moves(self) -> bool:
        """Return whether a half goes elsewhere."""
        return (self.first, self.last) != self.places or self.is_interleaved

    @property
    def result(self) -> Node:
        """The node of its value."""
        return self.node if self.wait is None else self.wait

    def shares_channel(self, other: WaitingCall) -> bool:
        """Return whether both go through one channel, or may."""
        return self.channel is None or other.channel is None or self.channel == other.channel


def find_waiting_calls(graph: Graph) -> list[WaitingCall]:
    """Return the calls that wait, in the order of the program, whole or in two halves."""
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
    """The nodes of a program, those that only compute arguments of waiting calls as early as they may stand.

    Any place between that one and the one in the program is as good for each of these nodes, wherever the others are.
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
            used = (slots.get(one, at[one]) for one in node.all_input_nodes)
            slots[node] = max([inputs, -1 if behind is None else at[behind], *used])
        self.nodes = sorted(original, key=lambda node: (slots.get(node, at[node]), node in slots, at[node]))
        """All of them."""
        self.moved: dict[Node, Node] = {}
        """Those that stand earlier than in the program, each with the node that it follows there, others of these
        aside."""
        follows: Node | None = None
        for node in original:
            if node not in slots:
                follows = node
            elif follows is not None and at[follows] > slots[node]:
                self.moved[node] = follows


def _arguments(dependences: Dependences, calls: Iterable[WaitingCall], halves: Collection[Node]) -> set[Node]:
    """Return what computes arguments of ``calls`` and does nothing else, up to the ``halves`` of any."""

    def computing(user: Node) -> list[Node]:
        return [used for used in user.all_input_nodes if used not in halves and dependences.only_computes(used)]

    return reached((call.node for call in calls), computing).keys() - halves
