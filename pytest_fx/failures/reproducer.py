"""A failure made small: the part of a model that a pass gets wrong, with the simplest inputs that still show it.

The part starts as the first wrong nodes; its inputs are the values that the model computes before them. It grows to
both sides until the pass fails on it alone. If no node is known, the part starts as a beginning of the program. Then
operations are left out, and inputs made shorter and plainer. The pass must always fail in the same way as on the
model. A try is judged once. The smallest part is judged again as a model is, beside eager with its values perturbed.
If it is right then, the search starts again, and judges each part in that way.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fx import Graph, GraphModule, Interpreter, Node
from fx.analysis.dependence import Dependences
from fx.interpreter import positional
from pytest_fx.failures.failure import Failure
from pytest_fx.failures.formed_programs import program_to_cut
from pytest_fx.harness.capture import USUAL, Tracing
from pytest_fx.harness.evaluation import Arguments
from pytest_fx.harness.structure import map_tensors
from pytest_fx.harness.subject import Subject, is_training

SECONDS = 20.0
"""Seconds of the process's own CPU time after which no smaller part is tried; other load does not count."""
TRIES = 400
"""The largest number of parts that are tried."""
FADING = 10.0
"""The factor by which the error, relative to the output, may shrink while inputs are made shorter and plainer."""

Change = Callable[[torch.Tensor], torch.Tensor]
"""A function that makes a tensor shorter or plainer."""


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """A part of a program, as a program."""

    program: GraphModule
    """The part; its inputs are the values that it reads from the rest of the program."""
    inputs: tuple[Any, ...]
    """The values of its inputs, as the whole program computes them."""

    def subject(self, name: str, threads: int | None = None, tracing: Tracing = USUAL) -> Subject:
        """Return the part as a model under test; the first input set is as recorded, later ones vary it."""
        inputs = Arguments(self.inputs).for_input_set
        mode = "train" if is_training(self.program) else "eval"
        return Subject(name, self.program, inputs, threads=threads, mode=mode, keeps_dtypes=True, tracing=tracing)


class TrialBudget:
    """A limit on the search for smaller parts, with a count of those tried."""

    def __init__(self, seconds: float = SECONDS, tries: int = TRIES) -> None:
        """Take seconds of the process's own time, and a number of parts to try."""
        self.seconds, self.tries, self.tried = seconds, tries, 0
        self._started = time.process_time()

    @property
    def is_spent(self) -> bool:
        """Return whether no other part may be tried."""
        return self.tried >= self.tries or time.process_time() - self._started >= self.seconds

    def __str__(self) -> str:
        """Return the number of parts tried, with a note if that was the most."""
        if not self.is_spent:
            return f"{self.tried} parts tried"
        time_is_over = "" if self.tried >= self.tries else f" in {self.seconds:g} s of CPU time"
        return f"{self.tried} parts tried{time_is_over}, which is the most"


def find_part(
    failure: Failure, names: frozenset[str] = frozenset(), input_set: int = 0, budget: TrialBudget | None = None
) -> ProgramPart | None:
    """Return a small part of the model on which the pass fails as it does on the whole, or None if there is none.

    Args:
        failure: the pass that fails, and how.
        names: nodes of the captured model that the part should contain.
        input_set: the index of the inputs of the model that show the failure.
        budget: the limit of the search. Once it is spent, the smallest failing part so far is returned, or the
            whole program.
    """
    search = _PartSearch(failure, input_set, budget or TrialBudget())
    try:
        return search.run(names)
    finally:
        search.runner.restore()  # others use the tensors that it has written to


def error_on(failure: Failure, part: ProgramPart, *, looks_twice: bool = True) -> float:
    """Return the error of the outputs relative to their size; negative if the pass does not fail on ``part`` as it did.

    ``looks_twice`` asks for a judgement like that of a model.
    """
    model = failure.subject
    # A part is a captured program, however the model itself is captured.
    subject = part.subject(model.name, model.threads, replace(model.tracing, how="symbolic"))
    with model.set_aside():  # the part has tensors of its own
        error = failure.error_on(subject, looks_twice=looks_twice)
        subject.close()
    return -1.0 if error is None else error


