"""``record_passes``: runs passes on a copy of a program and records what each did with each node.

Nodes are followed as the passes edit them, not by their names: a node that a pass edits in place is the same object
before and after, and where one does the work of others the passes say so (:mod:`fx.provenance`).
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fx.arguments import expect_inputs
from fx.drawing.clusters import shared_length
from fx.drawing.difference import ProgramDifference, longest_increasing
from fx.drawing.drawn_program import DrawnNode, DrawnProgram, Path
from fx.drawing.picture import Picture, PictureNode
from fx.drawing.rows import Edge
from fx.errors import DrawingError
from fx.graph_module import GraphModule, expect_program
from fx.modules.attributes import MISSING, find_attribute
from fx.naming.printing import format_argument
from fx.node import Node, map_arg
from fx.passes.pass_report import PassReport
from fx.passes.pipeline import PassPipeline
from fx.passes.registered_passes import Pass

_MARKER = "\0"
"""Begins the names that are put beside the origins of nodes while a pass runs, which no name of a node does."""


@dataclass(frozen=True, slots=True)
class State:
    """A program before, between or after passes."""

    program: DrawnProgram
    """What is drawn of it."""
    numbers: tuple[int, ...]
    """The number of each node in all states: the same node has the same."""
    editions: Mapping[int, int]
    """By these numbers how often each node was changed so far."""


@dataclass(frozen=True, slots=True)
class PassHistory:
    """A program before and after each of some passes."""

    states: tuple[State, ...]
    """The program before the passes, and after each that changed something."""
    reports: tuple[PassReport, ...]
    """What the pipeline reports of each pass, also of those that changed nothing."""
    links: tuple[Mapping[int, tuple[int, ...]], ...]
    """From each state to the next: the numbers of the nodes that do the work of a node."""
    order: tuple[int, ...]
    """The numbers of all nodes, in an order that fits all states but for nodes that were moved."""
    graph_module: GraphModule
    """The copy of the program, after the passes."""

    @property
    def changing(self) -> tuple[PassReport, ...]:
        """The reports of the passes that changed something; there is a state after each."""
        return tuple(report for report in self.reports if report.changed)

    @property
    def differences(self) -> tuple[ProgramDifference, ...]:
        """Return what each pass did that changed something."""
        return tuple(self.difference(place, place + 1) for place in range(len(self.states) - 1))

    def difference(self, first: int = 0, last: int = -1) -> ProgramDifference:
        """Return what lies between two states, by default all that the passes did together."""
        last = len(self.states) - 1 if last == -1 else last
        before, after = self.states[first], self.states[last]
        old = dict(zip(before.numbers, before.program.nodes, strict=True))
        new = dict(zip(after.numbers, after.program.nodes, strict=True))
        kept = [number for number in after.numbers if number in old]
        place = {number: place for place, number in enumerate(before.numbers)}
        # A pass that moves one node to the front has moved that one, not all that it passed.
        stayed = longest_increasing([place[number] for number in kept])
        pairs = self._pairs(first, last)
        became: dict[str, list[str]] = {}
        stands_for: dict[str, list[str]] = {}
        for one, other in pairs:
            became.setdefault(old[one].name, []).append(new[other].name)
            stands_for.setdefault(new[other].name, []).append(old[one].name)
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
            moved=tuple(old[number].name for place, number in enumerate(kept) if place not in stayed),
            one_to_many={name: tuple(names) for name, names in became.items() if len(names) > 1},
            many_to_one={name: tuple(names) for name, names in stands_for.items() if len(names) > 1},
            counterparts=tuple((old[one].name, new[other].name) for one, other in pairs),
            before=before.program,
            after=after.program,
            kept={old[number].name: new[number].name for number in before.numbers if number in new},
        )

    def _pairs(self, first: int, last: int) -> list[tuple[int, int]]:
        """Nodes of a state with those that do their work in a later one."""
        pairs: list[tuple[int, int]] = []
        for number in self.states[first].numbers:
            now = {number: None}
            for links in self.links[first:last]:
                now = dict.fromkeys(other for one in now for other in links.get(one, ()))
            pairs += [(number, other) for other in now]
        return pairs

    def picture(
        self, states: Sequence[int], *, fold: bool = True, largest: int | None = None
    ) -> tuple[Picture, list[int]]:
        """Some states as one picture, in which a node has one place, and the number of each node of the picture.

        Its states are numbered from 0, in the order in which they are given.
        """
        nodes, numbers = self._nodes(states)
        place = {number: place for place, number in enumerate(numbers)}
        edges: dict[tuple[int, int], int] = {}
        for bit, number in enumerate(states):
            state = self.states[number]
            by_name = {node.name: place[one] for one, node in zip(state.numbers, state.program.nodes, strict=True)}
            for node in state.program.nodes:
                for read in node.inputs:
                    key = by_name[read], by_name[node.name]
                    edges[key] = edges.get(key, 0) | 1 << bit
        classes = {path: name for state in self.states for path, name in state.program.classes.items()}
        program = DrawnProgram((), classes)
        marks = self._marks(states, numbers)
        found: list[Edge] = [(read, reader, there) for (read, reader), there in edges.items()]
        return Picture.arranged(nodes, found, program, marks, fold=fold, largest=largest), numbers

    def _nodes(self, states: Sequence[int]) -> tuple[list[PictureNode], list[int]]:
        versions: dict[int, list[tuple[int, DrawnNode]]] = {}
        there: dict[int, int] = {}
        for bit, number in enumerate(states):
            state = self.states[number]
            for one, node in zip(state.numbers, state.program.nodes, strict=True):
                known = versions.setdefault(one, [])
                if not known or known[-1][1] != node:
                    known.append((bit, node))
                there[one] = there.get(one, 0) | 1 << bit
        numbers = [number for number in self.order if number in there]
        return [PictureNode(tuple(versions[number]), there[number]) for number in numbers], numbers

    def _marks(self, states: Sequence[int], numbers: Sequence[int]) -> list[tuple[str, ...]]:
        """Return what became of each node between neighbouring states."""
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
        return [tuple(found.get(number, "") for found in marks) for number in numbers]


def record_passes(
    graph_module: GraphModule, passes: str | Pass | Iterable[object], inputs: Iterable[Any] | None = None
) -> PassHistory:
    """Run passes on a copy of a program, and record what they do.

    Args:
        graph_module: the program, which stays as it is.
        passes: what :class:`~fx.passes.pipeline.PassPipeline` takes.
        inputs: example inputs, with which sizes are found out, and which passes that take data are given.

    Raises:
        PassError: a pass failed, as in a pipeline.

    >>> import fx
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3)).eval()
    >>> made = record_passes(fx.symbolic_trace(net), "fuse-conv-bn,remove-dead-code").difference()
    >>> made.removed, made.changed, made.many_to_one
    (('_1',), ('_0',), {'_0': ('_0', '_1')})
    """
    expect_program(graph_module, "record_passes takes a GraphModule", error=DrawingError)
    expect_inputs(inputs, "record_passes", error=DrawingError)
    given = None if inputs is None else tuple(inputs)
    return _HistoryRecorder(copy.deepcopy(graph_module), given).run(PassPipeline(passes).passes)


class _HistoryRecorder:
    """Follows nodes through passes."""

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
            report, found = self.step(pass_)
            reports.append(report)
            if report.changed:
                links.append(found)
                states.append(self.state(self.drawn()))
        return PassHistory(tuple(states), tuple(reports), tuple(links), tuple(self.order), self.program)

    def take(self, node: Node) -> int:
        """Give a node a number."""
        number = self.numbers[node] = self.count
        self.count += 1
        self.editions[number] = 0
        return number

    def drawn(self) -> DrawnProgram:
        """Return what is drawn of the program, with sizes where it can be followed: engines of devices cannot."""
        try:
            return DrawnProgram.of(self.program, self.inputs)
        except Exception:
            return DrawnProgram.of(self.program)

    def state(self, drawn: DrawnProgram) -> State:
        """The program as it is now; what a pass made for others is in their module."""
        numbers = tuple(self.numbers[node] for node in self.program.graph.nodes)
        nodes: list[DrawnNode] = []
        for number, node in zip(numbers, drawn.nodes, strict=True):
            known = self.around.setdefault(number, node.modules)
            self.ops[number] = node.op
            nodes.append(replace(node, modules=known) if known != node.modules else node)
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
        """Number the nodes after a pass, and count what it changed."""
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
        # -1 stands for the start: what was inserted there has no node before it.
        self.order = [one for number in (-1, *self.order) for one in (number, *inserted.get(number, ())) if one >= 0]
        links: dict[int, list[int]] = {}
        for node, others in stands_for.items():
            itself = [earlier[continued[node]]] if node in continued else []
            for other in dict.fromkeys([*(earlier[one] for one in others), *itself]):
                links.setdefault(other, []).append(self.numbers[node])
        for node, old in continued.items():
            if self.call(node).differs(calls[old], links):
                self.editions[self.numbers[node]] += 1
        return {number: tuple(found) for number, found in links.items()}

    def place(self, number: int, node: Node, others: Sequence[Node], earlier: Mapping[Node, int]) -> None:
        """Put a new node into the innermost module that all nodes are in whose work it does.

        It is left where it says itself that it is, unless that is in a module that was one node before.
        """
        says = node._meta and node._meta.get("nn_module_stack")
        if not others or node.op in ("placeholder", "output"):
            return
        if says and not all(self.ops[earlier[one]] == "call_module" for one in others):
            return
        shared, *around = [self.around[earlier[one]] for one in others]
        for path in around:
            shared = shared[: shared_length(shared, path)]
        self.around[number] = shared

    def call(self, node: Node) -> DrawnCall:
        """Return what a node does now."""
        reads: list[int] = []

        def note(read: Node) -> str:
            reads.append(self.numbers[read])
            return _MARKER

        arguments = format_argument(map_arg((node.args, node.kwargs), note))
        what: Any = None
        if node.op in ("call_module", "get_attr"):
            what = find_attribute(self.program, str(node.target), MISSING)
        settings, tensors = "", [what] if isinstance(what, torch.Tensor) else []
        if isinstance(what, torch.nn.Module):
            settings = repr(what) if not isinstance(what, GraphModule) else what.code
            tensors = [*what.parameters(), *what.buffers()]
        known = tuple((one, 0 if one.is_inference() else one._version) for one in tensors)
        return DrawnCall(node.name, node.op, node.target, arguments, tuple(reads), settings, known)


@dataclass(frozen=True, slots=True)
class DrawnCall:
    """What a node did at some time, kept to be compared."""

    name: str
    """Its name."""
    op: str
    """Its opcode."""
    target: Any
    """What it called or fetched."""
    arguments: str
    """Its arguments, with the same sign for all nodes."""
    reads: tuple[int, ...]
    """The numbers of these nodes."""
    settings: str
    """What the module that it called said of itself."""
    tensors: tuple[tuple[torch.Tensor, int], ...]
    """The tensors that it held or fetched, and how often they had been written to."""

    def differs(self, other: DrawnCall, links: Mapping[int, Sequence[int]]) -> bool:
        """Return whether an earlier call was not the same; ``links`` says which nodes do the work of those before."""
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
    one, other = now[0].detach(), then[0].detach()
    same_kind = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return not (same_kind and torch.equal(one, other))


def _unmark(node: Node) -> list[str]:
    """Take the names that were put beside the origins of a node from it."""
    marked = [origin[1:] for origin in node.origins if origin.startswith(_MARKER)]
    if marked:
        node.origins = tuple(origin for origin in node.origins if not origin.startswith(_MARKER))
    return marked


def _continued(
    before: Mapping[str, Node], stands_for: Mapping[Node, Sequence[Node]], is_same_graph: bool
) -> dict[Node, Node]:
    """The nodes that are still there, each with what it was: itself, or in a graph made anew what it is a copy of."""
    if is_same_graph:
        known = set(before.values())
        return {node: node for node in stands_for if node in known}
    continued: dict[Node, Node] = {}
    taken: set[Node] = set()
    for has_same_name in (True, False):
        for node, others in stands_for.items():
            for other in others:
                is_free = node not in continued and other not in taken
                is_copy = (node.op, node.target) == (other.op, other.target)
                if is_free and is_copy and (node.name == other.name or not has_same_name):
                    continued[node] = other
                    taken.add(other)
    return continued
