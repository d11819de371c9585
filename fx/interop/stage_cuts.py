"""Where a program may be cut into stages that run in processes of their own, and where it is best cut."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fx.analysis.dependence import Dependences
from fx.errors import with_article
from fx.graph_module import GraphModule
from fx.modules.storages import memory_of
from fx.node import Node, reached
from fx.operators.effects import effect_of
from fx.passes.tensor_metadata import TensorMetadata, bytes_recorded

_SHOWN = 4
"""Reasons that a message shows."""


@dataclass(frozen=True, slots=True, eq=False)
class CutValue:
    """A value that goes from one process to the next where a cut is between its making and a use."""

    node: Node
    """What makes it: an input, an operation, or an attribute that several stages may use."""
    made: int
    """The place of that among the steps; -1 for an input."""
    last: int
    """The place of the last step that uses it; the number of steps where the program returns it."""


@dataclass(slots=True)
class _Holding:
    """A piece of the module's state and the steps that use it."""

    tensor: Tensor
    getters: list[Node] = field(default_factory=list[Node])
    places: list[int] = field(default_factory=list[int])
    called: list[Node] = field(default_factory=list[Node])


class StageCuts:
    """The places between the operations of a program at which it may be cut, in the order of the program.

    Sizes have to be recorded (``meta["tensor_meta"]``). Attributes, and numbers that are computed from sizes alone, are
    made again in each stage that uses them; other tensors are sent.
    """

    def __init__(self, program: GraphModule) -> None:
        self._program = program
        self._dependences = Dependences(program.graph)
        self.steps: list[Node] = []
        """The operations, without those that are made again where they are used."""
        self._leaves: dict[Node, dict[Node, None]] = {}
        """The values that have to be there for each value to be used."""
        self._place: dict[Node, int] = {}
        self.values: list[CutValue] = []
        """What may have to be sent."""
        self.holdings: dict[int, _Holding] = {}
        """The state by storage."""
        for node in program.graph.nodes:
            if node.op.startswith("call") and not _is_number(node):
                self._place[node] = len(self.steps)
                self.steps.append(node)
        self._find_state()
        self.sent_on = self._find_sent_attributes()
        """Nodes that fetch what one stage has and sends to the others, with the first node that fetches the same."""
        self._find_values()
        self.blocked: list[str | None] = [None] * (len(self.steps) + 1)
        """Why there can be no cut before each step; None where there can."""
        self._block()
        sent = [0] * (len(self.steps) + 1)
        for value in self.values:
            for place in range(value.made + 1, value.last + 1):
                sent[place] += bytes_recorded(_recorded(value.node)) or 0
        self.sent = sent
        """Bytes that a cut before each step sends."""

    def crossing(self, place: int) -> list[Node]:
        """The values that a cut before the step at ``place`` sends, in the order of the program."""
        return [value.node for value in self.values if value.made < place <= value.last]

    def made_for(self, node: Node) -> list[Node]:
        """The attributes and numbers that ``node`` needs, which its stage makes or is sent, in order."""

        def made(user: Node) -> list[Node]:
            return [used for used in user.all_input_nodes if used not in self._place and used.op != "placeholder"]

        return sorted(reached([node], made).keys() - {node})

    # What is made, used and held.

    def _find_state(self) -> None:
        for node in self._program.graph.nodes:
            if node.op == "get_attr":
                value: Any = operator.attrgetter(str(node.target))(self._program)
                if isinstance(value, Tensor):
                    self._holding(value).getters.append(node)
            elif node.op == "call_module":
                module = self._program.get_submodule(str(node.target))
                for tensor in (*module.parameters(), *module.buffers()):
                    holding = self._holding(tensor)
                    holding.called.append(node)
                    holding.places.append(self._place[node])

    def _holding(self, tensor: Tensor) -> _Holding:
        return self.holdings.setdefault(memory_of(tensor), _Holding(tensor))

    def _find_sent_attributes(self) -> dict[Node, Node]:
        """Parameters that more than one step fetches, and that no module has: their gradients are one sum."""
        found: dict[Node, Node] = {}
        for holding in self.holdings.values():
            tensors = {id(operator.attrgetter(str(node.target))(self._program)) for node in holding.getters}
            if holding.tensor.requires_grad and not holding.called and len(tensors) == 1:
                found.update(dict.fromkeys(holding.getters, holding.getters[0]))
        return found

    def _find_values(self) -> None:
        last: dict[Node, int] = {}
        made: dict[Node, int] = {}
        held_by = {node: holding for holding in self.holdings.values() for node in holding.getters}
        for node in self._program.graph.nodes:
            place = len(self.steps) if node.op == "output" else self._place.get(node)
            needed = dict.fromkeys(leaf for used in node.all_input_nodes for leaf in self._leaves[used])
            if place is None:
                # Inputs and attributes are there before the first step.
                made[node], self._leaves[node] = -1, self._leaves_of(node, needed)
                continue
            made[node], self._leaves[node] = place, {node: None}
            for leaf in needed:
                last[leaf] = place
                # An attribute that is sent on comes from the first stage that uses it.
                if leaf.op == "get_attr" and made[leaf] < 0:
                    made[leaf] = place
            for used in self.made_for(node):
                if (holding := held_by.get(used)) is not None:
                    holding.places.append(place)
        self.values = [CutValue(node, made[node], place) for node, place in last.items()]
        self.values.sort(key=lambda value: value.node)

    def _leaves_of(self, node: Node, needed: dict[Node, None]) -> dict[Node, None]:
        if node.op == "placeholder":
            return {node: None}
        if node.op == "get_attr":
            first = self.sent_on.get(node)
            return {} if first is None else {first: None}
        return needed

    # Where there can be no cut.

    def _block(self) -> None:
        for value in self.values:
            node = value.node
            if not isinstance(_recorded(node), TensorMetadata):
                kind: Any = node.meta.get("type", object)
                self._forbid(
                    value.made,
                    value.last,
                    f"`%{node}`, {with_article(kind.__name__)}, is used behind it: only tensors are sent",
                )
            writers = [self._place[one] for one in self._dependences.writers(node) if one in self._place]
            if writers and (latest := max(writers)) > value.made:
                why = f"`%{self.steps[latest]}` behind it writes to the memory of `%{node}`, of which a copy is sent"
                self._forbid(value.made, min(value.last, latest), why)
        for holding in self.holdings.values():
            if (why := self._why_together(holding)) is not None:
                self._forbid(min(holding.places), max(holding.places), why)
        modes = [self._place[one] for one in self.steps if (effect := effect_of(one)) is not None and effect.sets_modes]
        if modes:
            self._forbid(
                min(modes), max(modes), "operations on both sides set modes, which each process has of its own"
            )
        crossed = {place for value in self.values for place in range(value.made + 1, value.last + 1)}
        for place in range(1, len(self.steps)):
            if place not in crossed:
                self._forbid(place - 1, place, "no value is sent: what is behind it needs none")

    def _why_together(self, holding: _Holding) -> str | None:
        """Return why the steps that use one piece of state have to be in one stage; None if they need not."""
        if len(set(holding.places)) < 2:
            return None
        users = [*holding.getters, *holding.called]
        path = str(users[0].target)
        changes = any(self._dependences.why_state_varies(node) is not None for node in users)
        if changes:
            return f"operations on both sides use {path}, which the program writes to"
        if holding.tensor.requires_grad and any(node not in self.sent_on for node in users):
            return f"modules on both sides share the parameters of {path}, whose gradients are one sum"
        return None

    def _forbid(self, made: int, last: int, why: str) -> None:
        for place in range(max(made, 0) + 1, min(last, len(self.steps) - 1) + 1):
            self.blocked[place] = self.blocked[place] or why

    def reasons(self) -> list[str]:
        """Return why there are no more places to cut at, the most common reason first."""
        counts: dict[str, int] = {}
        for why in self.blocked[1 : len(self.steps)]:
            if why is not None:
                counts[why] = counts.get(why, 0) + 1
        return sorted(counts, key=lambda why: -counts[why])[:_SHOWN]

    # Where to cut.

    def places(self) -> list[int]:
        """Return where a stage may begin or end."""
        inner = (place for place in range(1, len(self.steps)) if self.blocked[place] is None)
        return [0, *inner, len(self.steps)]

    def state_bytes(self) -> list[int]:
        """Bytes of parameters and buffers, each at the first step that uses it."""
        found = [0] * (len(self.steps) + 1)
        for holding in self.holdings.values():
            if holding.places:
                found[min(holding.places)] += holding.tensor.numel() * holding.tensor.element_size()
        return found[:-1]


