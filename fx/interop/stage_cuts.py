"""Places to cut a program into stages that run in separate processes, and the choice of the best."""

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
    """A value that is sent between processes if a cut separates its producer from a use."""

    node: Node
    """The producer: an input, an operation, or an attribute that several stages may use."""
    made: int
    """The number of the producing step; -1 for an input."""
    last: int
    """The number of the last step that uses it; the count of steps if the program returns it."""


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
    fetched or computed again in each stage that uses them; other tensors are sent.
    """

    def __init__(self, program: GraphModule) -> None:
        self._program = program
        self._dependences = Dependences(program.graph)
        self.steps: list[Node] = []
        """The operations, without the numbers that are computed again in each stage that uses them."""
        self._leaves: dict[Node, dict[Node, None]] = {}
        """The values that have to be sent for each value to be available."""
        self._place: dict[Node, int] = {}
        self.values: list[CutValue] = []
        """The values that may have to be sent."""
        self.holdings: dict[int, _Holding] = {}
        """The state by storage."""
        for node in program.graph.nodes:
            if node.op.startswith("call") and not _is_number(node):
                self._place[node] = len(self.steps)
                self.steps.append(node)
        self._find_state()
        self.sent_on = self._find_sent_attributes()
        """Nodes that fetch an attribute that one stage sends to the others, with the first node that fetches it."""
        self._find_values()
        self.blocked: list[str | None] = [None] * (len(self.steps) + 1)
        """For each step the reason why there can be no cut before it, or None."""
        self._block()
        sent = [0] * (len(self.steps) + 1)
        for value in self.values:
            for place in range(value.made + 1, value.last + 1):
                sent[place] += bytes_recorded(_recorded(value.node)) or 0
        self.sent = sent
        """Bytes that a cut before each step sends."""

    def crossing(self, place: int) -> list[Node]:
        """Return the values that a cut before the step at ``place`` sends, in the order of the program."""
        return [value.node for value in self.values if value.made < place <= value.last]

    def made_for(self, node: Node) -> list[Node]:
        """Return the attributes and numbers that ``node`` needs, in order; its stage computes or receives them."""

        def made(user: Node) -> list[Node]:
            return [used for used in user.all_input_nodes if used not in self._place and used.op != "placeholder"]

        return sorted(reached([node], made).keys() - {node})

    # State and values.

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
        """Map nodes that fetch a trained parameter, used by no module call, to the first such node.

        Such a parameter lives in one stage, so that its gradient is summed there.
        """
        first_getters: dict[Node, Node] = {}
        for holding in self.holdings.values():
            tensors = {id(operator.attrgetter(str(node.target))(self._program)) for node in holding.getters}
            if holding.tensor.requires_grad and not holding.called and len(tensors) == 1:
                first_getters.update(dict.fromkeys(holding.getters, holding.getters[0]))
        return first_getters

    def _find_values(self) -> None:
        last: dict[Node, int] = {}
        making_step: dict[Node, int] = {}
        held_by = {node: holding for holding in self.holdings.values() for node in holding.getters}
        for node in self._program.graph.nodes:
            place = len(self.steps) if node.op == "output" else self._place.get(node)
            needed = dict.fromkeys(leaf for used in node.all_input_nodes for leaf in self._leaves[used])
            if place is None:
                # Inputs and attributes are available before the first step.
                making_step[node], self._leaves[node] = -1, self._leaves_of(node, needed)
                continue
            making_step[node], self._leaves[node] = place, {node: None}
            for leaf in needed:
                last[leaf] = place
                # An attribute is sent by the first stage that uses it.
                if leaf.op == "get_attr" and making_step[leaf] < 0:
                    making_step[leaf] = place
            for used in self.made_for(node):
                if (holding := held_by.get(used)) is not None:
                    holding.places.append(place)
        self.values = [CutValue(node, making_step[node], place) for node, place in last.items()]
        self.values.sort(key=lambda value: value.node)

    def _leaves_of(self, node: Node, needed: dict[Node, None]) -> dict[Node, None]:
        if node.op == "placeholder":
            return {node: None}
        if node.op == "get_attr":
            first = self.sent_on.get(node)
            return {} if first is None else {first: None}
        return needed

    # Places that cannot be cut.

    def _block(self) -> None:
        for value in self.values:
            node = value.node
            if not isinstance(_recorded(node), TensorMetadata):
                kind: Any = node.meta.get("type", object)
                self._forbid(
                    value.made,
                    value.last,
                    f"`%{node}`, {with_article(kind.__name__)}, is used after it: only tensors are sent",
                )
            writers = [self._place[writer] for writer in self._dependences.writers(node) if writer in self._place]
            if writers and (latest := max(writers)) > value.made:
                why = f"`%{self.steps[latest]}` after it writes to the memory of `%{node}`, but a copy is sent"
                self._forbid(value.made, min(value.last, latest), why)
        for holding in self.holdings.values():
            if (why := self._why_together(holding)) is not None:
                self._forbid(min(holding.places), max(holding.places), why)
        modes = [
            self._place[step] for step in self.steps if (effect := effect_of(step)) is not None and effect.sets_modes
        ]
        if modes:
            self._forbid(
                min(modes), max(modes), "operations on both sides set modes, which each process has of its own"
            )
        crossed = {place for value in self.values for place in range(value.made + 1, value.last + 1)}
        for place in range(1, len(self.steps)):
            if place not in crossed:
                self._forbid(place - 1, place, "no value is sent: later operations need none")

    def _why_together(self, holding: _Holding) -> str | None:
        """Return the reason why all steps that use one piece of state have to be in one stage, or None."""
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

    def _forbid(self, first: int, last: int, why: str) -> None:
        for place in range(max(first, 0) + 1, min(last, len(self.steps) - 1) + 1):
            self.blocked[place] = self.blocked[place] or why

    def reasons(self) -> list[str]:
        """Return the reasons against cuts, the most common first."""
        counts: dict[str, int] = {}
        for why in self.blocked[1 : len(self.steps)]:
            if why is not None:
                counts[why] = counts.get(why, 0) + 1
        return sorted(counts, key=lambda why: -counts[why])[:_SHOWN]

    # Where to cut.

    def places(self) -> list[int]:
        """Return the steps at which a stage may begin or end."""
        inner = (place for place in range(1, len(self.steps)) if self.blocked[place] is None)
        return [0, *inner, len(self.steps)]

    def state_bytes(self) -> list[int]:
        """Return the bytes of parameters and buffers by step, each counted at the first step that uses it."""
        sizes = [0] * (len(self.steps) + 1)
        for holding in self.holdings.values():
            if holding.places:
                sizes[min(holding.places)] += holding.tensor.numel() * holding.tensor.element_size()
        return sizes[:-1]


class Division:
    """A choice of cuts in a sequence of steps, by dynamic programming over the last cut."""

    def __init__(self, places: Sequence[int], stages: int) -> None:
        """Take the permitted places, including both ends of the sequence, and the number of stages."""
        self._places = torch.tensor(places)
        self._stages = stages
        self._limits: list[tuple[Tensor, float]] = []

    def limit(self, each: Sequence[float], most: float) -> None:
        """Limit the sum of ``each`` over the steps of any stage to ``most``."""
        self._limits.append((self._sums(each), most))

    def least_largest(self, each: Sequence[float]) -> float | None:
        """Return the smallest possible sum of the largest stage; None if no division keeps to the limits."""
        sums = self._sums(each)
        best = self._best(lambda end: sums[end] - sums[:end], torch.maximum)
        return None if best is None else best[0]

    def least_sum(self, before: Sequence[float]) -> list[int] | None:
        """Return the cuts with the smallest sum of ``before``, which has an entry for each place.

        None if no division keeps to the limits.
        """
        entries = torch.tensor(before, dtype=torch.float64)[self._places]
        entries[0] = 0.0
        best = self._best(lambda end: entries[:end], torch.add)
        return None if best is None else [int(self._places[at]) for at in best[1]]

    def _sums(self, each: Sequence[float]) -> Tensor:
        total = torch.tensor([0.0, *each], dtype=torch.float64).cumsum(0)
        return total[self._places]

    def _best(
        self, measure: Callable[[int], Tensor], combine: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[float, list[int]] | None:
        """Return the smallest value, and the cuts as positions in ``places``; None if no division keeps to the limits.

        Args:
            measure: maps the number of a place to the measures of the stages from each earlier place to it.
            combine: combines the value of all earlier stages with the measure of a stage.
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
        path = [count - 1]
        for row in reversed(cuts):
            path.append(row[path[-1]])
        return float(best[-1]), path[:0:-1]

    def _within(self, end: int, measured: Tensor) -> Tensor:
        """Return ``measured`` with infinity for the stages that exceed a limit."""
        for sums, most in self._limits:
            measured = measured.masked_fill(sums[end] - sums[:end] > most, torch.inf)
        return measured


def _is_number(node: Node) -> bool:
    """Return whether the value has no tensors and no effects: a size, or a number computed from sizes."""
    return node.op.startswith("call") and _recorded(node) is None and effect_of(node) is None


def _recorded(node: Node) -> Any:
    return node.meta.get("tensor_meta")
