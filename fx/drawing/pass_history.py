"""``record_passes``: a run of passes on a copy of a program, with a record of their edits to each node.

Nodes are followed as objects, not by their names: a node that a pass edits in place is the same object before and
after. Passes record when a node does the work of others (:mod:`fx.provenance`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fx.argument_types import Inputs, checked
from fx.arguments import expect_shallow
from fx.drawing.clusters import shared_length
from fx.drawing.difference import ProgramDifference, longest_increasing
from fx.drawing.drawn_program import DrawnNode, DrawnProgram, Path
from fx.drawing.picture import Picture, PictureNode
from fx.drawing.rows import Edge
from fx.errors import DrawingError
from fx.graph_module import GraphModule
from fx.modules.attributes import MISSING, find_attribute
from fx.naming.printing import format_argument
from fx.node import Node, map_arg
from fx.pipelines.pass_report import PassReport
from fx.pipelines.pipeline import PassPipeline
from fx.pipelines.registered_passes import Pass

_MARKER = "\0"
"""The first character of names added to the origins of nodes while a pass runs; no name of a node begins with it."""


@dataclass(frozen=True, slots=True)
class State:
    """A program before, between or after passes."""

    program: DrawnProgram
    """The drawable facts of the program."""
    numbers: tuple[int, ...]
    """The number of each node; the same node has the same number in all states."""
    editions: Mapping[int, int]
    """The number of changes to each node so far, by these numbers."""


@dataclass(frozen=True, slots=True)
class PassHistory:
    """A program before and after each of several passes."""

    states: tuple[State, ...]
    """The program before the passes, and after each pass that changed it."""
    reports: tuple[PassReport, ...]
    """The pipeline's report of each pass, also of those that changed nothing."""
    links: tuple[Mapping[int, tuple[int, ...]], ...]
    """From each state to the next: the numbers of the nodes that do the work of a node."""
    order: tuple[int, ...]
    """The numbers of all nodes, in an order that fits all states, except for moved nodes."""
    graph_module: GraphModule
    """The copy of the program, after the passes."""

    @property
    def changing(self) -> tuple[PassReport, ...]:
        """The reports of the passes that changed the program; there is a state after each."""
        return tuple(report for report in self.reports if report.changed)

    @property
    def differences(self) -> tuple[ProgramDifference, ...]:
        """The difference that each changing pass made."""
        return tuple(self.difference(place, place + 1) for place in range(len(self.states) - 1))

    def difference(self, first: int = 0, last: int = -1) -> ProgramDifference:
        """Return the difference between two states, by default between the first and the last."""
        last = len(self.states) - 1 if last == -1 else last
        before, after = self.states[first], self.states[last]
        old = dict(zip(before.numbers, before.program.nodes, strict=True))
        new = dict(zip(after.numbers, after.program.nodes, strict=True))
        survivors = [number for number in after.numbers if number in old]
        place = {number: place for place, number in enumerate(before.numbers)}
        # A pass that moves one node to the front has moved that node, not all the nodes before it.
        stayed = longest_increasing([place[number] for number in survivors])
        pairs = self._pairs(first, last)
        became: dict[str, list[str]] = {}
        stands_for: dict[str, list[str]] = {}
        for earlier, later in pairs:
            became.setdefault(old[earlier].name, []).append(new[later].name)
            stands_for.setdefault(new[later].name, []).append(old[earlier].name)
        reports = self.changing[first:last]
        return ProgramDifference(
            name=",".join(report.name for report in reports or self.reports),
            edits=tuple(str(edit) for report in reports for edit in report.edits),
            seconds=sum(report.seconds for report in reports),
            removed=tuple(old[number].name for number in before.numbers if number not in new),
            added=tuple(new[number].name for number in after.numbers if number not in old),
            changed=tuple(
                old[number].name
                for number in before.numbers
                if number in new and before.editions[number] != after.editions[number]
            ),
            moved=tuple(old[number].name for place, number in enumerate(survivors) if place not in stayed),
            one_to_many={name: tuple(names) for name, names in became.items() if len(names) > 1},
            many_to_one={name: tuple(names) for name, names in stands_for.items() if len(names) > 1},
            counterparts=tuple((old[earlier].name, new[later].name) for earlier, later in pairs),
            before=before.program,
            after=after.program,
            kept={old[number].name: new[number].name for number in before.numbers if number in new},
        )

    def _pairs(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return pairs of a node in one state and a node in a later state that does its work."""
        pairs: list[tuple[int, int]] = []
        for number in self.states[first].numbers:
            now = {number: None}
            for links in self.links[first:last]:
                now = dict.fromkeys(successor for current in now for successor in links.get(current, ()))
            pairs += [(number, other) for other in now]
        return pairs

    def picture(
        self, states: Sequence[int], *, fold: bool = True, largest: int | None = None
    ) -> tuple[Picture, list[int]]:
        """Return several states as one picture, in which each node has one place, and the numbers of its nodes.

        The states of the picture are numbered from 0, in the order of ``states``.
        """
        nodes, numbers = self._nodes(states)
        place = {number: place for place, number in enumerate(numbers)}
        edges: dict[tuple[int, int], int] = {}
        for bit, number in enumerate(states):
            state = self.states[number]
            nodes_of_state = zip(state.numbers, state.program.nodes, strict=True)
            by_name = {node.name: place[node_number] for node_number, node in nodes_of_state}
            for node in state.program.nodes:
                for read in node.inputs:
                    key = by_name[read], by_name[node.name]
                    edges[key] = edges.get(key, 0) | 1 << bit
        classes = {path: name for state in self.states for path, name in state.program.classes.items()}
        program = DrawnProgram((), classes)
        marks = self._marks(states, numbers)
        drawn_edges: list[Edge] = [(read, reader, there) for (read, reader), there in edges.items()]
        return Picture.arranged(nodes, drawn_edges, program, marks, fold=fold, largest=largest), numbers

    def _nodes(self, states: Sequence[int]) -> tuple[list[PictureNode], list[int]]:
        versions: dict[int, list[tuple[int, DrawnNode]]] = {}
        there: dict[int, int] = {}
        for bit, number in enumerate(states):
            state = self.states[number]
            for node_number, node in zip(state.numbers, state.program.nodes, strict=True):
                of_node = versions.setdefault(node_number, [])
                if not of_node or of_node[-1][1] != node:
                    of_node.append((bit, node))
                there[node_number] = there.get(node_number, 0) | 1 << bit
        numbers = [number for number in self.order if number in there]
        return [PictureNode(tuple(versions[number]), there[number]) for number in numbers], numbers

    def _marks(self, states: Sequence[int], numbers: Sequence[int]) -> list[tuple[str, ...]]:
        """Return the marks of each node between neighbouring states."""
        marks: list[dict[int, str]] = []
        for first, last in itertools.pairwise(states):
            both = zip((first, last), self.difference(first, last).marks(), strict=True)
            marks.append(
                {
                    number: names[node.name]
                    for state, names in both
                    for number, node in zip(self.states[state].numbers, self.states[state].program.nodes, strict=True)
                    if node.name in names
                }
            )
        return [tuple(step.get(number, "") for step in marks) for number in numbers]


@checked(DrawingError)
def record_passes(
    graph_module: GraphModule, passes: str | Pass | Iterable[object], inputs: Inputs | None = None
) -> PassHistory:
    """Run passes on a copy of a program, and record their edits.

    Args:
        graph_module: the program, which stays as it is.
        passes: passes as for :class:`~fx.pipelines.pipeline.PassPipeline`.
        inputs: example inputs, to find sizes, and as data for passes that take data.

    Raises:
        PassError: a pass failed, as in a pipeline.

    >>> import fx
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)).eval()
    >>> difference = record_passes(fx.symbolic_trace(net), "fuse-conv-bn,remove-dead-code").difference()
    >>> difference.removed, difference.changed, difference.many_to_one
    (('_1',), ('_0',), {'_0': ('_0', '_1')})
    """
    expect_shallow(inputs, DrawingError)
    example_inputs = None if inputs is None else tuple(inputs)
    return _HistoryRecorder(copy.deepcopy(graph_module), example_inputs).run(PassPipeline(passes).passes)


class _HistoryRecorder:
    """A recorder that follows nodes through passes."""

    def __init__(self, program: GraphModule, inputs: tuple[Any, ...] | None) -> None:
        self.program = program
        self.inputs = inputs
        self.numbers: dict[Node, int] = {}
        self.editions: dict[int, int] = {}
        self.order: list[int] = []
        self.around: dict[int, Path] = {}
        self.ops: dict[int, str] = {}
        self.count = 0

    def run(self, passes: Iterable[Pass]) -> PassHistory:
        for node in self.program.graph.nodes:
            self.order.append(self.take(node))
        states = [self.state(DrawnProgram.of(self.program, self.inputs))]
        links: list[Mapping[int, tuple[int, ...]]] = []
        reports: list[PassReport] = []
        for pass_ in passes:
            report, new_links = self.step(pass_)
            reports.append(report)
            if report.changed:
                links.append(new_links)
                states.append(self.state(self.drawn()))
        return PassHistory(tuple(states), tuple(reports), tuple(links), tuple(self.order), self.program)

    def take(self, node: Node) -> int:
        """Give a new node a number."""
        number = self.numbers[node] = self.count
        self.count += 1
        self.editions[number] = 0
        return number

    def drawn(self) -> DrawnProgram:
        """Return the drawable facts of the program, with sizes if it runs on fake tensors: device engines do not."""
        try:
            return DrawnProgram.of(self.program, self.inputs)
        except Exception:
            return DrawnProgram.of(self.program)

    def state(self, drawn: DrawnProgram) -> State:
        """Return the present state; nodes that replace others are in the module of these."""
        numbers = tuple(self.numbers[node] for node in self.program.graph.nodes)
        nodes: list[DrawnNode] = []
        for number, node in zip(numbers, drawn.nodes, strict=True):
            modules = self.around.setdefault(number, node.modules)
            self.ops[number] = node.op
            nodes.append(replace(node, modules=modules) if modules != node.modules else node)
        return State(DrawnProgram(tuple(nodes), drawn.classes), numbers, dict(self.editions))

    def step(self, pass_: Pass) -> tuple[PassReport, Mapping[int, tuple[int, ...]]]:
        """Run one pass; return its report, and the numbers of the nodes that do the work of each node before."""
        if self.inputs is not None and hasattr(pass_, "with_data"):
            pass_ = pass_.with_data([(self.inputs, {})])  # type: ignore[attr-defined]
        graph = self.program.graph
        before = {node.name: node for node in graph.nodes}
        calls = {node: self.call(node) for node in graph.nodes}
        for node in graph.nodes:
            node.origins = (*(node.origins or (node.name,)), _MARKER + node.name)
        result = PassPipeline([pass_]).run(self.program)
        self.program = result.graph_module
        after = list(self.program.graph.nodes)
        stands_for = {node: [before[name] for name in _unmark(node) if name in before] for node in after}
        return result.reports[0], self.follow(calls, before, stands_for, self.program.graph is graph)

    def follow(
        self,
        calls: Mapping[Node, DrawnCall],
        before: Mapping[str, Node],
        stands_for: Mapping[Node, Sequence[Node]],
        is_same_graph: bool,
    ) -> Mapping[int, tuple[int, ...]]:
        """Number the nodes after a pass, and count its changes."""
        earlier = self.numbers
        self.numbers = {}
        continued = _continued(before, stands_for, is_same_graph)
        inserted: dict[int, list[int]] = {}
        previous = -1
        for node in stands_for:
            if node in continued:
                previous = self.numbers[node] = earlier[continued[node]]
            else:
                number = self.take(node)
                inserted.setdefault(previous, []).append(number)
                self.place(number, node, stands_for[node], earlier)
        # -1 is the start: nodes inserted there have no node before them.
        order = [member for number in (-1, *self.order) for member in (number, *inserted.get(number, ()))]
        self.order = [number for number in order if number >= 0]
        links: dict[int, list[int]] = {}
        for node, others in stands_for.items():
            itself = [earlier[continued[node]]] if node in continued else []
            for number in dict.fromkeys([*(earlier[other] for other in others), *itself]):
                links.setdefault(number, []).append(self.numbers[node])
        for node, old in continued.items():
            if self.call(node).differs(calls[old], links):
                self.editions[self.numbers[node]] += 1
        return {number: tuple(successors) for number, successors in links.items()}

    def place(self, number: int, node: Node, others: Sequence[Node], earlier: Mapping[Node, int]) -> None:
        """Put a new node into the innermost module around all the nodes whose work it does.

        A node with its own record of modules keeps that, unless it replaces only calls of modules.
        """
        recorded = node._meta and node._meta.get("nn_module_stack")
        if not others or node.op in ("placeholder", "output"):
            return
        if recorded and not all(self.ops[earlier[other]] == "call_module" for other in others):
            return
        shared, *around = [self.around[earlier[other]] for other in others]
        for path in around:
            shared = shared[: shared_length(shared, path)]
        self.around[number] = shared

    def call(self, node: Node) -> DrawnCall:
        """Return the present call of a node."""
        reads: list[int] = []

        def note(read: Node) -> str:
            reads.append(self.numbers[read])
            return _MARKER

        arguments = format_argument(map_arg((node.args, node.kwargs), note))
        value: Any = None
        if node.op in ("call_module", "get_attr"):
            value = find_attribute(self.program, str(node.target), MISSING)
        settings, tensors = "", [value] if isinstance(value, torch.Tensor) else []
        if isinstance(value, torch.nn.Module):
            settings = repr(value) if not isinstance(value, GraphModule) else value.code
            tensors = [*value.parameters(), *value.buffers()]
        versions = tuple((tensor, 0 if tensor.is_inference() else tensor._version) for tensor in tensors)
        return DrawnCall(node.name, node.op, node.target, arguments, tuple(reads), settings, versions)


@dataclass(frozen=True, slots=True)
class DrawnCall:
    """The call of a node at one time, for comparison."""

    name: str
    """Its name."""
    op: str
    """Its opcode."""
    target: Any
    """Its target."""
    arguments: str
    """Its arguments as text, with the same sign for all nodes."""
    reads: tuple[int, ...]
    """The numbers of these nodes."""
    settings: str
    """The representation, or the code, of the called module."""
    tensors: tuple[tuple[torch.Tensor, int], ...]
    """The tensors that it held or fetched, with the number of writes to each so far."""

    def differs(self, other: DrawnCall, links: Mapping[int, Sequence[int]]) -> bool:
        """Return whether this call differs from an earlier one; ``links`` maps old nodes to their replacements."""
        mine = self.name, self.op, self.arguments, self.settings, len(self.tensors)
        if mine != (other.name, other.op, other.arguments, other.settings, len(other.tensors)):
            return True
        for now, then in zip(self.reads, other.reads, strict=True):
            if now != then and now not in links.get(then, ()):
                return True
        if self.target is not other.target and self.target != other.target:
            return True
        return any(map(_tensor_differs, self.tensors, other.tensors))


def _tensor_differs(now: tuple[torch.Tensor, int], then: tuple[torch.Tensor, int]) -> bool:
    if now[0] is then[0]:
        return now[1] != then[1]
    new, old = now[0].detach(), then[0].detach()
    same_kind = (new.shape, new.dtype, new.device) == (old.shape, old.dtype, old.device)
    return not (same_kind and torch.equal(new, old))


def _unmark(node: Node) -> list[str]:
    """Remove the marked names from the origins of a node, and return them."""
    marked = [origin[1:] for origin in node.origins if origin.startswith(_MARKER)]
    if marked:
        node.origins = tuple(origin for origin in node.origins if not origin.startswith(_MARKER))
    return marked


def _continued(
    before: Mapping[str, Node], stands_for: Mapping[Node, Sequence[Node]], is_same_graph: bool
) -> dict[Node, Node]:
    """Map each surviving node to its original: itself, or in a new graph the node of which it is a copy."""
    if is_same_graph:
        old_nodes = set(before.values())
        return {node: node for node in stands_for if node in old_nodes}
    continued: dict[Node, Node] = {}
    copied: set[Node] = set()
    for has_same_name in (True, False):
        for node, others in stands_for.items():
            for other in others:
                is_free = node not in continued and other not in copied
                is_copy = (node.op, node.target) == (other.op, other.target)
                if is_free and is_copy and (node.name == other.name or not has_same_name):
                    continued[node] = other
                    copied.add(other)
    return continued