class Division:
    """A row of steps divided at some of the places where it may be, by dynamic programming over the last cut."""

    def __init__(self, places: Sequence[int], stages: int) -> None:
        """Take the places, the first and the last of them among these, and how many stages there are to be."""
        self._places = torch.tensor(places)
        self._stages = stages
        self._limits: list[tuple[Tensor, float]] = []

    def limit(self, each: Sequence[float], most: float) -> None:
        """Let the steps of no stage add up to more than ``most``."""
        self._limits.append((self._sums(each), most))

    def least_largest(self, each: Sequence[float]) -> float | None:
        """Return what the steps of the largest stage add up to where that is least; None where nothing keeps to the
        limits.
        """
        sums = self._sums(each)
        found = self._best(lambda end: sums[end] - sums[:end], torch.maximum)
        return None if found is None else found[0]

    def least_sum(self, before: Sequence[float]) -> list[int] | None:
        """The cuts for which the sum of ``before``, which has an entry for each place, is least."""
        entries = torch.tensor(before, dtype=torch.float64)[self._places]
        entries[0] = 0.0
        found = self._best(lambda end: entries[:end], torch.add)
        return None if found is None else [int(self._places[at]) for at in found[1]]

    def _sums(self, each: Sequence[float]) -> Tensor:
        total = torch.tensor([0.0, *each], dtype=torch.float64).cumsum(0)
        return total[self._places]

    def _best(
        self, measure: Callable[[int], Tensor], combine: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[float, list[int]] | None:
        """Return the least value and the numbers of the cuts.

        Args:
            measure: of a stage, from each earlier place to the one of that number.
            combine: of what is before a stage and the stage.
        """
        count = len(self._places)
        stages = [self._within(end, measure(end)) for end in range(1, count)]
        best = torch.cat([torch.full((1,), torch.inf, dtype=torch.float64), *(stage[:1] for stage in stages)])
        cuts: list[list[int]] = []
        for _ in range(1, self._stages):
            ways = [combine(best[:end], stages[end - 1]).min(0) for end in range(1, count)]
            best = torch.stack([best.new_tensor(torch.inf), *(way.values for way in ways)])
            cuts.append([0, *(int(way.indices) for way in ways)])
        if best[-1].isinf():
            return None
        found = [count - 1]
        for row in reversed(cuts):
            found.append(row[found[-1]])
        return float(best[-1]), found[:0:-1]

    def _within(self, end: int, measured: Tensor) -> Tensor:
        """``measured``, and infinity for the stages that are beyond a limit."""
        for sums, most in self._limits:
            measured = measured.masked_fill(sums[end] - sums[:end] > most, torch.inf)
        return measured


def _is_number(node: Node) -> bool:
    """Return whether the value is none of tensors, and is computed without an effect: sizes, and what follows from
    them.
    """
    return node.op.startswith("call") and _recorded(node) is None and effect_of(node) is None


def _recorded(node: Node) -> Any:
    return node.meta.get("tensor_meta")