class _PartSearch:
    """The search for ever smaller parts of one model."""

    def __init__(self, failure: Failure, input_set: int, budget: TrialBudget) -> None:
        self.failure = failure
        self.budget = budget
        self.looks_twice = False
        """True if tries are judged beside eager with its values perturbed."""
        subject = failure.subject
        exported = program_to_cut(subject, failure.pass_)
        captured = exported or subject.capture(subject.shared_copy(), leaves=failure.leaves, pass_=failure.pass_)
        self.original = captured
        self.before = _links(self.original.graph)
        self.after: dict[Node, list[Node]] = defaultdict(list)
        for node, read in self.before.items():
            for each in read:
                self.after[each].append(node)
        self.runner = subject.runner(self.original)
        arguments = subject.arguments(input_set).copies()
        self.inputs = positional(self.original, arguments.args, arguments.kwargs)
        self.known: dict[Node, Any] = {}
        """Values of nodes, as the whole program computes them."""

    def run(self, names: frozenset[str]) -> ProgramPart | None:
        """Return the smallest part on which the pass still fails when eager is perturbed."""
        for self.looks_twice in (False, True):
            whole = list(self.before)
            nodes = next(filter(self.shows, self.candidates(names)), whole)
            part = self.simplified(self.part(self.shrunk(nodes)))
            if error_on(self.failure, part) >= 0:
                return part
        return None

    def candidates(self, names: frozenset[str]) -> Iterator[list[Node]]:
        """Yield parts of the program to look in, the smaller ones first."""
        calls = [node for node in self.before if node.op != "output"]
        wanted = [node for node in calls if node.name in names]
        yield from self.growing(wanted, calls) if wanted else self.beginnings(calls)
        yield list(self.before)

    def beginnings(self, calls: list[Node]) -> Iterator[list[Node]]:
        """Yield the output alone, and the shortest beginning that fails, if a longer one fails, too."""
        yield list(self.before)[-1:]
        low, high = 0, len(calls)
        while low < high:
            middle = (low + high) // 2
            if self.shows(calls[: middle + 1]):
                high = middle
            else:
                low = middle + 1
        if low < len(calls):
            yield calls[: low + 1]

    def growing(self, wanted: list[Node], calls: list[Node]) -> Iterator[list[Node]]:
        """Yield ever larger neighbourhoods of the nodes ``wanted``: their inputs and users, then those of these."""
        size, steps = 0, 0
        while size < len(calls) and steps <= 2 * len(calls):
            for back, ahead in dict.fromkeys([(steps, steps // 2), (steps // 2, steps), (steps, steps)]):
                near = _within(self.before, wanted, back) | _within(self.after, wanted, ahead)
                if len(near) > size:
                    size = len(near)
                    yield [node for node in calls if node in near]
            steps = max(1, 2 * steps)

    def shows(self, nodes: list[Node]) -> bool:
        """Return whether the pass fails on ``nodes`` alone."""
        return self.error_on(self.part(nodes)) >= 0

    def error_on(self, part: ProgramPart) -> float:
        """Return the relative error of the outputs; negative if the pass does not fail as it did, or all is spent."""
        if self.budget.is_spent:
            return -1.0
        self.budget.tried += 1
        return error_on(self.failure, part, looks_twice=self.looks_twice)

    def part(self, nodes: list[Node]) -> ProgramPart:
        """Return ``nodes`` as a program; it returns the values without users, or the output if that is among them."""
        boundary, inside = _boundary(nodes), set(nodes)
        self.know(boundary)
        graph = Graph()
        graph.constants = dict(self.original.graph.constants)
        copies = {used: graph.placeholder(used.name) for used in boundary}
        for node in nodes:
            for used in node.all_input_nodes:
                if used not in copies:  # an attribute
                    copies[used] = graph.node_copy(used)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if nodes[-1].op != "output":
            unread = [copies[node] for node in nodes if inside.isdisjoint(self.after[node])]
            graph.output(unread[0] if len(unread) == 1 else tuple(unread))
        values = tuple(self.known[used] for used in boundary)
        return ProgramPart(GraphModule(self.original, graph), values)

    def know(self, wanted: Iterable[Node]) -> None:
        """Record the values that the program computes at some nodes."""
        missing = {node for node in wanted if node not in self.known}

        def keep(node: Node, value: Any) -> None:
            if node in missing:
                self.known[node] = map_tensors(lambda tensor: tensor.detach().clone(), value)

        if missing:
            state = torch.get_rng_state()
            with torch.no_grad():
                Interpreter(self.original, listeners=[keep]).run(*map_tensors(torch.clone, self.inputs))
            torch.set_rng_state(state)

    def shrunk(self, nodes: list[Node]) -> list[Node]:
        """Return as few of ``nodes`` as still fail; each omitted value becomes an input (Zeller's delta debugging)."""
        ends = [node for node in nodes if set(nodes).isdisjoint(self.after[node])]
        for end in ends if len(ends) > 1 else ():
            needed = _within(self.before, [end], len(nodes))
            if self.shows(fewer := [node for node in nodes if node in needed]):
                nodes = fewer
                break
        size = len(nodes) // 2
        while size >= 1:
            start = 0
            while start < len(nodes) and size < len(nodes):
                fewer = [*nodes[:start], *nodes[start + size :]]
                if self.shows(fewer):
                    nodes = fewer
                else:
                    start += size
            size //= 2
        return nodes

    def simplified(self, part: ProgramPart) -> ProgramPart:
        """Return the same program with the shortest and plainest inputs that still show most of the error."""
        error = self.error_on(part)
        for change in _changes(part.inputs):
            while True:
                inputs = tuple(map_tensors(change, value) for value in part.inputs)
                simpler = replace(part, inputs=inputs)
                if _same(inputs, part.inputs) or self.error_on(simpler) < error / FADING:
                    break
                part = simpler
        return part


def _links(graph: Graph) -> dict[Node, list[Node]]:
    """Map each operation, and the output, to the operations that compute or have written the values that it reads."""
    dependences = Dependences(graph)
    links: dict[Node, list[Node]] = {}
    writers: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        reads = frozenset[int]() if node.op == "output" else dependences.reads(node)
        read = [*node.all_input_nodes, *(writers[memory] for memory in reads if memory in writers)]
        links[node] = [used for used in dict.fromkeys(read) if used in links]
        if node.op != "output":
            writers.update(dict.fromkeys(dependences.writes(node), node))
    return links


def _within(links: Mapping[Node, list[Node]], nodes: Iterable[Node], steps: int) -> set[Node]:
    """Return ``nodes`` and the operations at most so many steps away."""
    near = edge = set(nodes)
    for _ in range(steps):
        edge = {other for node in edge for other in links[node] if other.op != "output"} - near
        if not edge:
            break
        near = near | edge
    return near


def _boundary(nodes: list[Node]) -> list[Node]:
    """Return the values that ``nodes`` read and do not compute, attributes aside."""
    inside = set(nodes)
    read = (used for node in nodes for used in node.all_input_nodes)
    return list(dict.fromkeys(used for used in read if used not in inside and used.op != "get_attr"))


def _changes(inputs: tuple[Any, ...]) -> Iterator[Change]:
    """Yield changes that make inputs simpler, in the order to try: one sample, shorter dimensions, plain numbers.

    A dimension is cut in all inputs, counted from the end, so that operands of an addition stay in step.
    """
    shapes = [tensor.shape for tensor in Arguments(inputs).tensors]
    cuts = dict.fromkeys((axis - len(shape), size) for shape in shapes for axis, size in enumerate(shape))
    for samples in dict.fromkeys(shape[0] for shape in shapes if shape):
        yield lambda tensor, of=samples: tensor[:1].clone() if tensor.shape[:1] == (of,) else tensor
    yield from (_cut(axis, lambda size: 1) for axis, _ in cuts)
    yield from (_cut(axis, lambda size: (size + 1) // 2) for axis, _ in cuts)
    yield lambda tensor: torch.ones_like(tensor) if tensor.is_floating_point() else tensor
    yield lambda tensor: torch.zeros_like(tensor) if not tensor.is_floating_point() else tensor
    yield lambda tensor: tensor.sign() if tensor.is_floating_point() else tensor
    yield lambda tensor: (tensor * 8).round() / 8 if tensor.is_floating_point() else tensor


def _cut(axis: int, shorter: Callable[[int], int]) -> Change:
    """Return a change that shortens one dimension, counted from the end."""

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < -axis or tensor.shape[axis] < 2:
            return tensor
        return tensor.narrow(axis, 0, shorter(tensor.shape[axis])).clone()

    return cut


def _same(inputs: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Return whether a change had no effect."""
    pairs = zip(Arguments(inputs).tensors, Arguments(others).tensors, strict=True)
    return all(tensor.shape == other.shape and torch.equal(tensor, other) for tensor, other in pairs)
